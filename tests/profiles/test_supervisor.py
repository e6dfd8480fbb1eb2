"""A worker's death or fault costs its current case and nothing else."""

import asyncio
import dataclasses
import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from tilescope.hardware.gpu_lock import gpu_lock, held, path
from tilescope.jobs import attempt, process, questions, supervisor, triton_setup
from tilescope.jobs.job import IN_TURN, TIMED, Job, WorkerError
from tilescope.jobs.ledger import Ledger
from tilescope.notebook import script_jobs
from tilescope.runs import journal, store
from tilescope.table.case import Case

from tests.kernels.releases import GLUON

from .fake_jobs import CLIENT, KIT, OWN, cases, registers, run
from .processes import alive, wait_for


@pytest.fixture(autouse=True)
def impatient(kit, monkeypatch):
    """Stubborn workers are killed soon."""
    monkeypatch.setattr(process, "GRACE", 0.5)


def failures(loaded):
    return {failure.case.split("/forward")[0].rpartition("/")[2]: failure for failure in loaded.run.failures}


def test_process_is_restored_after_a_case(catalog, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    loaded, _ = run(catalog, ["moves", "looks"])
    assert registers(loaded) == {"moves": 32, "looks": 32} and loaded.run.failures == ()


def test_every_fate_costs_its_own_case_only(catalog):
    fates = ["good", "noisy", "raises", "exits", "skips", "segfaults", "aborts", "killed", "loses_device", "unreadable"]
    loaded, events = run(catalog, [*fates, "fine"])
    assert registers(loaded) == {"good": 32, "noisy": 32, "fine": 32}
    failed = failures(loaded)
    assert sorted(failed) == ["aborts", "exits", "killed", "loses_device", "raises", "segfaults", "unreadable"]
    assert failed["raises"].message == "RuntimeError: this kernel is wrong"
    assert "Traceback" in failed["raises"].detail
    assert "worker was killed (SIGKILL) while running" in failed["killed"].message
    assert sum(event["event"] == "case" and "/killed/" in event["case"] for event in events) == attempt.TRIES
    assert failed["killed"].message.endswith("finished cases are kept")
    assert "crashed (SIGSEGV)" in failed["segfaults"].message
    assert "crashed (SIGABRT)" in failed["aborts"].message
    assert "illegal memory access" in failed["loses_device"].message
    assert "cannot be read" in failed["unreadable"].message
    assert loaded.run.complete
    assert loaded.run.notes == ("fakes.quick skipped 1 of skips: nothing to see",)
    (skipped,) = loaded.run.skipped
    assert (skipped.collector, skipped.message) == ("fakes.quick", "nothing to see")
    assert [case.impl for case in skipped.cases] == ["skips"]
    assert events[0]["of"] == 11
    assert events[-1] == {
        "event": "done", "folder": str(loaded.folder), "run": loaded.run.id, "complete": True, "index": 11, "of": 11
    }  # fmt: skip
    assert [event["index"] for event in events] == sorted(event["index"] for event in events)


def test_run_has_declared_text_and_costs(catalog):
    loaded, _ = run(catalog, ["raises"])
    path = Path(catalog[0]["path"])
    assert list(loaded.sources.values()) == [{path.name: path.read_text()}]
    model = loaded.table[loaded.table["source"] == "model"]
    assert dict(zip(model["metric"], model["value"], strict=True)) == {
        "algorithm_flops": 8, "algorithm_bytes_read": 32, "algorithm_bytes_written": 4
    }  # fmt: skip
    assert not run([{**catalog[0], "sha256": "of another text"}], ["good"])[0].sources


def test_silent_worker_is_killed_and_a_wrapper_reports(catalog):
    loaded, _ = run(catalog, ["good", "raises", "killed", "hangs", "noisy", "fine"], ["fakes.wrapped"], timeout=8)
    assert registers(loaded) == {"good": 64, "noisy": 64}
    said = {name: failure.message for name, failure in failures(loaded).items()}
    assert said["raises"] == "RuntimeError: this kernel is wrong"
    assert "was killed (SIGKILL)" in said["killed"]
    assert "did not answer for 8 s and was killed while running" in said["hangs"]
    assert "skipped 1 of fine" in loaded.run.notes[0]


def test_wrapper_that_writes_nothing_is_not_tried_again(catalog, monkeypatch):
    monkeypatch.setenv("FAKES_MUTE", "1")
    loaded, _ = run(catalog, ["good", "noisy"], ["fakes.quick", "fakes.wrapped"])
    assert registers(loaded) == {"good": 32, "noisy": 32}
    assert [(one.collector, one.message) for one in loaded.run.failures] == [
        ("fakes.wrapped", "the wrapper wrote nothing")
    ]
    assert loaded.run.complete, "another process would write nothing either"


def test_unavailable_collectors_leave_the_others(catalog):
    loaded, events = run(catalog, ["good"], ["fakes.quick", "fakes.lost", "fakes.absent", "fakes.broken"])
    assert registers(loaded) == {"good": 32}
    said = {failure.collector: failure.message for failure in loaded.run.failures}
    assert said == {
        "fakes.lost": "the worker cannot be started: /nowhere/ncu: No such file or directory",
        "fakes.absent": "install the thing: get-thing",
        "fakes.broken": "worker ended with status 9 before its first case: no such library: libbroken.so (3 times)",
    }
    # What was never tried is outstanding.
    assert (events[-1]["index"], events[-1]["of"], events[-1]["complete"]) == (1, 4, False)
    assert not loaded.run.complete
    assert [note.split(" (")[0] for note in loaded.run.notes] == [
        f"not complete: 1 of 1 cases of fakes.{name} are outstanding" for name in ("lost", "absent", "broken")
    ]
    assert all(note.endswith(f"go on with 'tilescope resume {loaded.run.id}'") for note in loaded.run.notes)


def test_cancelling_keeps_cases_and_leaves_no_process(catalog, tmp_path):
    pids = tmp_path / "pids"
    loaded = store.open_run(interrupted(catalog, "good", "stubborn", pids=str(pids)))
    assert registers(loaded) == {"good": 32}
    assert not loaded.run.complete
    assert not any(alive(int(pid)) for pid in pids.read_text().split())


def test_cancelling_before_a_result_leaves_nothing(catalog):
    async def cancel_at_once():
        job = Job(cases("good"), ["fakes.quick"], catalog=catalog)
        started = asyncio.Event()
        task = asyncio.create_task(supervisor.run(job, lambda event: started.set()))
        await started.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(cancel_at_once())
    assert list(store.runs_dir().iterdir()) == []


def test_workers_die_with_their_supervisor(tmp_path, catalog):
    roots = [str(Path(__file__).parents[2] / root) for root in ("kernels", "profiles")]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([os.environ["PYTHONPATH"], *roots])}
    pids = tmp_path / "pids"
    arguments = [sys.executable, "-c", CLIENT, str(pids), json.dumps(catalog), "good", "hangs"]
    with subprocess.Popen(arguments, env=environment) as parent:
        wait_for(lambda: pids.is_file() and len(pids.read_text().split()) == 2)
        (partial,) = store.runs_dir().glob(f"{store.PARTIAL}*")
        wait_for(lambda: len(list((partial / "parts").glob("*.parquet"))) == 2)
        with pytest.raises(store.StoreError, match="still being written"):
            store.recover(partial)
        parent.send_signal(signal.SIGKILL)
    workers = {int(pid) for pid in pids.read_text().split()}
    wait_for(lambda: not any(alive(pid) for pid in workers))
    with pytest.raises(store.StoreError, match="tilescope recover"):
        store.open_run(partial)
    loaded = store.open_run(store.recover(partial))
    assert registers(loaded) == {"good": 32}
    assert not loaded.run.complete


