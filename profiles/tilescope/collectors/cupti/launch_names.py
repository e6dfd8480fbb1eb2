"""Names of the functions that a call launches, from CUPTI's callbacks on the driver's launch functions. Worker-side."""

from __future__ import annotations

import contextlib
import ctypes
from collections.abc import Iterator

from tilescope.collectors.cupti.library import Library
from tilescope.collectors.cupti.structures import CallbackData

_DRIVER, _ENTER = 1, 0
#: Callback ids of the driver's launch functions (``cupti_driver_cbid.h``): cuLaunchKernel, cuLaunchCooperativeKernel and
#: cuLaunchKernelEx, each also for per-thread default streams.
LAUNCHES = (307, 442, 477, 478, 652, 653)
#: Callback ids of cuGraphLaunch, and the name of a graph, whose kernels are one range.
GRAPHS, GRAPH = (514, 515), "a CUDA graph"
_CALLBACK = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_int, ctypes.c_uint32, ctypes.POINTER(CallbackData))


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
