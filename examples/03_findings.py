"""Ask why a kernel is slow: each finding has its evidence, the most that the cure can win, and the cure."""

import tilescope
from tilescope.models import advice

run = next(tilescope.recordings("histogram"))
findings = advice.of_run(run, run.table[run.table["impl"] == "triton"])

for finding in [one for one in findings if one.bound][:2]:
    print(f"{finding.workload}: {finding.title}, {finding.bound.text}")
    for value in finding.evidence:
        print(f"  {value.label}: {value.text} ({value.source})")
    print(f"  cure: {finding.remedy}")
