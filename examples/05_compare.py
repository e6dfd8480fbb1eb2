"""Compare two implementations case by case. An interval that excludes 1 is a difference; the others are alike."""

import tilescope
from tilescope.models import compare, verdicts

run = next(tilescope.recordings("softmax"))
baseline, candidate = compare.Side(run, "compile"), compare.Side(run, "triton")
rows = compare.compare(baseline, candidate)

print(verdicts.sentence(rows, "triton", "torch.compile"))
for case in rows.itertuples():
    print(f"{case.workload:20} {case.speedup:.2f}× ({case.speedup_low:.2f} to {case.speedup_high:.2f}) {case.verdict}")
