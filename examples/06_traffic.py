"""Count bytes three times: what the algorithm needs, what the code asks for, what the hardware moved."""

import tilescope
from tilescope.models import traffic

run = next(tilescope.recordings("rms_norm"))
rows = traffic.traffic(run.table[run.table["workload"] == run.summary["workload"].iloc[0]])

rows["bytes"] = rows["read"] + rows["written"]
for (impl, source), moved in rows.groupby(["impl", "source"])["bytes"].sum().items():
    print(f"{impl:8} {source:12} {moved / 1e6:8.2f} MB")