def test_describe_says_what_is_wrong_with_a_file(tmp_path):
    broken = tmp_path / "broken.py"
    broken.write_text("import not_there\n")
    for kernel, workloads, said in (
        (f"{broken}:SPEC", [], "does not import: ModuleNotFoundError: No module named 'not_there'"),
        (f"{KIT / 'own.py'}:NOT_A_SPEC", [], "not a KernelSpec"),
        (OWN, ["3x3-fp32"], "own has no workload '3x3-fp32': give N-DTYPE"),
        (OWN, ["9" * 5000 + "-fp32"], "own has no workload '9{80}': give N-DTYPE .*numbers below 10.18"),
    ):
        with pytest.raises(WorkerError, match=said) as caught:
            asyncio.run(questions.describe([kernel], workloads))
        assert "\n" not in str(caught.value)


@pytest.mark.usefixtures("torch_and_catalog")
@GLUON
def test_note_where_the_interpreter_counts_other_kernels():
    """Kernels in Gluon run on GPUs only; the interpreter and older GPUs use other implementations."""
    wide = [Case("softmax", "triton", direction, "4x32768-bf16") for direction in ("forward", "backward")]
    job = Job(wide, ("compiler", "interpreter"), {"target": "sm_90"})
    loaded = store.open_run(asyncio.run(supervisor.run(job, lambda event: None)))
    assert loaded.run.failures == ()
    (note,) = loaded.run.notes
    assert note.startswith("interpreter counted ") and note.endswith(": softmax/triton/forward/4x32768-bf16")
    assert " where sm_90 runs softmax_held_kernel" in note
    assert loaded.run.versions["ptxas"] == triton_setup.assembler_version("sm_90")
    assert set(loaded.configs["source"]) == {"compiler"}
    assert "softmax_held_kernel" in set(loaded.configs["function"])


