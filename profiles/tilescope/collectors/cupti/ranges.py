"""Counts every launch of a call with CUPTI's Range Profiler, on the CUDA context of this process. Worker-side."""

from __future__ import annotations

import contextlib
import ctypes
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from tilescope.collectors.cupti import planning, structures
from tilescope.collectors.cupti.library import CuptiError, Library
from tilescope.collectors.cupti.planning import Plan

#: One range for each launch (``CUPTI_AutoRange``); the caller repeats the call for each pass (``CUPTI_UserReplay``).
EACH_LAUNCH, CALLED_AGAIN = 1, 3


def count(
    library: Library, chip: str, plan: Plan, *, launches: int, call: Callable[[], Any], before: Callable[[], Any]
) -> list[Mapping[str, float]]:
    """Counters of each launch of ``call``, in order. ``before`` is called ahead of each pass and is not counted.

    ``call`` must return when its ``launches`` launches have ended. Raises CuptiError for another number of launches.
    """
    with _enabled(library) as profiler:
        names = structures.texts(plan.counters)
        size = structures.GetCounterDataSize(
            profiler=profiler, metricNames=names, numMetrics=len(names), maxNumOfRanges=launches,
            maxNumRangeTreeNodes=launches,
        )  # fmt: skip
        data = ctypes.create_string_buffer(library.call(size).counterDataSize)
        place = ctypes.addressof(data)
        library.call(structures.CounterDataInitialize(profiler=profiler, counterDataSize=len(data), counterData=place))
        image = ctypes.create_string_buffer(plan.image, len(plan.image))
        library.call(structures.SetConfig(
            profiler=profiler, configSize=len(image), config=ctypes.addressof(image), counterDataSize=len(data),
            counterData=place, range=EACH_LAUNCH, replayMode=CALLED_AGAIN, maxRangesPerPass=launches, numNestingLevels=1,
            minNestingLevel=1, passIndex=0, targetNestingLevel=0,
        ))  # fmt: skip
        for _ in range(plan.passes):
            before()
            library.call(structures.Start(profiler=profiler))
            call()
            if library.call(structures.Stop(profiler=profiler)).isAllPassSubmitted:
                break
        dropped = library.call(structures.DecodeData(profiler=profiler)).numOfRangeDropped
        info = library.call(structures.GetCounterDataInfo(counterData=place, counterDataSize=len(data)))
    counted = info.numTotalRanges + dropped
    if counted != launches:
        raise CuptiError(f"{launches} launches were seen and {counted} counted: count it with ncu")
    with planning.host(library, chip) as object_:
        return [planning.values(library, object_, plan.counters, data, index) for index in range(launches)]


@contextlib.contextmanager
def _enabled(library: Library) -> Iterator[int]:
    """The Range Profiler on the current CUDA context."""
    made = library.call(structures.Enable(context=_context()))
    try:
        yield made.profiler
    finally:
        # It fails too after a failed launch, whose error must not be hidden.
        with contextlib.suppress(CuptiError):
            library.call(structures.Disable(profiler=made.profiler))


def _context() -> int:
    """The current CUDA context. Raises CuptiError where there is none."""
    found = ctypes.c_void_p()
    code = ctypes.CDLL("libcuda.so.1").cuCtxGetCurrent(ctypes.byref(found))
    if code or not found.value:
        raise CuptiError(f"there is no CUDA context to count in (cuCtxGetCurrent gave {code})")
    return found.value
