"""Chrome traces: torch.profiler's own where a run kept it, or one made from the table.

Perfetto (ui.perfetto.dev) and chrome://tracing open both as they are, compressed with gzip. The format is Google's "Trace Event
Format", with times in microseconds.
"""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pandas as pd

from tilescope.runs import artefacts
from tilescope.runs.store import LoadedRun
from tilescope.table.case import Case

#: How a trace's file name ends, made or kept.
SUFFIX = ".trace.json.gz"
_GPU, _CPU = 0, 1


def kept(loaded: LoadedRun, case: Case) -> Path | None:
    """torch.profiler's trace of all the case's repetitions, with the CPU's operators in the first; None if not kept."""
    return artefacts.find(loaded.folder, "torch_profiler", case)


def made(launches: pd.DataFrame) -> bytes:
    """A compressed Chrome trace of ``tilescope.models.timeline``'s rows, one repetition an implementation.

    Each implementation is a process with a row for the GPU and, where the calls are known, one of instants for the CPU.
    All start at 0, when their first launch began: a viewer shows them beside each other.
    """
    events: list[dict[str, Any]] = []
    for process, (impl, rows) in enumerate(launches.groupby("impl", sort=False)):
        events.append(_name("process_name", process, _GPU, str(impl)))
        events.append(_name("thread_name", process, _GPU, "GPU"))
        if rows["call"].notna().any():
            events.append(_name("thread_name", process, _CPU, "CPU: calls"))
        for row in rows.to_dict("records"):
            number = int(row["launch"]) + 1
            arguments = {"launch": number, "repetition": int(row["sample"]), "kernel": row["kernel"], "pass": row["pass"],
                         "workload": row["workload"]}  # fmt: skip
            events.append({"ph": "X", "cat": "kernel", "name": row["function"], "pid": process, "tid": _GPU,
                           "ts": row["start"] * 1e6, "dur": row["duration"] * 1e6, "args": arguments})  # fmt: skip
            if pd.notna(row["call"]):
                events.append({"ph": "i", "s": "t", "name": f"call of launch {number}", "pid": process, "tid": _CPU,
                               "ts": row["call"] * 1e6})  # fmt: skip
    trace = {"displayTimeUnit": "ns", "traceEvents": events}
    return gzip.compress(json.dumps(trace, separators=(",", ":")).encode(), mtime=0)


def _name(kind: str, process: int, thread: int, text: str) -> dict[str, Any]:
    return {"ph": "M", "name": kind, "pid": process, "tid": thread, "args": {"name": text}}