def test_gpu_lock_has_one_holder(temporary):
    order = []

    async def hold(name, seconds):
        async with gpu_lock("GPU-1/..", lambda: order.append(f"{name} waits")):
            order.append(f"{name} in")
            await asyncio.sleep(seconds)
            order.append(f"{name} out")

    async def both():
        await asyncio.gather(hold("first", 0.3), hold("second", 0))

    asyncio.run(both())
    assert order == ["first in", "second waits", "first out", "second in", "second out"]


def interrupted(catalog, *fates, collectors=("fakes.quick",), **settings):
    """A run of these implementations that was cancelled at one that never answers."""

    async def start_then_cancel():
        at_work, folders = asyncio.Event(), []

        def hear(event):
            folders.append(event.get("folder"))
            if event["event"] == "case" and event["collector"] == collectors[-1] and "/stubborn/" in event["case"]:
                at_work.set()

        task = asyncio.create_task(supervisor.run(Job(cases(*fates), collectors, settings, catalog=catalog), hear))
        await asyncio.wait_for(at_work.wait(), 240)
        await asyncio.sleep(0.3 if settings else 0)  # until it ignores SIGTERM
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        return next(Path(folder) for folder in reversed(folders) if folder)

    return asyncio.run(start_then_cancel())


def resumed(folder, monkeypatch):
    """The resumed run, and the cases that were run again; the stuck one answers this time."""
    monkeypatch.setenv("FAKES_ANSWER", "1")
    events = []
    again = store.open_run(asyncio.run(supervisor.resume(folder, events.append)))
    return again, [
        event["case"].split("/forward")[0].rpartition("/")[2] for event in events if event["event"] == "case"
    ]


def test_interrupted_run_resumes_where_it_stopped(catalog, monkeypatch, one_processor):
    folder = interrupted(catalog, "good", "raises", "skips", "fine", "stubborn")
    before = store.open_run(folder)
    loaded, asked = resumed(folder, monkeypatch)
    assert loaded.folder == folder
    assert asked == ["stubborn"]
    assert loaded.run.complete
    assert loaded.run.failures == before.run.failures
    assert any(note.startswith("interrupted, and gone on with at 20") for note in loaded.run.notes)
    assert sum("skipped 1 of skips" in note for note in loaded.run.notes) == 1
    assert [[case.impl for case in one.cases] for one in loaded.run.skipped] == [["skips"]]
    assert registers(loaded) == {"good": 32, "fine": 32, "stubborn": 32}
    assert len(loaded.table) == len(before.table) + 1
    assert not (folder / "progress.jsonl").exists()
    with pytest.raises(WorkerError, match="is complete: there is nothing to resume"):
        asyncio.run(supervisor.resume(folder))


