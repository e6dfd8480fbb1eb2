"""Times by CUDA events, of the call and of its CUDA graph, with a cold L2, cold inputs and a rest before a long call; and peak memory.

An *interval* includes gaps between launches where the CPU is late; ``graph_time`` does not. Neither is the GPU time of the kernels
(``torch_profiler``, ``ncu``): the three are never mixed.
"""

from __future__ import annotations

import contextlib
import itertools
import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pandas as pd

from tilescope.files import bounded_reading
from tilescope.hardware import device
from tilescope.table import schema
from tilescope.table.case import Case

SUFFIX = ".json"

REPETITIONS, WARMUP = 50, 10
#: Sets of inputs taken in turn, so that a call does not find its inputs in the cache.
ROTATE = 3


def unavailable() -> str | None:
    """Says why there is no GPU; None if there is one."""
    return device.unavailable()


def capture(case: Case, spec: Any, out: Path, settings: Mapping[str, Any]) -> None:
    """Times the case and writes the seconds of each repetition as JSON.

    A case that cannot be captured as a CUDA graph has no ``graph_time`` but a note with the reason.
    """
    import torch  # noqa: PLC0415 - only the worker may import torch

    from tilescope.execution import execute, observe  # noqa: PLC0415

    warmup = int(settings.get("warmup", WARMUP))
    rotate = int(settings.get("rotate", ROTATE))
    artefact: dict[str, Any] = {"warmup": warmup, "rotate": rotate}
    # Autograd runs a backward operation on its forward's stream, and the default stream cannot be captured.
    with torch.cuda.stream(torch.cuda.Stream()):  # type: ignore[no-untyped-call]
        run = execute.prepare(spec, case, "cuda", rotate=rotate)
        for _ in range(max(warmup, rotate)):
            run()
        observe.once(run, out, case)
        artefact |= measured(run, rotate, settings.get("repetitions"))
    out.write_text(json.dumps(artefact))


def measured(run: Callable[[], Any], rotate: int, repetitions: int | None = None) -> dict[str, Any]:
    """Times and memory of a warm call on the current stream, as the artefact has them. ``run`` takes ``rotate`` sets of inputs in
    turn. Without ``repetitions`` a long call has fewer than ``REPETITIONS``.
    """
    import torch  # noqa: PLC0415

    from tilescope.execution import cold  # noqa: PLC0415

    flush = cold.Flush(cold.rest(run))
    repetitions = repetitions or flush.repetitions(REPETITIONS)
    found: dict[str, Any] = {"repetitions": repetitions, "flush_bytes": flush.nbytes, "rest": flush.rest, "notes": []}
    peak = _peak_memory(run)
    if not peak and _graphs_hold_memory():
        found["notes"].append("no peak memory: a CUDA graph holds what it needs, and the call allocates nothing")
    else:
        found["peak_memory"] = peak
    found["interval"] = cold.intervals(run, repetitions, flush)
    found["clocks"] = device.clocks()
    try:
        graphs = itertools.cycle(_graphs(run, rotate))
        found["graph_time"] = cold.intervals(lambda: next(graphs).replay(), repetitions, flush)
    except RuntimeError as error:
        found["notes"].append(f"not captured as a CUDA graph: {str(error).splitlines()[0]}")
    torch.cuda.synchronize()
    return found


@bounded_reading.parser
def parse(artefact: Path, case: Case) -> pd.DataFrame:
    """Rows of ``interval`` and ``graph_time`` (seconds, for each repetition), ``peak_memory`` (bytes) and ``sm_clock`` (hertz)."""
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
    """Peak bytes that the call allocates, beyond those allocated before: the most of three calls.

    The thread of autograd may hold the last call's gradients a little longer, and one call then seems to allocate nothing.
    """
    import torch  # noqa: PLC0415

    most = 0
    for _ in range(3):
        torch.cuda.synchronize()
        before = torch.cuda.memory_allocated()
        torch.cuda.reset_peak_memory_stats()
        run()
        torch.cuda.synchronize()
        most = max(most, torch.cuda.max_memory_allocated() - before)
    return int(most)


def _graphs_hold_memory() -> bool:
    """Whether CUDA graphs have memory pools in this process. PyTorch's id of the common pool is (0, 0)."""
    import torch  # noqa: PLC0415

    return any(tuple(segment["segment_pool_id"]) != (0, 0) for segment in torch.cuda.memory_snapshot())  # type: ignore[no-untyped-call]


def _graphs(run: Callable[[], Any], count: int) -> list[Any]:
    """CUDA graphs of the next ``count`` calls, each with the next set of inputs. Raises RuntimeError where capturing fails.

    They share a memory pool, as they are replayed in turn. A capture that fails leaves PyTorch's allocator in the pool, where it no
    longer returns memory to the GPU: the pool is given up.
    """
    import torch  # noqa: PLC0415

    # Not by ``torch.cuda.graph``, which returns all memory to the GPU before each capture.
    torch.cuda.synchronize()
    torch.cuda.empty_cache()
    graphs, pool = [], torch.cuda.graph_pool_handle()
    for _ in range(count):
        graph = torch.cuda.CUDAGraph()
        graph.capture_begin(pool=pool)
        try:
            try:
                run()
            finally:
                graph.capture_end()
        except RuntimeError:
            device = torch.cuda.current_device()
            with contextlib.suppress(RuntimeError):  # where capturing ended well, and the call alone failed
                torch._C._cuda_endAllocateToPool(device, pool)
                torch._C._cuda_releasePool(device, pool)
            raise
        graph.replay()
        torch.cuda.synchronize()
        graphs.append(graph)
    return graphs
