"""Parameters of the CUPTI functions that are called, as its headers declare them (CUPTI 12.8 to 13). Pure."""

from __future__ import annotations

import ctypes
from typing import Any, ClassVar

_SIZE, _POINTER, _TEXT = ctypes.c_size_t, ctypes.c_void_p, ctypes.c_char_p
_TEXTS = ctypes.POINTER(ctypes.c_char_p)
_DOUBLES = ctypes.POINTER(ctypes.c_double)


class Parameters(ctypes.Structure):
    """What one function is given and gives back. ``function`` is its name in the library.

    Every struct begins with its size and a reserved pointer. The size is that up to the end of the last member, without what
    a compiler adds behind it: by it CUPTI tells which version of the struct it has.
    """

    function: ClassVar[str]

    def __init__(self, **values: Any) -> None:
        super().__init__(structSize=self.size(), **values)

    @classmethod
    def size(cls) -> int:
        """Bytes that the header calls the struct's size."""
        last: Any = getattr(cls, cls._fields_[-1][0])
        return int(last.offset + last.size)


_HEAD = (("structSize", _SIZE), ("reserved", _POINTER))


class Initialize(Parameters):
    """Starts the profiler in this process."""

    function = "cuptiProfilerInitialize"
    _fields_ = _HEAD


class GetChipName(Parameters):
    """The chip's name, ``GH100``, by CUDA's number of the device."""

    function = "cuptiDeviceGetChipName"
    _fields_ = (*_HEAD, ("deviceIndex", _SIZE), ("chipName", _TEXT))


class HostInitialize(Parameters):
    """Makes the object that plans and evaluates metrics of a chip."""

    function = "cuptiProfilerHostInitialize"
    _fields_ = (
        *_HEAD,
        ("profilerType", ctypes.c_int),
        ("chipName", _TEXT),
        ("counterAvailabilityImage", _POINTER),
        ("host", _POINTER),
    )


class HostDeinitialize(Parameters):
    """Frees that object."""

    function = "cuptiProfilerHostDeinitialize"
    _fields_ = (*_HEAD, ("host", _POINTER))


class ConfigAddMetrics(Parameters):
    """Adds metrics to what the object plans."""

    function = "cuptiProfilerHostConfigAddMetrics"
    _fields_ = (*_HEAD, ("host", _POINTER), ("metricNames", _TEXTS), ("numMetrics", _SIZE))


class GetConfigImageSize(Parameters):
    """Bytes of the plan."""

    function = "cuptiProfilerHostGetConfigImageSize"
    _fields_ = (*_HEAD, ("host", _POINTER), ("configImageSize", _SIZE))


class GetConfigImage(Parameters):
    """The plan."""

    function = "cuptiProfilerHostGetConfigImage"
    _fields_ = (*_HEAD, ("host", _POINTER), ("configImageSize", _SIZE), ("configImage", _POINTER))


class GetNumOfPasses(Parameters):
    """How often the launches have to run for a plan."""

    function = "cuptiProfilerHostGetNumOfPasses"
    _fields_ = (*_HEAD, ("configImageSize", _SIZE), ("configImage", _POINTER), ("numOfPasses", _SIZE))


class Evaluate(Parameters):
    """Values of metrics in one range."""

    function = "cuptiProfilerHostEvaluateToGpuValues"
    _fields_ = (
        *_HEAD,
        ("host", _POINTER),
        ("counterData", _POINTER),
        ("counterDataSize", _SIZE),
        ("rangeIndex", _SIZE),
        ("metricNames", _TEXTS),
        ("numMetrics", _SIZE),
        ("values", _DOUBLES),
    )


class Enable(Parameters):
    """Makes the object that counts in a CUDA context."""

    function = "cuptiRangeProfilerEnable"
    _fields_ = (*_HEAD, ("context", _POINTER), ("profiler", _POINTER))


class Disable(Parameters):
    """Frees that object."""

    function = "cuptiRangeProfilerDisable"
    _fields_ = (*_HEAD, ("profiler", _POINTER))


class GetCounterDataSize(Parameters):
    """Bytes that the counts of so many ranges take."""

    function = "cuptiRangeProfilerGetCounterDataSize"
    _fields_ = (
        *_HEAD,
        ("profiler", _POINTER),
        ("metricNames", _TEXTS),
        ("numMetrics", _SIZE),
        ("maxNumOfRanges", _SIZE),
        ("maxNumRangeTreeNodes", ctypes.c_uint32),
        ("counterDataSize", _SIZE),
    )


class CounterDataInitialize(Parameters):
    """Prepares memory for them."""

    function = "cuptiRangeProfilerCounterDataImageInitialize"
    _fields_ = (*_HEAD, ("profiler", _POINTER), ("counterDataSize", _SIZE), ("counterData", _POINTER))


class SetConfig(Parameters):
    """Says what is counted, where to, and what a range is."""

    function = "cuptiRangeProfilerSetConfig"
    _fields_ = (
        *_HEAD,
        ("profiler", _POINTER),
        ("configSize", _SIZE),
        ("config", _POINTER),
        ("counterDataSize", _SIZE),
        ("counterData", _POINTER),
        ("range", ctypes.c_int),
        ("replayMode", ctypes.c_int),
        ("maxRangesPerPass", _SIZE),
        ("numNestingLevels", ctypes.c_uint16),
        ("minNestingLevel", ctypes.c_uint16),
        ("passIndex", _SIZE),
        ("targetNestingLevel", ctypes.c_uint16),
    )


class Start(Parameters):
    """Begins a pass."""

    function = "cuptiRangeProfilerStart"
    _fields_ = (*_HEAD, ("profiler", _POINTER))


class Stop(Parameters):
    """Ends a pass, and says whether it was the last."""

    function = "cuptiRangeProfilerStop"
    _fields_ = (
        *_HEAD,
        ("profiler", _POINTER),
        ("passIndex", _SIZE),
        ("targetNestingLevel", _SIZE),
        ("isAllPassSubmitted", ctypes.c_uint8),
    )


class DecodeData(Parameters):
    """Writes the counts to where ``SetConfig`` said."""

    function = "cuptiRangeProfilerDecodeData"
    _fields_ = (*_HEAD, ("profiler", _POINTER), ("numOfRangeDropped", _SIZE))


class GetCounterDataInfo(Parameters):
    """How many ranges were counted."""

    function = "cuptiRangeProfilerGetCounterDataInfo"
    _fields_ = (*_HEAD, ("counterData", _POINTER), ("counterDataSize", _SIZE), ("numTotalRanges", _SIZE))


class CallbackData(ctypes.Structure):
    """What a callback around a driver's function is told (``CUpti_CallbackData``), as far as it is read."""

    _fields_ = (
        ("callbackSite", ctypes.c_int),
        ("functionName", _TEXT),
        ("functionParams", _POINTER),
        ("functionReturnValue", _POINTER),
        ("symbolName", _TEXT),
    )


def texts(names: Any) -> Any:
    """An array of C strings."""
    return (ctypes.c_char_p * len(names))(*(name.encode() for name in names))
