"""NVML's readings of every GPU here, once a second while there are watchers. One sampler serves the whole process."""

from __future__ import annotations

import functools
import logging
import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pynvml

LOG = logging.getLogger(__name__)

#: Seconds between two samples, and the number that is kept.
PERIOD, KEPT = 1.0, 300

#: Reasons why a clock is below its maximum, by NVML's bit (NVML API Reference, "clocks event reasons").
REASONS = {
    0x001: "idle", 0x002: "set by the user", 0x004: "power cap", 0x008: "hardware slowdown",
    0x010: "sync boost with another GPU", 0x020: "software thermal slowdown", 0x040: "hardware thermal slowdown",
    0x080: "power brake from outside", 0x100: "display clock setting",
}  # fmt: skip
_IDLE = 0x001


class TelemetryError(RuntimeError):
    """NVML cannot be read here. The message has the reason."""


@dataclass(frozen=True)
class Gpu:
    """A GPU as NVML lists it. An unknown value is None; clocks are in Hz, memory in bytes."""

    index: int
    name: str
    uuid: str = ""
    memory: float | None = None
    sm_clock_limit: float | None = None

    @property
    def label(self) -> str:
        """Its number and its name."""
        return f"{self.index} · {self.name}"


@dataclass(frozen=True)
class Sample:
    """One reading of one GPU, in base units; an unknown value is None, never 0.

    ``time`` is Unix time in seconds, ``utilization`` the share of the last period in which a kernel ran. Clocks are in Hz,
    power in W, temperature in °C, PCIe in byte/second sent and received by the GPU. ``reasons`` are NVML's bits (``held``).
    """

    time: float
    utilization: float | None = None
    memory_used: float | None = None
    sm_clock: float | None = None
    memory_clock: float | None = None
    power: float | None = None
    power_limit: float | None = None
    temperature: float | None = None
    pcie_sent: float | None = None
    pcie_received: float | None = None
    reasons: int | None = None


def held(reasons: int | None) -> str:
    """NVML's reason bits as text; ``not held`` where there are none. An unknown bit is given as a number."""
    if reasons is None:
        return "–"
    bits = [1 << place for place in range(reasons.bit_length()) if reasons >> place & 1]
    return ", ".join(REASONS.get(bit, f"reason {bit:#x}") for bit in bits) or "not held"


def slowed(reasons: int | None) -> bool:
    """Whether anything other than idleness lowers the clock."""
    return bool((reasons or 0) & ~_IDLE)


class Reader:
    """NVML's readings. ``nvml`` is the module ``pynvml``, or a fake of it. Raises TelemetryError where it has no GPU."""

    def __init__(self, nvml: Any) -> None:
        self._nvml = nvml
        try:
            nvml.nvmlInit()
            self._handles = [nvml.nvmlDeviceGetHandleByIndex(i) for i in range(nvml.nvmlDeviceGetCount())]
        except nvml.NVMLError as error:
            raise TelemetryError(f"no NVIDIA driver answers (NVML: {error})") from error
        if not self._handles:
            raise TelemetryError("the NVIDIA driver lists no GPU")
        self.gpus = [self._describe(index, handle) for index, handle in enumerate(self._handles)]

    def close(self) -> None:
        """Shuts NVML down."""
        self._nvml.nvmlShutdown()

    def read(self, index: int, now: float) -> Sample:
        """One GPU's present readings (PCIe counters take some 20 ms each). Raises TelemetryError where there are none."""
        nvml, handle = self._nvml, self._handles[index]
        ask = functools.partial(self._ask, handle)
        used, memory = ask(nvml.nvmlDeviceGetUtilizationRates), ask(nvml.nvmlDeviceGetMemoryInfo)
        found = {
            "utilization": used and used.gpu / 100,
            "memory_used": memory and float(memory.used),
            "sm_clock": _times(1e6, ask(nvml.nvmlDeviceGetClockInfo, nvml.NVML_CLOCK_SM)),
            "memory_clock": _times(1e6, ask(nvml.nvmlDeviceGetClockInfo, nvml.NVML_CLOCK_MEM)),
            "power": _times(1e-3, ask(nvml.nvmlDeviceGetPowerUsage)),
            "power_limit": _times(1e-3, ask(nvml.nvmlDeviceGetEnforcedPowerLimit)),
            "temperature": _times(1, ask(nvml.nvmlDeviceGetTemperature, nvml.NVML_TEMPERATURE_GPU)),
            # NVML gives these in KiB a second.
            "pcie_sent": _times(1024, ask(nvml.nvmlDeviceGetPcieThroughput, nvml.NVML_PCIE_UTIL_TX_BYTES)),
            "pcie_received": _times(1024, ask(nvml.nvmlDeviceGetPcieThroughput, nvml.NVML_PCIE_UTIL_RX_BYTES)),
            "reasons": ask(nvml.nvmlDeviceGetCurrentClocksThrottleReasons),
        }
        if all(value is None for value in found.values()):
            raise TelemetryError(f"GPU {index} does not answer any more: see nvidia-smi")
        return Sample(now, **found)

    def _describe(self, index: int, handle: Any) -> Gpu:
        nvml, ask = self._nvml, functools.partial(self._ask, handle)
        memory = ask(nvml.nvmlDeviceGetMemoryInfo)
        clock = _times(1e6, ask(nvml.nvmlDeviceGetMaxClockInfo, nvml.NVML_CLOCK_SM))
        name, uuid = str(ask(nvml.nvmlDeviceGetName) or f"GPU {index}"), str(ask(nvml.nvmlDeviceGetUUID) or "")
        return Gpu(index, name, uuid, memory and float(memory.total), clock)

    def _ask(self, handle: Any, question: Callable[..., Any], *about: Any) -> Any:
        try:
            return question(handle, *about)
        except self._nvml.NVMLError:
            # Not supported, not permitted, or partitioned.
            return None


