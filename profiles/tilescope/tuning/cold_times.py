"""GPU times of a call with a cold L2, by CUDA events. Imports torch."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import torch

from tilescope.execution import cold

#: So often samples are taken again of which the CPU queued a part too late.
_TRIES = 4
#: Cycles of the GPU's clock in a second, about: for how long it is kept waiting.
_CYCLES = 2e9


def cold_times(call: Callable[[], Any], count: int) -> list[float]:
    """GPU times of ``count`` calls in seconds, each with a cold L2, after one that does not count.

    The GPU must find the whole call queued when it begins: else the time is the CPU's. A sample that it began too early is taken
    again, with the GPU kept waiting first. What cannot be queued whole, as a call that waits for the GPU, is told as it came.
    """
    call()
    flush = cold.Flush()
    times: list[float] = []
    late: list[float] = []
    took = 0.0
    for _ in range(_TRIES):
        if waited := took > 0:
            torch.cuda._sleep(int(took * _CYCLES))  # type: ignore[no-untyped-call]
        began, marks = time.perf_counter(), []
        for _ in range(count - len(times)):
            marks.append(_queued(call, flush))
        took = time.perf_counter() - began
        torch.cuda.synchronize()
        before = len(times)
        for start, end, whole in marks:
            (times if whole else late).append(start.elapsed_time(end) / 1e3)
        if len(times) == count or (waited and len(times) == before):
            break
    return [*times, *late][:count]


def _queued(call: Callable[[], Any], flush: cold.Flush) -> tuple[Any, Any, bool]:
    """The events before and after a call, and whether the GPU found both and the call between them queued."""
    event: Any = torch.cuda.Event
    start, end = event(enable_timing=True), event(enable_timing=True)
    # Twice, so that the CPU has the time to queue the whole call before it begins.
    flush()
    flush()
    start.record()
    call()
    end.record()
    return start, end, not start.query()
