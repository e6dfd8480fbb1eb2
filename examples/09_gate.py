"""Gate a change: fail where a kernel became slower or larger. In CI 'tilescope gate main HEAD' does this for two revisions."""

import tilescope
from tilescope.models import gate

baseline = next(tilescope.recordings("gelu"))
larger = baseline.table.copy()
larger.loc[larger["metric"] == "registers", "value"] += 40
candidate = tilescope.LoadedRun(baseline.run, larger, baseline.folder)  # in CI: the run of the change

result = gate.gate(baseline, candidate, gate.Limits(), impls=["triton"])
print(result.verdict)
for check in result.of("fail")[:3]:
    print(f"{check.what}: {check.said}")
