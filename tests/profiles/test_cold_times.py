"""Samples of a race are the GPU's time and not the CPU's, on a simulated GPU that runs queued work in order."""

import pytest
from tilescope.execution import cold
from tilescope.tuning import cold_times, racing


class Machine:
    """A CPU that moves the clock, and a GPU that is busy until ``free``, in seconds."""

    def __init__(self, clock, cpu, gpu):
        self.clock, self.free, self.cpu, self.gpu, self.calls = clock, 0.0, cpu, gpu, 0

    def queue(self, cpu, gpu):
        """The moment at which the GPU is done with what the CPU takes so long to queue."""
        self.clock.now += cpu
        self.free = max(self.free, self.clock.now) + gpu
        return self.free

    def call(self):
        self.calls += 1
        self.queue(self.cpu, self.gpu)

    def wait(self):
        self.clock.now = max(self.clock.now, self.free)


@pytest.fixture
def machine(monkeypatch, cuda, clock):
    made: list[Machine] = []

    def make(cpu, gpu):
        there = Machine(clock, cpu, gpu)
        made.append(there)

        class Event:
            def __init__(self, enable_timing):
                self.at = 0.0

            def record(self):
                self.at = there.queue(1e-6, 0.0)

            def synchronize(self):
                clock.now = max(clock.now, self.at)

            def query(self):
                return self.at <= clock.now

            def elapsed_time(self, end):
                return (end.at - self.at) * 1e3

        class Flush:
            def __init__(self, rest):
                self.rest = rest

            def __call__(self):
                if self.rest:
                    cold.sleep(self.rest)
                there.queue(5e-6, 50e-6)

        monkeypatch.setattr(cold, "Flush", Flush)
        cuda({
            "Event": Event, "_sleep": lambda cycles: there.queue(5e-6, cycles / 2e9), "synchronize": there.wait
        })  # fmt: skip
        return there

    return make


@pytest.mark.parametrize(
    ("cpu", "gpu", "calls"), [(20e-6, 60e-6, 6), (300e-6, 20e-6, 11)], ids=["quick", "queued slowly"]
)
def test_call_takes_the_gpus_time_and_few_calls(machine, cpu, gpu, calls):
    there = machine(cpu=cpu, gpu=gpu)
    assert cold_times.cold_times(there.call, 5) == pytest.approx([gpu] * 5)
    assert there.calls <= calls, "the first does not count"


def test_what_waits_for_the_gpu_is_told_as_it_came(machine):
    there = machine(cpu=10e-6, gpu=40e-6)

    def call():
        there.call()
        there.wait()

    times = cold_times.cold_times(call, 4)
    assert len(times) == 4
    assert min(times) >= 40e-6
    assert there.calls == 9, "one wait is enough to know"


class Warm(Machine):
    """A GPU that is slower the more of the last 20 ms it was busy with calls."""

    def call(self) -> None:
        self.calls += 1
        begins = max(self.free, self.clock.now + self.cpu)
        self.busy = [(start, end) for start, end in getattr(self, "busy", []) if end > begins - 20e-3]
        load = sum(end - start for start, end in self.busy) / 20e-3
        self.busy.append((begins, self.queue(self.cpu, self.gpu * (1 + 0.3 * max(0.0, load - 0.6)))))


def test_long_calls_rest_and_keep_their_clock(machine):
    there = machine(cpu=10e-6, gpu=1.5e-3)
    there.__class__ = Warm
    assert cold_times.cold_times(there.call, 20) == pytest.approx([1.5e-3] * 20)
    sustained = cold_times.sustained_times({"a": there.call, "b": there.call})
    assert len(sustained["a"]) == len(sustained["b"])
    assert min(sustained["a"] + sustained["b"]) > 1.55e-3


@pytest.mark.parametrize(("more", "rounds"), [(0.02, 2), (0.0, 4)], ids=["clear", "equal"])
def test_sustained_rounds_end_once_a_call_leads(machine, more, rounds):
    there = machine(cpu=10e-6, gpu=1.5e-3)

    def slower():
        there.queue(there.cpu, there.gpu * (1 + more))

    times = cold_times.sustained_times({"a": there.call, "b": slower})
    assert [len(found) for found in times.values()] == [rounds, rounds]
    assert times["b"] == pytest.approx([(1 + more) * 1.5e-3] * rounds)


@pytest.mark.parametrize(("more", "noise", "rounds", "leads"), [
    (0.02, 0.001, 2, True), (0.0, 0.001, 2, False), (0.0, 0.001, 6, True), (0.02, 0.03, 4, False), (0.0, 0.01, 6, False),
])  # fmt: skip
def test_leader_leads_beyond_the_noise_and_whatever_the_clock(more, noise, rounds, leads):
    drift = [1 + 0.05 * number for number in range(rounds)]
    alone = [1 + noise * (-1) ** number for number in range(rounds)]
    times = {
        "b": [(1 + more) * clock * luck for clock, luck in zip(drift, alone, strict=True)],
        "a": drift,
        "c": [2.0 * clock for clock in drift],
    }
    assert racing.leads(times, cold_times._ENOUGH) == leads