def _times(factor: float, value: Any) -> float | None:
    return None if value is None else float(value) * factor


class Sampler:
    """Keeps the last ``KEPT`` samples of every GPU, taken by a thread that ends with the last watcher."""

    def __init__(self, nvml: Any = pynvml, period: float = PERIOD) -> None:
        self._nvml, self._period = nvml, period
        self._lock, self._watchers = threading.Lock(), set[object]()
        self._stop: threading.Event | None = None
        self._rings: dict[int, deque[Sample]] = {}
        self.gpus: list[Gpu] = []
        #: The reason why there are no readings, or empty.
        self.error = ""

    @property
    def running(self) -> bool:
        """Whether there are watchers."""
        return self._stop is not None

    def samples(self, index: int, after: float = 0.0) -> list[Sample]:
        """Samples of a GPU later than ``after`` (Unix time in seconds), the oldest first."""
        return [sample for sample in tuple(self._rings.get(index, ())) if sample.time > after]

    def watch(self) -> Callable[[], None]:
        """Adds a watcher; returns a function that removes it, which may be called again."""
        watcher = object()
        with self._lock:
            self._watchers.add(watcher)
            if len(self._watchers) == 1:
                self._start()
        return functools.partial(self._leave, watcher)

    def _leave(self, watcher: object) -> None:
        with self._lock:
            self._watchers.discard(watcher)
            if not self._watchers and self._stop is not None:
                self._stop.set()
                self._stop = None

    def _start(self) -> None:
        try:
            reader = Reader(self._nvml)
        except TelemetryError as error:
            self.error = str(error)
            return
        self.error, self.gpus = "", reader.gpus
        # Without samples from before a pause, which a figure would join to these by a line.
        self._rings = {gpu.index: deque(maxlen=KEPT) for gpu in reader.gpus}
        self._stop = threading.Event()
        arguments = (reader, self._rings, self._stop)
        threading.Thread(target=self._sample, args=arguments, name="tilescope-telemetry", daemon=True).start()

    def _sample(self, reader: Reader, rings: dict[int, deque[Sample]], stop: threading.Event) -> None:
        try:
            while not stop.is_set():
                now = time.time()
                for gpu in reader.gpus:
                    rings[gpu.index].append(reader.read(gpu.index, now))
                stop.wait(max(0.0, self._period - (time.time() - now)))
        except TelemetryError as error:
            LOG.warning("telemetry ended: %s", error)
            self.error = str(error)
        finally:
            reader.close()
