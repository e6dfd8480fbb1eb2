"""A worker under a wrapper stands by before its job is known, serves one job, and is never left behind."""

import asyncio
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from tilescope.jobs import resident, schedule, standby
from tilescope.jobs.process import WorkerProcess
from tilescope.jobs.worker import ready

from .processes import alive, wait_for


def wrap(argv: list[str], folder: Path) -> list[str]:
    """A wrapper that writes into its folder and starts the worker."""
    return ["sh", "-c", f'echo counted > "{folder}/log"; exec "$@"', "wrapper", *argv]


@pytest.fixture(autouse=True)
def standing(fakes: None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    folder = tmp_path / "temporary"
    folder.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(folder))
    monkeypatch.setenv(resident.SWITCH, "1")
    monkeypatch.setattr(standby, "_last", None)
    monkeypatch.setattr(standby, "_stays", False)
    yield folder
    standby.end()
    assert list(folder.iterdir()) == []


def asked(environment: dict[str, str] | None = None, into: Path | None = None) -> tuple[int, list[dict]]:
    """The process that answers a wrapped job, and its events."""

    async def ask():
        async with WorkerProcess({"action": "nonsense"}, wrap, environment) as worker:
            events = [event async for event in worker.events(240)]
            if into:
                worker.take_wrapped(into)
            return worker._process.pid, events

    return asyncio.run(ask())


def test_who_stands_by_gets_the_next_job_of_its_kind_and_no_other(tmp_path):
    standby.begin(wrap, {"A": "1"})
    first = standby._standing.process.pid
    standby.begin(wrap, {"A": "1"})
    assert standby._standing.process.pid == first, "one is enough"
    pid, events = asked({"A": "2"})
    assert pid != first
    pid, again = asked({"A": "1"}, into=tmp_path)
    assert pid == first
    assert events == again and again[0]["message"] == "KeyError: 'nonsense'"
    assert (tmp_path / "log").read_text() == "counted\n"
    assert standby._standing is None
    assert not alive(first)


def test_after_a_wrapped_job_another_one_stands_by_for_who_asks_for_it():
    standby.again()
    assert standby._standing is None, "nothing was wrapped yet"
    asked()
    assert standby._standing is None, "a process that ends needs none"
    standby.again()
    made = standby._standing
    assert made.start_arguments == standby._start_arguments(wrap, {}) and alive(made.process.pid)
    standby.begin(wrap, {"A": "1"})
    assert not alive(made.process.pid), "one of another kind takes its place"


def test_in_a_process_that_stays_the_next_one_begins_when_one_is_given_its_job(monkeypatch):
    monkeypatch.setattr(standby, "roomy", lambda: True)
    standby.stay()
    first, _ = asked()
    made = standby._standing
    assert alive(made.process.pid) and made.process.pid != first
    free = made.folder.job.with_name(standby.FREE)
    assert not free.exists(), "something may be measured"
    standby.again()
    assert standby._standing is made and free.exists()
    second, events = asked()
    assert second == made.process.pid and events[0]["event"] == "error"
    monkeypatch.setattr(standby, "roomy", lambda: False)
    asked()
    assert standby._standing is None, "it would take a processor from what is measured"


@pytest.mark.parametrize("there", [[standby.FREE], ["job"]])
def test_it_makes_its_context_when_the_gpu_is_free_or_its_job_is_there(there, monkeypatch, tmp_path):
    done, place, left = [], tmp_path / "place", [*there]
    place.mkdir()

    def sleep(seconds: float) -> None:
        (place / (left.pop() if left else "job")).touch()

    def prepare(compiling: bool) -> None:
        done.append([path.name for path in place.iterdir()])

    monkeypatch.setattr(ready.time, "sleep", sleep)
    monkeypatch.setattr(ready, "prepare", prepare)
    ready.stand_by(place / "job")
    assert done == [there] and (place / "job").exists()


def test_none_stands_by_where_workers_are_to_be_cold(monkeypatch):
    monkeypatch.setenv(resident.SWITCH, "0")
    standby.begin(wrap, {})
    assert standby._standing is None


def test_one_that_has_ended_is_not_given_a_job():
    standby.begin(wrap, {})
    made = standby._standing
    os.killpg(made.process.pid, signal.SIGKILL)
    made.process.wait()
    pid, events = asked()
    assert pid != made.process.pid and events[0]["event"] == "error"
    standby._standing = made  # its folder is removed with those of the others


def test_it_goes_with_the_process_that_it_stands_by():
    script = f"""
import os, signal, sys
sys.path.insert(0, {str(Path(__file__).parents[2])!r})
from tests.profiles.test_standby import standby, wrap
standby.begin(wrap, {{}})
print(standby._standing.process.pid, standby._standing.folder.job.parent, flush=True)
os.kill(os.getpid(), signal.SIGKILL)
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=300, check=False)
    pid, folder = done.stdout.split()
    wait_for(lambda: not alive(int(pid)), 60)
    subprocess.run(["rm", "-r", folder], check=True)  # whoever runs the next job sweeps it


def test_nobody_waits_for_ever(monkeypatch, tmp_path):
    left = []

    def leave(status: int) -> None:
        left.append(status)
        (tmp_path / "job").touch()

    monkeypatch.setattr(ready, "IDLE", 0.0)
    monkeypatch.setattr(ready.os, "_exit", leave)
    ready.stand_by(tmp_path / "job")
    assert left == [0]


@pytest.mark.parametrize(("names", "processors", "expected"), [
    (["fast", "wrapped"], 4, ["wrapped"]),
    (["fast", "wrapped"], 2, []),  # it would take a processor from what is measured
    (["wrapped", "fast"], 4, []),  # it begins now anyway
    (["fast"], 4, []),
])  # fmt: skip
def test_a_job_has_its_wrapped_worker_begin_while_others_measure(monkeypatch, names, processors, expected):
    from types import SimpleNamespace

    begun = []
    found = {
        "fast": SimpleNamespace(),
        "wrapped": SimpleNamespace(command="wrapped", environment=lambda: {"A": "1"}, unavailable=lambda: None),
    }
    monkeypatch.setattr(schedule.collectors, "load", found.__getitem__)
    monkeypatch.setattr(standby.os, "sched_getaffinity", lambda process: range(processors))
    monkeypatch.setattr(standby, "begin", lambda command, environment: begun.append((command, environment)))
    schedule._stand_by(SimpleNamespace(left=lambda name: ["case"]), names)
    assert begun == [(name, {"A": "1"}) for name in expected]
