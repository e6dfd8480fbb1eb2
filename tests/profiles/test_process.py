"""A worker process that misbehaves in every way: a bounded part of its output is kept, and nothing of it is left."""

import asyncio
import os
import signal
import subprocess
import sys
import time

import pytest
from tilescope.jobs import process, worker_output
from tilescope.jobs.process import StartError, WorkerProcess
from tilescope.jobs.worker_output import EventLines

from .processes import alive, wait_for

#: What a script may use: ``say`` writes to the pipe of events.
HEAD = """
import json, os, signal, subprocess, sys, time
job = json.load(open(sys.argv[-1]))
pipe = os.open(job["events"], os.O_WRONLY)
def say(data):
    while data:
        data = data[os.write(pipe, data):]
"""


def lived(script, patience=120):
    """Events and log of a process that runs ``script``, the process, and the seconds it took."""

    async def live():
        events = []
        began = time.monotonic()
        async with WorkerProcess({}, lambda argv, folder: [sys.executable, "-c", HEAD + script, *argv]) as worker:
            async for event in worker.events(patience):
                events.append(event)
            log = worker.log()
        return events, log, worker, time.monotonic() - began

    return asyncio.run(live())


pytestmark = pytest.mark.usefixtures("temporary")


def test_flood_is_kept_in_part_and_not_on_the_disk(temporary):
    script = """
os.write(1, b"first words\\n")
for _ in range(2048):
    os.write(2, b"x" * 65536)
job["kept"] = [os.path.getsize(os.path.join(root, name)) for root, _, names in os.walk(os.path.dirname(sys.argv[-1]))
               for name in names]
os.write(1, f"\\nlast words {sum(job['kept'])}\\n".encode())
"""
    _, log, worker, _ = lived(script)
    assert worker.status == 0
    assert log.startswith("first words\nxxx")
    assert "bytes left out …]" in log
    last = worker_output.last_line(log)
    assert last.startswith("last words ") and int(last.split()[-1]) < 10_000
    assert len(log) < 2 * worker_output.KEPT + 100
    assert list(temporary.iterdir()) == []


def test_lines_without_an_event_are_ignored():
    script = r"""
say(b'{"event": "start"}\n' + b"not json\n" + b"\xff\xfe\n" + b"[1]\n" + b'{"event": 3}\n' + b'{"event": "nonsense"}\n')
say(b'{"event": "case", "case": 5, "doing": "x"}\n' + b'{"event": "error"}\n' + b'{"event": "result", "case": ["a"]}\n')
say(b"[" * 100000 + b"\n")
say(b'{"event": "error", "case": "a", "message": "\\ud800 ' + b"m" * 100000 + b'", "detail": "' + b"d" * 100000 + b'"}\n')
say(b'{"event": "done"}\n{"event": "res')
"""
    events, log, _, _ = lived(script)
    assert [event["event"] for event in events] == ["start", "error", "done"]
    assert events[1]["message"].startswith("? mmm") and len(events[1]["message"]) < 2100
    assert len(events[1]["detail"]) == 64 << 10
    assert "[9 lines in the worker's stream of events were no events]" in log


def test_endless_line_is_not_kept():
    lines = EventLines(longest=1000)
    for _ in range(100):
        assert lines.feed(b"x" * 300) == []
    assert lines.feed(b'x\n{"event": "done"}\n') == [{"event": "done"}]
    assert lines.ignored == 1


def test_repeated_event_is_no_progress(monkeypatch):
    monkeypatch.setattr(process, "STARTUP", 5.0)
    script = """
while True:
    say(b'{"event": "case", "case": "a", "doing": "running"}\\n')
    time.sleep(0.01)
"""
    _, _, worker, _ = lived(script, patience=1)
    assert worker.silent


def test_daemon_with_the_output_is_killed(tmp_path):
    script = f"""
child = subprocess.Popen(["sleep", "300"], start_new_session=True)
open({str(tmp_path / "pid")!r}, "w").write(str(child.pid))
"""
    _, _, worker, seconds = lived(script)
    assert worker.status == 0
    assert seconds < 250
    wait_for(lambda: not alive(int((tmp_path / "pid").read_text())))


def test_daemon_during_exec_is_killed(tmp_path):
    """Its environment cannot be read for a moment, as in 10 of 300 starts, one of which left a daemon behind."""
    for _ in range(30):
        child = subprocess.Popen(["sleep", "300"], env={**os.environ, "TILESCOPE_WORKER": tmp_path.name})
        process.kill_marked(tmp_path.name)
        try:
            assert child.wait(timeout=240) == -signal.SIGKILL
        finally:
            child.kill()
            child.wait()


def test_second_cancellation_leaves_nothing(tmp_path, monkeypatch, temporary):
    monkeypatch.setattr(process, "GRACE", 30)
    script = f"""
signal.signal(signal.SIGTERM, signal.SIG_IGN)
open({str(tmp_path / "pid")!r}, "w").write(str(os.getpid()))
say(b'{{"event": "start"}}\\n')
time.sleep(300)
"""

    async def live(started):
        async with WorkerProcess({}, lambda argv, folder: [sys.executable, "-c", HEAD + script, *argv]) as worker:
            async for _ in worker.events(100):
                started.set()

    async def cancel_twice():
        started = asyncio.Event()
        task = asyncio.create_task(live(started))
        await asyncio.wait_for(started.wait(), 240)
        task.cancel()
        await asyncio.sleep(0.2)
        task.cancel()
        await asyncio.wait({task}, timeout=240)
        assert task.cancelled()

    asyncio.run(cancel_twice())
    wait_for(lambda: not alive(int((tmp_path / "pid").read_text())))
    assert list(temporary.iterdir()) == []


def test_cancelling_the_start_leaves_nothing(temporary):
    async def cancel_at_once():
        for turns in range(8):
            task = asyncio.create_task(WorkerProcess({}, lambda argv, folder: ["sleep", "300"]).__aenter__())
            for _ in range(turns):
                await asyncio.sleep(0)
            if not task.done():
                task.cancel()
            await asyncio.wait({task})
            if not task.cancelled():
                await task.result().__aexit__()

    asyncio.run(cancel_at_once())
    assert list(temporary.iterdir()) == []


def test_start_error_names_a_lacking_resource(monkeypatch):
    async def start(wrap):
        async with WorkerProcess({}, wrap):
            pass

    with pytest.raises(StartError, match="/nowhere: No such file") as caught:
        asyncio.run(start(lambda argv, folder: ["/nowhere"]))
    assert caught.value.lacking == ""

    def full(*arguments, **more):
        raise OSError(28, os.strerror(28))

    monkeypatch.setattr("tilescope.jobs.process.tempfile.mkdtemp", full)
    with pytest.raises(StartError, match="No space left on device") as caught:
        asyncio.run(start(None))
    assert caught.value.lacking == "No space left on device (ENOSPC)"
