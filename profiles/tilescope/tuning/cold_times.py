"""GPU times of a call with a cold L2, and of calls in a row, by CUDA events. Imports torch."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any

import torch

from tilescope.execution import cold
from tilescope.tuning import racing

#: Number of attempts to take samples whose call the CPU queued in time.
_TRIES = 4
#: Most rounds of ``sustained_times``, and the seconds for which a call is repeated in each.
_ROUNDS, _EACH = 4, 0.1
#: They end before where a call certainly leads. Times of many calls in a row spread less than those of single calls.
_ENOUGH = racing.Rules(turns=_ROUNDS // 2, noise=0.003)
#: Calls that the CPU queues ahead of the GPU.
_AHEAD = 8


def cold_times(call: Callable[[], Any], count: int, flush: cold.Flush | None = None) -> list[float]:
    """GPU times in seconds of ``count`` calls, each with a cold L2.

    ``flush`` makes it cold, and lets the GPU rest before a long call. Without one a first call, which is not timed, tells the rest.

    A sample is valid if the whole call was queued before the GPU began it; otherwise the time is the CPU's. Invalid samples are
    taken again, while the GPU sleeps until the calls are queued. A call that itself waits for the GPU stays invalid, and its
    times are returned as they are.
    """
    flush = flush or cold.Flush(cold.rest(call))
    times: list[float] = []
    late: list[float] = []
    took = 0.0
    for _ in range(_TRIES):
        if waited := took > 0:
            cold.sleep(took)
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


def sustained_times(calls: Mapping[str, Callable[[], Any]]) -> dict[str, list[float]]:
    """GPU times in seconds of calls that are repeated without a rest, one a round.

    The calls take turns in rounds of opposite order, until one certainly leads after as many rounds of each order. The first half of a turn
    brings the GPU to its power limit and does not count.
    """
    found: dict[str, list[float]] = {name: [] for name in calls}
    event: Any = torch.cuda.Event
    for number in range(_ROUNDS):
        if number and number % 2 == 0 and racing.leads(found, _ENOUGH):
            break
        for name in sorted(calls, reverse=bool(number % 2)):
            marks: list[Any] = []
            began = time.perf_counter()
            while len(marks) < 2 or time.perf_counter() - began < _EACH:
                calls[name]()
                marks.append(event(enable_timing=True))
                marks[-1].record()
                if len(marks) > _AHEAD:
                    marks[-_AHEAD].synchronize()
            marks[-1].synchronize()
            half = len(marks) // 2 - 1
            found[name].append(marks[half].elapsed_time(marks[-1]) / 1e3 / (len(marks) - 1 - half))
    return found


def _queued(call: Callable[[], Any], flush: cold.Flush) -> tuple[Any, Any, bool]:
    """The events before and after a call, and whether the GPU found both and the call between them queued."""
    event: Any = torch.cuda.Event
    start, end = event(enable_timing=True), event(enable_timing=True)
    flush()
    if not flush.rest:
        flush()  # the CPU needs that time to queue the whole call
    start.record()
    call()
    end.record()
    return start, end, not start.query()
