"""Open a run that was recorded on an H200, and read its table: one row a value, with its unit and its source."""

import tilescope

run = next(tilescope.recordings("softmax"))
print(run.run.title, "on", run.run.device.name)

times = run.table[
    (run.table["metric"] == "gpu_time") & (run.table["source"] == "torch_profiler") & (run.table["pass"] == "forward")
]
print(times.groupby(["workload", "impl"])["value"].median().unstack("impl").map("{:.2e}".format).to_string())