def test_resume_counts_what_a_limit_left_out(catalog, one_processor):
    loaded, _ = run(catalog, ["good", "skips", "long"])
    assert loaded.run.complete and registers(loaded) == {"good": 32}
    assert {tuple(case.impl for case in one.cases): one.limited for one in loaded.run.skipped} == {
        ("skips",): False, ("long",): True
    }  # fmt: skip
    (note,) = (note for note in loaded.run.notes if "(own.py/long/forward/8-fp32): more than a case may" in note)
    assert f"'tilescope resume {loaded.run.id}' takes them up" in note
    assert store.find_interrupted(store.LATEST) == loaded.folder
    events = []
    again = store.open_run(asyncio.run(supervisor.resume(loaded.folder, events.append)))
    assert [event["case"].split("/")[-3] for event in events if event["event"] == "case"] == ["long"]
    assert again.run.complete and registers(again) == {"good": 32, "long": 32}
    assert [[case.impl for case in one.cases] for one in again.run.skipped] == [
        ["skips"]
    ] and note not in again.run.notes
    with pytest.raises(WorkerError, match="nothing to resume"):
        asyncio.run(supervisor.resume(loaded.folder))


def test_run_of_a_killed_writer_resumes(catalog, monkeypatch, tmp_path, one_processor):
    folder = interrupted(catalog, "good", "stubborn", collectors=("fakes.absent", "fakes.quick"))
    # As it is left then: half-written, with a line that was not written to its end.
    partial = folder.rename(folder.with_name(store.PARTIAL + folder.name))
    (partial / "parts").mkdir()
    (partial / "table.parquet").rename(partial / "parts" / "000001.parquet")
    with (partial / "progress.jsonl").open("a") as file:
        file.write('\n{"collector": "fak')
    # Nor is the next line lost by it, were the run interrupted once more.
    before = journal.read(partial)
    once_more = journal.Settled("fakes.quick", "nobody's", "error", "no")
    twice = shutil.copytree(partial, tmp_path / "twice")
    journal.settle(twice, once_more)
    assert journal.read(twice) == dataclasses.replace(before, settled=(*before.settled, once_more))
    loaded, asked = resumed(partial, monkeypatch)
    assert loaded.folder == folder
    assert asked == ["stubborn"]
    # What a whole collector lacked is tried again: it may have been installed.
    assert [failure.message for failure in loaded.run.failures] == ["install the thing: get-thing"]
    assert registers(loaded) == {"good": 32, "stubborn": 32}


def test_run_that_is_recovered_while_resume_plans_is_resumed(catalog):
    folder = interrupted(catalog, "good", "stubborn")
    writer = store.RunWriter.reopen(folder)
    writer.lock_file.close()
    assert store.recover(writer.folder) == folder
    ledger = Ledger(Job(cases("good", "stubborn"), ["fakes.quick"]), store.RunWriter.reopen(writer.folder), print)
    ledger.recall()
    assert [case.impl for case in ledger.left("fakes.quick")] == ["stubborn"]
    ledger.close()


def test_process_beside_others_leaves_trouble_to_one_alone(catalog):
    writer, name = store.RunWriter.reopen(interrupted(catalog, "good", "stubborn")), "fakes.quick"
    ledger = Ledger(Job(cases("fine", "skips", "raises", "killed", "looks"), [name]), writer, print)
    asyncio.run(attempt.ahead(ledger, {name: ledger.left(name)}, beside=True))
    assert [case.impl for case in ledger.left(name)] == ["raises", "killed", "looks"]
    assert writer.run.failures == ()
    asyncio.run(attempt.collect(ledger, name, ledger.left(name), leaving=False))
    assert {failure.case.split("/")[-3] for failure in writer.run.failures} == {"raises", "killed"}
    ledger.close()
    assert registers(store.open_run(writer.final)) == {"good": 32, "fine": 32, "looks": 32}


@pytest.mark.usefixtures("deaths")
@pytest.mark.parametrize(("fates", "processes"), [(["good", "fine"], 1), (["good", "raises"], 3)])
def test_collectors_in_turn_share_a_process(catalog, use_gpu, tmp_path, fates, processes):
    names, pids = ["fakes.quick", "fakes.mortal"], tmp_path / "pids"
    use_gpu(*reversed(names), "nosuch")
    loaded, events = run(catalog, fates, names, pids=str(pids))
    assert loaded.run.complete and len(set(pids.read_text().split())) == processes
    assert [*dict.fromkeys(event["collector"] for event in events if event["event"] == "case")] == [*reversed(names)]
    assert {failure.collector for failure in loaded.run.failures} == ({*names} if "raises" in fates else set())
    assert (loaded.table["metric"] == "registers").sum() == 2 * (2 - ("raises" in fates))


