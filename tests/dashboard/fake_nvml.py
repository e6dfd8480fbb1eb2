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


globals().update(
    nvmlSystemGetDriverVersion=lambda: "0.0", nvmlDeviceGetCount=lambda: 2,
    nvmlDeviceGetHandleByIndex=lambda index: index,
    nvmlDeviceGetName=lambda handle: f"Synthetic GPU {'AB'[handle]} <b>",
    nvmlDeviceGetUUID=lambda handle: f"GPU-{handle}", nvmlDeviceGetCudaComputeCapability=lambda handle: (9, 0),
    nvmlDeviceGetNumGpuCores=lambda handle: 12800,
    nvmlDeviceGetMemoryInfo=lambda handle: SimpleNamespace(total=100_000_000_000, used=int(4e10 + 3e10 * _wave())),
    nvmlDeviceGetMaxClockInfo=lambda handle, clock: _told(handle, 2000),
    nvmlDeviceGetUtilizationRates=lambda handle: SimpleNamespace(gpu=int(40 + 60 * _wave()), memory=50),
    nvmlDeviceGetClockInfo=lambda handle, clock: _told(handle, 1500 + 300 * (clock == NVML_CLOCK_MEM)),
    nvmlDeviceGetPowerUsage=lambda handle: int(1000 * (500 + 190 * _wave())),
    nvmlDeviceGetEnforcedPowerLimit=lambda handle: _told(handle, 700_000),
    nvmlDeviceGetTemperature=lambda handle, sensor: 61 + handle,
    nvmlDeviceGetPcieThroughput=lambda handle, counter: _told(handle, 1_000_000 * (counter + 1)),
    nvmlDeviceGetCurrentClocksThrottleReasons=lambda handle: _told(handle, 0x4),
)  # fmt: skip
