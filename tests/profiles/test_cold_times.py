"""Samples of a race are the GPU's time and not the CPU's, on a simulated GPU that runs queued work in order."""

import pytest
import torch
from tilescope.execution import cold
from tilescope.tuning import cold_times


class Machine:
    """A CPU whose clock is ``now``, and a GPU that is busy until ``free``, both in seconds."""

    def __init__(self, cpu, gpu):
        self.now, self.free, self.cpu, self.gpu, self.calls = 0.0, 0.0, cpu, gpu, 0

    def queue(self, cpu, gpu):
        """The moment at which the GPU is done with what the CPU takes so long to queue."""
        self.now += cpu
        self.free = max(self.free, self.now) + gpu
        return self.free

    def call(self):
        self.calls += 1
        self.queue(self.cpu, self.gpu)

    def wait(self):
        self.now = max(self.now, self.free)


@pytest.fixture
def machine(monkeypatch):
    made: list[Machine] = []

    def make(cpu, gpu):
        there = Machine(cpu, gpu)
        made.append(there)

        class Event:
            def __init__(self, enable_timing):
                self.at = 0.0

            def record(self):
                self.at = there.queue(1e-6, 0.0)

            def query(self):
                return self.at <= there.now

            def elapsed_time(self, end):
                return (end.at - self.at) * 1e3

        monkeypatch.setattr(cold, "Flush", lambda: lambda: there.queue(5e-6, 50e-6))
        monkeypatch.setattr(torch.cuda, "Event", Event)
        monkeypatch.setattr(torch.cuda, "_sleep", lambda cycles: there.queue(5e-6, cycles / 2e9))
        monkeypatch.setattr(torch.cuda, "synchronize", there.wait)
        monkeypatch.setattr(cold_times.time, "perf_counter", lambda: there.now)
        return there

    return make


def test_a_quick_call_is_timed_once(machine):
    there = machine(cpu=20e-6, gpu=60e-6)
    assert cold_times.cold_times(there.call, 5) == pytest.approx([60e-6] * 5)
    assert there.calls == 6, "the first does not count"


def test_a_call_that_the_cpu_queues_slowly_takes_the_gpu_s_time(machine):
    there = machine(cpu=300e-6, gpu=20e-6)
    assert cold_times.cold_times(there.call, 5) == pytest.approx([20e-6] * 5)
    assert there.calls <= 11


def test_what_waits_for_the_gpu_is_told_as_it_came(machine):
    there = machine(cpu=10e-6, gpu=40e-6)

    def call():
        there.call()
        there.wait()

    times = cold_times.cold_times(call, 4)
    assert len(times) == 4
    assert min(times) >= 40e-6
    assert there.calls == 9, "one wait is enough to know"
