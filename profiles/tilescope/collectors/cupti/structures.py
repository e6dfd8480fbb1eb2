"""Parameter structs of CUPTI's functions, as its headers declare them (CUPTI 12.8 to 13). Pure."""

from __future__ import annotations

import ctypes
from typing import Any, ClassVar

_SIZE, _POINTER, _TEXT = ctypes.c_size_t, ctypes.c_void_p, ctypes.c_char_p
_TEXTS = ctypes.POINTER(ctypes.c_char_p)
_DOUBLES = ctypes.POINTER(ctypes.c_double)


class Parameters(ctypes.Structure):
    """The parameters and results of one function. ``function`` is its name in the library.

    Every struct begins with its size and a reserved pointer. The size ends with the last member, without padding: CUPTI recognises
    the version of the struct by it.
    """

    function: ClassVar[str]

    def __init__(self, **values: Any) -> None:
        super().__init__(structSize=self.size(), **values)

    @classmethod
    def size(cls) -> int:
        """The struct's size in bytes, as CUPTI defines it."""
        last: Any = getattr(cls, cls._fields_[-1][0])
        return int(last.offset + last.size)


_HEAD = (("structSize", _SIZE), ("reserved", _POINTER))


def parameters(function: str, **members: Any) -> type[Parameters]:
    """The parameter struct of a function. ``members`` maps names to the header's types."""
    return type(function, (Parameters,), {"function": function, "_fields_": (*_HEAD, *members.items())})


#: Starts the profiler in this process.
Initialize = parameters("cuptiProfilerInitialize")
#: The chip's name, ``GH100``, by CUDA's number of the device.
GetChipName = parameters("cuptiDeviceGetChipName", deviceIndex=_SIZE, chipName=_TEXT)
#: Makes the object that plans and evaluates metrics of a chip.
HostInitialize = parameters(
    "cuptiProfilerHostInitialize", profilerType=ctypes.c_int, chipName=_TEXT, counterAvailabilityImage=_POINTER,
    host=_POINTER,
)  # fmt: skip
#: Frees that object.
HostDeinitialize = parameters("cuptiProfilerHostDeinitialize", host=_POINTER)
#: Adds metrics to what the object plans.
ConfigAddMetrics = parameters("cuptiProfilerHostConfigAddMetrics", host=_POINTER, metricNames=_TEXTS, numMetrics=_SIZE)
#: Bytes of the plan.
GetConfigImageSize = parameters("cuptiProfilerHostGetConfigImageSize", host=_POINTER, configImageSize=_SIZE)
#: The plan.
GetConfigImage = parameters(
    "cuptiProfilerHostGetConfigImage", host=_POINTER, configImageSize=_SIZE, configImage=_POINTER,
)  # fmt: skip
#: How often the launches have to run for a plan.
GetNumOfPasses = parameters(
    "cuptiProfilerHostGetNumOfPasses", configImageSize=_SIZE, configImage=_POINTER, numOfPasses=_SIZE,
)  # fmt: skip
#: Values of metrics in one range.
Evaluate = parameters(
    "cuptiProfilerHostEvaluateToGpuValues", host=_POINTER, counterData=_POINTER, counterDataSize=_SIZE,
    rangeIndex=_SIZE, metricNames=_TEXTS, numMetrics=_SIZE, values=_DOUBLES,
)  # fmt: skip
#: Makes the object that counts in a CUDA context.
Enable = parameters("cuptiRangeProfilerEnable", context=_POINTER, profiler=_POINTER)
#: Frees that object.
Disable = parameters("cuptiRangeProfilerDisable", profiler=_POINTER)
#: Bytes that the counts of so many ranges take.
GetCounterDataSize = parameters(
    "cuptiRangeProfilerGetCounterDataSize", profiler=_POINTER, metricNames=_TEXTS, numMetrics=_SIZE,
    maxNumOfRanges=_SIZE, maxNumRangeTreeNodes=ctypes.c_uint32, counterDataSize=_SIZE,
)  # fmt: skip
#: Prepares memory for them.
CounterDataInitialize = parameters(
    "cuptiRangeProfilerCounterDataImageInitialize", profiler=_POINTER, counterDataSize=_SIZE, counterData=_POINTER,
)  # fmt: skip
#: Says what is counted, where to, and what a range is.
SetConfig = parameters(
    "cuptiRangeProfilerSetConfig", profiler=_POINTER, configSize=_SIZE, config=_POINTER, counterDataSize=_SIZE,
    counterData=_POINTER, range=ctypes.c_int, replayMode=ctypes.c_int, maxRangesPerPass=_SIZE,
    numNestingLevels=ctypes.c_uint16, minNestingLevel=ctypes.c_uint16, passIndex=_SIZE,
    targetNestingLevel=ctypes.c_uint16,
)  # fmt: skip
#: Begins a pass.
Start = parameters("cuptiRangeProfilerStart", profiler=_POINTER)
#: Ends a pass, and says whether it was the last.
Stop = parameters(
    "cuptiRangeProfilerStop", profiler=_POINTER, passIndex=_SIZE, targetNestingLevel=_SIZE,
    isAllPassSubmitted=ctypes.c_uint8,
)  # fmt: skip
#: Writes the counts to where ``SetConfig`` said.
DecodeData = parameters("cuptiRangeProfilerDecodeData", profiler=_POINTER, numOfRangeDropped=_SIZE)
#: How many ranges were counted.
GetCounterDataInfo = parameters(
    "cuptiRangeProfilerGetCounterDataInfo", counterData=_POINTER, counterDataSize=_SIZE, numTotalRanges=_SIZE,
)  # fmt: skip


class CallbackData(ctypes.Structure):
    """The first members of ``CUpti_CallbackData``, the data of a callback on a driver's function."""

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