@pytest.mark.parametrize(("count", "order"), [(2, [1, 2]), (4, [2, 1])])
def test_dearest_collector_begins_where_processors_suffice(catalog, monkeypatch, processors, count, order):
    names, asked = ["fakes.quick", "fakes.mortal"], []

    async def collect(ledger, name, *_, **__):
        asked.append(name)

    monkeypatch.setattr(attempt, "collect", collect)
    processors(count)
    run(catalog, ["good"], names)
    assert [names.index(name) + 1 for name in asked] == order


def test_collectors_that_time_are_last_in_turn():
    timed = [name in TIMED for name in IN_TURN]
    assert timed == sorted(timed) and len({*timed}) == 2
    assert IN_TURN.index("cupti") < IN_TURN.index("torch_profiler"), "CUPTI counts before torch.profiler traces"
    assert tuple(name for name in IN_TURN if name != "check") == script_jobs.EARLY


@pytest.mark.usefixtures("deaths")
def test_timed_collector_waits_in_the_process_that_counts(catalog, monkeypatch, use_gpu, processors, tmp_path):
    names = ["fakes.late", "fakes.mortal", "fakes.quick"]
    _, counts, times = names
    pids, file = tmp_path / "pids", tmp_path / "counted"
    processors(4)
    use_gpu(counts, times)
    for module in (attempt, supervisor):
        monkeypatch.setattr(module, "TIMED", frozenset((times,)))

    def on_event(event):
        if (event["event"], event.get("collector")) == ("result", counts):
            file.touch()

    job = Job(cases("good"), names, {"pids": str(pids), "file": str(file)}, catalog=catalog)
    assert store.open_run(asyncio.run(supervisor.run(job, on_event))).run.complete
    counting, other, timing = pids.read_text().split()
    assert counting == timing != other


def test_case_with_rows_is_not_measured_twice(catalog):
    folder = interrupted(catalog, "good", "stubborn")
    ledger = Ledger(Job(cases("good", "stubborn"), ["compiler"]), store.RunWriter.reopen(folder), print)
    ledger.recall()
    assert [case.impl for case in ledger.left("compiler")] == ["stubborn"]
    ledger.close(interrupted=True)


#: What has changed since a run was interrupted, and why it cannot be resumed.
WOULD_NOT_FIT = (
    (lambda run: {"versions": {**run.versions, "triton": "1.0"}}, r"resumed: triton is \S+ and was 1\.0: profile it"),
    (lambda run: {"device": dataclasses.replace(run.device, name="X")}, "resumed: it is of X and this is NVIDIA H"),
    (lambda run: {"device": dataclasses.replace(run.device, measured=True)}, r"on NVIDIA H\d+, which is not here"),
    (
        lambda run: {"kernels": {name: {**facts, "sha256": "0"} for name, facts in run.kernels.items()}},
        "the code of own.py has changed: profile it again",
    ),
)


def test_resume_refuses_what_would_not_fit(catalog, monkeypatch):
    folder = interrupted(catalog, "good", "stubborn")
    run = store.open_run(folder).run
    for change, said in WOULD_NOT_FIT:
        (folder / "run.json").write_text(json.dumps(dataclasses.replace(run, **change(run)).to_json()))
        before = {path.name: path.read_bytes() for path in folder.iterdir() if path.is_file()}
        with pytest.raises(WorkerError, match=said):
            asyncio.run(supervisor.resume(folder))
        assert {path.name: path.read_bytes() for path in folder.iterdir() if path.is_file()} == before
    (folder / "progress.jsonl").unlink()
    with pytest.raises(WorkerError, match="does not record its cases: profile it again"):
        asyncio.run(supervisor.resume(folder))


def test_held_gpu_lock_keeps_jobs_waiting(temporary):
    waited = []

    async def take():
        async with asyncio.timeout(0), gpu_lock("held", lambda: waited.append(1)):
            pass

    with held(path("held")), pytest.raises(TimeoutError):
        asyncio.run(take())
    assert waited == [1]


def test_process_that_waits_leaves_the_gpu_to_wrapped_collectors():
    shared = ["check", "cupti", "events", "torch_profiler"]
    assert supervisor._shares(shared) == [shared]
    assert supervisor._shares(["check", "ncu", "events", "race"]) == [["check", "ncu"], ["events", "race"]]
    assert supervisor._shares(["ncu"]) == [["ncu"]]
    # The process that described a script's launches may have collected all.
    assert supervisor._shares([]) == []
