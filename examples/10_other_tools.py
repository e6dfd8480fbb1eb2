"""Open another tool's file as a run: a trace of torch.profiler, ncu's report, Proton, Perfetto, tritonparse, Inductor, Helion."""

import json
from pathlib import Path

import tilescope

kernel = {
    "ph": "X", "cat": "kernel", "name": "scale", "ts": 1, "dur": 5,
    "args": {"device": 0, "stream": 7, "grid": [98, 1, 1], "block": [128, 1, 1], "registers per thread": 18, "shared memory": 0},
}  # fmt: skip
device = {"id": 0, "name": "NVIDIA H200", "computeMajor": 9, "computeMinor": 0}
Path("trace.json").write_text(json.dumps({"traceEvents": [kernel], "deviceProperties": [device]}))

print(tilescope.open_file("trace.json"))
