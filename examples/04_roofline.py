"""See how far each implementation is from the roofline, and why."""

import tilescope

run = next(tilescope.recordings("softmax"))
cases = run.summary
largest = cases[cases["workload"] == cases.loc[cases["floor"].idxmax(), "workload"]]

for case in largest[largest["pass"] == "forward"].itertuples():
    print(f"{case.impl:8} {case.gpu_time * 1e6:7.1f} µs  {case.floor_fraction:6.1%} of roofline  {case.why}")
