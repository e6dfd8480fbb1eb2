"""Read a recorded sweep: the best config as code, and what each parameter costs at its worst value."""

import tilescope
from tilescope.models import sweeps

for run in tilescope.recordings("softmax"):
    for sweep, lines in sweeps.conclusions(run.table[run.table["kernel"] == "softmax"]):
        print(sweep, *lines, sep="\n  ")
        break
    else:
        continue
    break
