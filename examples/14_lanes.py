"""See inside a kernel what each warp waits for. With a GPU 'tilescope profile --collect lanes mine.py' records it."""

import json
from pathlib import Path

import tilescope
from tilescope.models import lanes
from tilescope.table.case import Case


def scope(warp: int, name: str, start: float, end: float) -> dict:
    """What Proton writes of a part of a kernel, in microseconds."""
    place = {"pid": "matmul Core0 CTA0", "tid": f"warp {warp} (line 12)"}
    return {"ph": "X", "cname": "good", "cat": "matmul", "name": name, "ts": start, "dur": end - start, **place}


events = [scope(0, "load", 0, 2), scope(4, "wait for load", 0, 2), scope(4, "mma", 2, 3)]
Path("matmul.chrome_trace").write_text(json.dumps({"displayTimeUnit": "ns", "traceEvents": events}))

run = tilescope.open_file("matmul.chrome_trace")
case = Case(*run.table.iloc[0][["kernel", "impl", "pass", "workload", "config"]])
print(lanes.of_case(run, case).spans[["warp", "name", "kind", "start", "end"]])
