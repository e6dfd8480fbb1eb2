"""Latency by CUDA events: eager and as a CUDA graph, with a cold L2 and cold inputs, and peak memory.

An *interval* includes the gaps that a late CPU leaves between launches; ``graph_time`` does not. Neither is the
GPU time of the kernels (``torch_profiler``, ``ncu``): the three are kept apart.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pandas as pd

from tilescope.execution.intervals import intervals
from tilescope.files import bounded_reading
from tilescope.hardware import device
from tilescope.table import schema
from tilescope.table.case import Case

SUFFIX = ".json"

REPETITIONS, WARMUP = 50, 10
#: Sets of inputs taken in turn, so that no call finds its inputs where the last one left them.
ROTATE = 3


def unavailable() -> str | None:
    """Why events cannot be recorded here; None when they can."""
    return device.unavailable()


def capture(case: Case, spec: Any, out: Path, settings: Mapping[str, Any]) -> None:
    """Times the case and writes seconds, one a repetition, as JSON.

    A case that cannot be captured as a CUDA graph has no ``graph_time``, and a note that says why.
    """
    import torch  # noqa: PLC0415 - only the worker may import torch

    from tilescope.execution import cold, execute, observe  # noqa: PLC0415

    repetitions = int(settings.get("repetitions", REPETITIONS))
    warmup = int(settings.get("warmup", WARMUP))
    rotate = int(settings.get("rotate", ROTATE))
    artefact: dict[str, Any] = {"repetitions": repetitions, "warmup": warmup, "rotate": rotate, "notes": []}
    # Autograd runs a backward operation on its forward's stream, and the default stream cannot be captured.
    with torch.cuda.stream(torch.cuda.Stream()):  # type: ignore[no-untyped-call]
        run = execute.prepare(spec, case, "cuda", rotate=rotate)
        flush = cold.Flush()
        artefact["flush_bytes"] = flush.nbytes
        for _ in range(max(warmup, rotate)):
            run()
        observe.once(run, out, case)
        if _graphs_hold_memory():
            artefact["notes"].append("no peak memory: a CUDA graph holds what it needs, and the call allocates nothing")
        else:
            artefact["peak_memory"] = _peak_memory(run)
        artefact["interval"] = intervals(run, repetitions, flush)
        artefact["clocks"] = device.clocks()
        try:
            graphs = [_graph(run) for _ in range(rotate)]
            artefact["graph_time"] = intervals(_in_turn(graphs), repetitions, flush)
        except RuntimeError as error:
            artefact["notes"].append(f"not captured as a CUDA graph: {str(error).splitlines()[0]}")
        torch.cuda.synchronize()
    out.write_text(json.dumps(artefact))


@bounded_reading.parser
def parse(artefact: Path, case: Case) -> pd.DataFrame:
    """Rows ``interval`` and ``graph_time`` (one a repetition, seconds), ``peak_memory`` (bytes) and ``sm_clock`` (hertz)."""
    data = bounded_reading.data_of(artefact)
    rows = [
        case.row(metric, value, "events", sample=sample)
        for metric in ("interval", "graph_time")
        for sample, value in enumerate(data.get(metric, ()))
    ]
    if "peak_memory" in data:
        rows.append(case.row("peak_memory", data["peak_memory"], "events"))
    rows += [case.row(metric, value, "events") for metric, value in data.get("clocks", {}).items()]
    return schema.frame(rows)


def _peak_memory(run: Callable[[], Any]) -> int:
    """Bytes the call allocates at its peak, beyond what was allocated before it."""
    import torch  # noqa: PLC0415

    torch.cuda.synchronize()
    before = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    run()
    torch.cuda.synchronize()
    return int(torch.cuda.max_memory_allocated() - before)


def _graphs_hold_memory() -> bool:
    """Whether CUDA graphs have memory pools of their own here: PyTorch's id of the pool that all others share is (0, 0)."""
    import torch  # noqa: PLC0415

    return any(tuple(segment["segment_pool_id"]) != (0, 0) for segment in torch.cuda.memory_snapshot())  # type: ignore[no-untyped-call]


def _graph(run: Callable[[], Any]) -> Any:
    """A CUDA graph of the next call, which takes the next set of inputs. RuntimeError when it cannot be captured."""
    import torch  # noqa: PLC0415

    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=torch.cuda.current_stream()):
        run()
    graph.replay()
    torch.cuda.synchronize()
    return graph


def _in_turn(graphs: list[Any]) -> Callable[[], None]:
    calls = 0

    def replay() -> None:
        nonlocal calls
        graphs[calls % len(graphs)].replay()
        calls += 1

    return replay
