"""The sampler with an NVML that stands in for a driver: what is absent stays absent, and it rests when nobody looks."""

import threading
import time
from collections.abc import Callable
from types import ModuleType
from typing import Any

import pynvml
import pytest
from tilescope_dashboard.data.telemetry import REASONS, Reader, Sampler, held, slowed

THREAD = "tilescope-telemetry"


def until(true: Callable[[], Any]) -> None:
    deadline = time.monotonic() + 120
    while not true():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def sampling() -> int:
    return sum(thread.name == THREAD for thread in threading.enumerate())


def test_readings_are_in_base_units(nvml: ModuleType) -> None:
    reader = Reader(nvml)
    assert [(gpu.index, gpu.uuid, gpu.memory, gpu.sm_clock_limit) for gpu in reader.gpus] == [
        (0, "GPU-0", 1e11, 2e9),
        (1, "GPU-1", 1e11, None),
    ]
    sample = reader.read(0, 12.5)
    assert (sample.time, sample.sm_clock, sample.memory_clock, sample.power_limit) == (12.5, 1.5e9, 1.8e9, 700.0)
    assert (sample.temperature, sample.pcie_sent, sample.pcie_received) == (61.0, 1.024e9, 2.048e9)
    assert 0.4 <= sample.utilization <= 1
    assert 310 <= sample.power <= 690
    reader.close()
    assert nvml.opened.count == 0


def test_what_the_driver_does_not_tell_is_absent_and_not_zero(nvml: ModuleType) -> None:
    sample = Reader(nvml).read(1, 0.0)
    assert (sample.sm_clock, sample.power_limit, sample.pcie_sent, sample.reasons) == (None, None, None, None)
    assert sample.temperature == 62.0


@pytest.mark.parametrize(
    ("reasons", "said", "down"),
    [(None, "–", False), (0, "not held", False), (1, "idle", False), (4, "power cap", True),
     (0x41, "idle, hardware thermal slowdown", True), (1 << 20, "reason 0x100000", True)],
)  # fmt: skip
def test_reasons_in_words(reasons: int | None, said: str, down: bool) -> None:
    assert held(reasons) == said
    assert slowed(reasons) == down


def test_every_reason_bit_is_nvmls() -> None:
    assert max(REASONS) == pynvml.nvmlClocksEventReasonDisplayClockSetting
    assert sum(REASONS) == pynvml.nvmlClocksEventReasonAll


def test_it_samples_while_somebody_watches_and_not_after(nvml: ModuleType) -> None:
    sampler = Sampler(nvml, period=0.01)
    assert not sampler.running and sampling() == 0
    first, second = sampler.watch(), sampler.watch()
    until(lambda: len(sampler.samples(1)) > 3)
    assert sampling() == 1
    known = sampler.samples(0)
    assert [sample.time for sample in known] == sorted(sample.time for sample in known)
    assert all(sample.time > known[1].time for sample in sampler.samples(0, known[1].time))
    first()
    first()  # once more does nothing
    assert sampler.running
    second()
    until(lambda: sampling() == 0)
    assert nvml.opened.count == 0
    count = len(sampler.samples(0))
    time.sleep(0.05)
    assert len(sampler.samples(0)) == count


def test_a_pause_leaves_no_line_across_it(nvml: ModuleType) -> None:
    sampler = Sampler(nvml, period=0.01)
    leave = sampler.watch()
    until(lambda: sampler.samples(0))
    leave()
    until(lambda: sampling() == 0)
    before = sampler.samples(0)[-1].time
    leave = sampler.watch()
    until(lambda: sampler.samples(0))
    assert sampler.samples(0)[0].time > before
    leave()
    until(lambda: sampling() == 0)


def test_without_a_driver_or_a_gpu_it_says_why(nvml: ModuleType) -> None:
    nvml.nvmlDeviceGetCount = lambda: 0
    sampler = Sampler(nvml)
    sampler.watch()()
    assert sampler.error == "the NVIDIA driver lists no GPU"

    def fail() -> None:
        raise nvml.NVMLError("Driver Not Loaded")

    nvml.nvmlInit = fail
    sampler.watch()()
    assert sampler.error == "no NVIDIA driver answers (NVML: Driver Not Loaded)"


def test_gpu_off_the_bus_ends_the_sampling_in_words(nvml: ModuleType) -> None:
    sampler = Sampler(nvml, period=0.01)
    leave = sampler.watch()
    until(lambda: sampler.samples(1))

    def lost(*_: object) -> None:
        raise nvml.NVMLError("GPU is lost")

    for name in dir(nvml):
        if name.startswith("nvmlDeviceGet"):
            vars(nvml)[name] = lost
    until(lambda: sampler.error)
    assert "does not answer any more" in sampler.error
    until(lambda: sampling() == 0)
    leave()
