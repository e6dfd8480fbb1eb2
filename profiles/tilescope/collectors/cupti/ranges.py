"""Counts every launch of a call with CUPTI's Range Profiler, and names it by CUPTI's callbacks, in this process. Worker-side."""

from __future__ import annotations

import contextlib
import ctypes
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from tilescope.collectors.cupti import planning, structures
from tilescope.collectors.cupti.library import CuptiError, Library
from tilescope.collectors.cupti.planning import Plan
from tilescope.collectors.cupti.structures import CallbackData

#: One range for each launch (``CUPTI_AutoRange``); the caller repeats the call for each pass (``CUPTI_UserReplay``).
EACH_LAUNCH, CALLED_AGAIN = 1, 3
_DRIVER, _ENTER = 1, 0
#: Callback ids of the driver's launch functions (``cupti_driver_cbid.h``): cuLaunchKernel, cuLaunchCooperativeKernel and
#: cuLaunchKernelEx, each also for per-thread default streams.
LAUNCHES = (307, 442, 477, 478, 652, 653)
#: Callback ids of cuGraphLaunch, and the name of a graph, whose kernels are one range.
GRAPHS, GRAPH = (514, 515), "a CUDA graph"
_CALLBACK = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_int, ctypes.c_uint32, ctypes.POINTER(CallbackData))


def count(
    library: Library, chip: str, plan: Plan, *, launches: int, call: Callable[[], Any], before: Callable[[], Any]
) -> list[Mapping[str, float]]:
    """Counters of each launch of ``call``, in order. ``before`` is called ahead of each pass and is not counted.

    ``call`` must return when its ``launches`` launches have ended. Raises CuptiError for another number of launches.
    """
    with Counting(library, chip, plan, launches) as counting:
        more = True
        while more:
            before()
            counting.begin()
            call()
            more = counting.end()
    return counting.values


class Counting(contextlib.AbstractContextManager["Counting"]):
    """Counts the launches between ``begin`` and ``end``, which are called once for each pass of the plan.

    Once it is left, ``values`` has the counters of each launch, in order. Leaving raises CuptiError where their number is not ``launches``.
    """

    def __init__(self, library: Library, chip: str, plan: Plan, launches: int) -> None:
        self._library, self._chip, self._plan, self._launches = library, chip, plan, launches
        self._passes = 0
        self.values: list[Mapping[str, float]] = []

    def __enter__(self) -> Counting:
        library, plan, launches = self._library, self._plan, self._launches
        with contextlib.ExitStack() as stack:
            profiler = self._profiler = stack.enter_context(_enabled(library))
            names = structures.texts(plan.counters)
            size = structures.GetCounterDataSize(
                profiler=profiler, metricNames=names, numMetrics=len(names), maxNumOfRanges=launches,
                maxNumRangeTreeNodes=launches,
            )  # fmt: skip
            data = self._data = ctypes.create_string_buffer(library.call(size).counterDataSize)
            place = self._place = ctypes.addressof(data)
            library.call(
                structures.CounterDataInitialize(profiler=profiler, counterDataSize=len(data), counterData=place)
            )
            image = self._image = ctypes.create_string_buffer(plan.image, len(plan.image))
            library.call(structures.SetConfig(
                profiler=profiler, configSize=len(image), config=ctypes.addressof(image), counterDataSize=len(data),
                counterData=place, range=EACH_LAUNCH, replayMode=CALLED_AGAIN, maxRangesPerPass=launches, numNestingLevels=1,
                minNestingLevel=1, passIndex=0, targetNestingLevel=0,
            ))  # fmt: skip
            self._stack = stack.pop_all()
        return self

    def begin(self) -> None:
        """Begins a pass."""
        self._library.call(structures.Start(profiler=self._profiler))

    def end(self) -> bool:
        """Ends a pass. Returns whether another one is needed."""
        self._passes += 1
        done = self._library.call(structures.Stop(profiler=self._profiler)).isAllPassSubmitted
        return not done and self._passes < self._plan.passes

    def __exit__(self, kind: object, *raised: object) -> None:
        with self._stack:
            if kind is not None:
                return
            dropped = self._library.call(structures.DecodeData(profiler=self._profiler)).numOfRangeDropped
            info = self._library.call(
                structures.GetCounterDataInfo(counterData=self._place, counterDataSize=len(self._data))
            )
        counted = info.numTotalRanges + dropped
        if counted != self._launches:
            raise CuptiError(f"{self._launches} launches were seen and {counted} counted: count it with ncu")
        with planning.host(self._library, self._chip) as object_:
            self.values = [
                planning.values(self._library, object_, self._plan.counters, self._data, index)
                for index in range(self._launches)
            ]


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


@contextlib.contextmanager
def seen(library: Library) -> Iterator[list[str]]:
    """While active, notes every launch of this process. Yields the functions' names so far, ``GRAPH`` for a graph.

    Raises Refused beside another profiler.
    """
    names: list[str] = []

    def note(_: object, domain: int, number: int, told: ctypes._Pointer[CallbackData]) -> None:
        if told.contents.callbackSite == _ENTER:
            names.append(GRAPH if number in GRAPHS else demangled(told.contents.symbolName or b""))

    callback, subscriber, handle = _CALLBACK(note), ctypes.c_void_p(), library.handle
    library.check(handle.cuptiSubscribe(ctypes.byref(subscriber), callback, None), "cuptiSubscribe")
    try:
        for number in (*LAUNCHES, *GRAPHS):
            library.check(handle.cuptiEnableCallback(1, subscriber, _DRIVER, number), "cuptiEnableCallback")
        yield names
    finally:
        handle.cuptiUnsubscribe(subscriber)


def demangled(symbol: bytes) -> str:
    """The demangled C++ name; another symbol, as of a Triton kernel, unchanged."""
    if not symbol.startswith(b"_Z"):
        return symbol.decode(errors="replace")
    status, text = ctypes.c_int(), None
    with contextlib.suppress(OSError, AttributeError):
        function = ctypes.CDLL("libstdc++.so.6")["__cxa_demangle"]
        function.restype = ctypes.c_void_p
        if place := function(symbol, None, None, ctypes.byref(status)):
            text = ctypes.string_at(place)
            free = ctypes.CDLL(None)["free"]
            free.argtypes = (ctypes.c_void_p,)
            free(place)
    return (text or symbol).decode(errors="replace")
