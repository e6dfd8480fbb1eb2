"""Cases that were never tried are outstanding, a fault of the machine fails no kernel, and both can be resumed."""

import asyncio
import errno
import os
import tempfile
import time
from collections import Counter
from pathlib import Path

import pytest
from tilescope.jobs import attempt, process, questions, supervisor, worker_output
from tilescope.jobs.job import WorkerError
from tilescope.runs import journal, store

from .fake_jobs import registers, run

pytestmark = pytest.mark.usefixtures("kit", "one_processor", "temporary")


def resumed(folder):
    return store.open_run(asyncio.run(supervisor.resume(folder)))


def measured(loaded):
    return sorted(registers(loaded))


def tried(events):
    """How often a worker came to each implementation's case."""
    return Counter(event["case"].rpartition(".py:")[2].split("/")[1] for event in events if event["event"] == "case")


def test_worker_killed_at_start_costs_no_case(catalog, deaths):
    deaths.write_text("2")
    loaded, _ = run(catalog, ["good", "fine"], ["fakes.mortal"])
    assert measured(loaded) == ["fine", "good"]
    assert loaded.run.complete
    assert loaded.run.failures == () and loaded.run.notes == ()


def test_worker_always_killed_leaves_outstanding_cases(catalog, deaths):
    deaths.write_text("1000")
    loaded, events = run(catalog, ["good", "fine"], ["fakes.mortal"])
    assert int(deaths.read_text()) == 1000 - attempt.TRIES
    assert not loaded.run.complete and measured(loaded) == []
    why = "worker was killed (SIGKILL) before its first case (3 times)"
    assert [failure.message for failure in loaded.run.failures] == [why]
    note = (
        f"not complete: 2 of 2 cases of fakes.mortal are outstanding ({why}): "
        f"go on with 'tilescope resume {loaded.run.id}'"
    )
    assert loaded.run.notes == (note,)
    assert {name: events[-1][name] for name in ("complete", "why", "index", "of")} == {
        "complete": False, "why": note, "index": 0, "of": 2
    }  # fmt: skip
    deaths.write_text("0")
    again = resumed(loaded.folder)
    assert measured(again) == ["fine", "good"]
    assert again.run.complete and again.run.failures == ()
    (said,) = again.run.notes
    assert said.startswith("interrupted, and gone on with at ")


def test_full_disk_leaves_its_case_to_resume(catalog, monkeypatch):
    loaded, events = run(catalog, ["full", "good", "raises"])
    assert measured(loaded) == ["good"]
    assert not loaded.run.complete
    said = {failure.case.rpartition(".py:")[2]: failure.message for failure in loaded.run.failures}
    assert said == {
        "SPEC/raises/forward/8-fp32": "RuntimeError: this kernel is wrong",
        "": "a fault of the machine, not of a kernel: No space left on device (ENOSPC) (3 times)",
    }
    # Once with the others, and as often as it takes without any that gets on.
    assert tried(events) == {"full": 1 + attempt.TRIES, "good": 1, "raises": 1}
    monkeypatch.setenv("FAKES_ANSWER", "1")
    again = resumed(loaded.folder)
    assert measured(again) == ["full", "good"]
    assert again.run.complete
    assert [failure.message for failure in again.run.failures] == ["RuntimeError: this kernel is wrong"]


def test_killing_case_fails_unless_memory_ran_out(catalog, monkeypatch):
    loaded, events = run(catalog, ["killed", "good"])
    assert loaded.run.complete and measured(loaded) == ["good"]
    assert tried(events) == {"killed": attempt.TRIES, "good": 1}
    kills = iter(range(1000))
    monkeypatch.setattr(worker_output, "oom_kills", lambda: next(kills))
    loaded, _ = run(catalog, ["killed", "good"])
    assert not loaded.run.complete and measured(loaded) == ["good"]
    (failure,) = loaded.run.failures
    assert failure.case == ""
    assert failure.message.startswith(
        "a fault of the machine, not of a kernel: out of memory: worker was killed (SIGKILL)"
    )


def test_endless_message_is_cut(catalog):
    loaded, _ = run(catalog, ["unspeakable", "good"])
    assert loaded.run.complete and measured(loaded) == ["good"]
    (failure,) = loaded.run.failures
    assert failure.message.startswith("RuntimeError: ?mmm") and len(failure.message) < 2100
    assert len(failure.detail) <= 64 << 10


def test_temporary_files_of_a_dead_worker_go(catalog):
    run(catalog, ["leaves", "good"])
    assert list(Path(tempfile.gettempdir()).iterdir()) == []


def test_sweep_removes_folders_of_dead_jobs_only(tmp_path):
    runs = tmp_path / "runs"
    held = process.Scratch()
    dead, new, old = (Path(tempfile.mkdtemp(prefix=process.PREFIX)) for _ in range(3))
    (dead / "lock").touch()
    others = Path(tempfile.mkdtemp(prefix="tilescope-runs-"))
    (others / "lock").touch()
    begun, resumable, fresh = (runs / f"{store.PARTIAL}{name}" for name in ("a", "b", "c"))
    for folder in (begun, resumable, fresh):
        (folder / "parts").mkdir(parents=True)
    (begun / ".lock").touch()
    (resumable / ".lock").touch()
    (resumable / journal.FILE).touch()
    long_ago = time.time() - 86_400
    for folder in (old, others):
        os.utime(folder, (long_ago, long_ago))
    assert process.sweep(runs) == 3
    assert [path.exists() for path in (dead, old, begun)] == [False] * 3
    assert all(path.exists() for path in (held.path, new, others, resumable, fresh))
    held.close()
    assert not held.path.exists()


def test_lacking_resources_are_named():
    assert worker_output.lacking(OSError(errno.EFBIG, "File too large")) == "File too large (EFBIG)"
    assert worker_output.lacking(FileNotFoundError(errno.ENOENT, "no")) == ""
    assert worker_output.lacking(RuntimeError("ptxas fatal: No space left on device")) == "No space left on device"
    assert worker_output.lacking(MemoryError(), starting=True) == "Cannot allocate memory"
    assert worker_output.lacking(MemoryError()) == ""
    assert worker_output.lacking(RuntimeError("this kernel is wrong")) == ""


def test_run_finished_meanwhile_is_not_resumed(catalog, monkeypatch, tmp_path):
    loaded, _ = run(catalog, ["full", "good"])
    monkeypatch.setenv("FAKES_ANSWER", "1")

    async def twice():
        return await asyncio.gather(*(supervisor.resume(loaded.folder) for _ in range(2)), return_exceptions=True)

    outcomes = asyncio.run(twice())
    refused = [outcome for outcome in outcomes if isinstance(outcome, Exception)]
    assert len(refused) == 1 and isinstance(refused[0], ValueError)
    assert measured(store.open_run(loaded.folder)) == ["full", "good"]
    # One that had read it before the other finished it, and is slow.
    with pytest.raises(store.StoreError, match="is whole: there is nothing to go on with"):
        store.RunWriter.reopen(loaded.folder)
    assert not (loaded.folder / ".lock").exists()
    assert measured(store.open_run(loaded.folder)) == ["full", "good"]


def test_describe_has_a_timeout(tmp_path):
    slow = tmp_path / "slow.py"
    slow.write_text("import time\ntime.sleep(1000)\n")
    with pytest.raises(WorkerError, match="the worker did not answer for 1 s and was killed"):
        asyncio.run(asyncio.wait_for(questions.describe([f"{slow}:SPEC"], timeout=1), 110))
