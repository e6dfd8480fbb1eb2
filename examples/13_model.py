"""Read a model's ledger: where a training step's time goes, and what to do next. With a GPU 'tilescope model train.py' measures it."""

import json
from pathlib import Path

import tilescope
from tilescope.notebook import modelling

GPU = {"id": 0, "name": "NVIDIA H200", "computeMajor": 9, "computeMinor": 0}


def step(number: int) -> list[dict]:
    """What torch.profiler writes of a step of 100 µs with one launch of 30 µs."""
    start, add = 100 * number, {"Input Dims": [[4096, 4096]] * 2, "Input type": ["float"] * 2}
    cpu, launch = {"ph": "X", "pid": 1, "tid": 1}, {"correlation": number, "device": 0, "stream": 7}
    return [
        {**cpu, "cat": "user_annotation", "name": f"ProfilerStep#{number}", "ts": start, "dur": 100},
        {**cpu, "cat": "cpu_op", "name": "aten::add", "ts": start + 5, "dur": 20, "args": add},
        {**cpu, "cat": "cuda_runtime", "name": "cudaLaunchKernel", "ts": start + 10, "dur": 2, "args": {"correlation": number}},
        {"ph": "X", "pid": 0, "tid": 7, "cat": "kernel", "name": "add", "ts": start + 15, "dur": 60, "args": launch},
    ]  # fmt: skip


events = [event for number in range(1, 4) for event in step(number)]
Path("trace.json").write_text(json.dumps({"deviceProperties": [GPU], "traceEvents": events}))
run = tilescope.open_file("trace.json")
print(modelling.open_model(str(run.folder)))
