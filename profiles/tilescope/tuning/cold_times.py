"""GPU times of a call with a cold L2, by CUDA events. Imports torch."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import torch

from tilescope.execution import cold

#: Number of attempts to take samples whose call the CPU queued in time.
_TRIES = 4
#: Approximate cycles of the GPU's clock in a second, for ``torch.cuda._sleep``.
_CYCLES = 2e9


def cold_times(call: Callable[[], Any], count: int) -> list[float]:
    """GPU times in seconds of ``count`` calls, each with a cold L2, after one warm-up call.

    A sample is valid if the whole call was queued before the GPU began it; otherwise the time is the CPU's. Invalid samples are
    taken again, while the GPU sleeps until the calls are queued. A call that itself waits for the GPU stays invalid, and its
    times are returned as they are.
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
    # Twice: the CPU needs that time to queue the whole call.
    flush()
    flush()
    start.record()
    call()
    end.record()
    return start, end, not start.query()
