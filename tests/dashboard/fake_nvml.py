"""Stands for the module ``pynvml`` in tests: two GPUs that do not exist, one of which tells less. Nothing was measured."""

import itertools
import math
from types import SimpleNamespace
from typing import Any

NVML_CLOCK_SM, NVML_CLOCK_MEM, NVML_TEMPERATURE_GPU = 1, 2, 0
NVML_PCIE_UTIL_TX_BYTES, NVML_PCIE_UTIL_RX_BYTES = 0, 1
#: Starts less stops, so that a test sees whether NVML was left.
opened = SimpleNamespace(count=0)
_steps = itertools.count()


class NVMLError(Exception):
    """As in the module."""


def nvmlInit() -> None:
    opened.count += 1


def nvmlShutdown() -> None:
    opened.count -= 1


def _told(handle: int, value: Any) -> Any:
    """The second GPU's driver supports little."""
    if handle == 1:
        raise NVMLError("Not Supported")
    return value


def _wave() -> float:
    return 0.5 + 0.5 * math.sin(next(_steps) / 20)


def nvmlSystemGetDriverVersion() -> str:
    return "0.0"


def nvmlDeviceGetCount() -> int:
    return 2


def nvmlDeviceGetHandleByIndex(index: int) -> int:
    return index


def nvmlDeviceGetName(handle: int) -> Any:
    return f"Synthetic GPU {'AB'[handle]} <b>"


def nvmlDeviceGetUUID(handle: int) -> Any:
    return f"GPU-{handle}"


def nvmlDeviceGetCudaComputeCapability(handle: int) -> Any:
    return (9, 0)


def nvmlDeviceGetNumGpuCores(handle: int) -> Any:
    return 12800


def nvmlDeviceGetMemoryInfo(handle: int) -> Any:
    return SimpleNamespace(total=100_000_000_000, used=int(4e10 + 3e10 * _wave()))


def nvmlDeviceGetMaxClockInfo(handle: int, clock: int) -> Any:
    return _told(handle, 2000)


def nvmlDeviceGetUtilizationRates(handle: int) -> Any:
    return SimpleNamespace(gpu=int(40 + 60 * _wave()), memory=50)


def nvmlDeviceGetClockInfo(handle: int, clock: int) -> Any:
    return _told(handle, 1500 + 300 * (clock == NVML_CLOCK_MEM))


def nvmlDeviceGetPowerUsage(handle: int) -> Any:
    return int(1000 * (500 + 190 * _wave()))


def nvmlDeviceGetEnforcedPowerLimit(handle: int) -> Any:
    return _told(handle, 700_000)


def nvmlDeviceGetTemperature(handle: int, sensor: int) -> Any:
    return 61 + handle


def nvmlDeviceGetPcieThroughput(handle: int, counter: int) -> Any:
    return _told(handle, 1_000_000 * (counter + 1))


def nvmlDeviceGetCurrentClocksThrottleReasons(handle: int) -> Any:
    return _told(handle, 0x4)
