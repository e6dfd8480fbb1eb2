"""A script is profiled again at every save, each time in a process of its own."""

import asyncio
import contextlib
import dataclasses
import errno
import os
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
from tilescope import cli
from tilescope.jobs import process
from tilescope.models import versions
from tilescope.models.advice import Finding
from tilescope.notebook import cell_magic, script_jobs, watch_text, watching
from tilescope.notebook.watching import Version, Watch

SCRIPT = """
import torch
import triton
import triton.language as tl
from shared import FACTOR


@triton.jit
def scale_kernel(x_ptr, y_ptr, n, FACTOR: tl.constexpr, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(x_ptr + i, mask=i < n)
    tl.store(y_ptr + i, x * FACTOR, mask=i < n)


print("begun")
x = torch.ones(1000, device="cuda")
y = torch.empty_like(x)
scale_kernel[(8,)](x, y, 1000, FACTOR, BLOCK=128)
"""


@pytest.fixture
def folder(forked, tmp_path):
    (tmp_path / "own.py").write_text(SCRIPT)
    (tmp_path / "shared.py").write_text("FACTOR = 2\n")
    return tmp_path


def versions_of(folder, *saves, save=Path.write_text, **options):
    """The watch of ``own.py``, and a version after each save: a pair of a file's name and its text."""

    async def follow():
        watch, found = Watch(folder / "own.py", runs_dir=folder / "runs", **options), []
        async with contextlib.aclosing(watch.follow()) as following:
            async for version in following:
                if version.state == "running" or version.doing or version in found:
                    continue
                found.append(version)
                if len(found) > len(saves):
                    return watch, found
                name, text = saves[len(found) - 1]
                save(folder / name, text)
        return None

    return asyncio.run(follow())


def test_each_save_makes_a_version_that_is_compared(folder):
    renamed = SCRIPT.replace("scale_kernel", "renamed_kernel").replace("128", "256")
    watch, (first, second, third) = versions_of(folder, ("own.py", renamed), ("shared.py", "FACTOR = 3\n"))
    assert {path.name for path in watch.files} == {"own.py", "shared.py"}
    assert (first.state, first.cases[0].title, first.output) == ("ready", "scale_kernel 1000-fp32", "begun\n")
    assert {"registers", "requested", "theoretical_occupancy"} <= first.cases[0].values.keys()
    compared = watch.compared(second)
    assert (compared.baseline, compared.pairs[0].how) == (first, "place")
    assert "-scale_kernel[(8,)](x, y, 1000, FACTOR, BLOCK=128)" in compared.diff
    assert "+FACTOR = 3" in watch.compared(third).diff and third.run.is_dir()


@pytest.fixture
def made(monkeypatch):
    """The processes of scripts, of which the next version's waits."""
    made = []

    def started(*given, own=script_jobs.started, **options):
        made.append(own(*given, **options))
        return made[-1]

    monkeypatch.setattr(script_jobs, "started", started)
    monkeypatch.setattr(watching.supervisor, "may_stand_by", lambda: True)
    monkeypatch.setattr(watching.device, "count", lambda: 1)
    return made


def test_process_waits_for_the_next_version(folder, made):
    telling = ("own.py", SCRIPT.replace('"begun"', "__import__('os').getpid()"))
    broken, mended = (("shared.py", text) for text in ("FACTOR = (\n", "FACTOR = 3\n"))
    _, found = versions_of(folder, telling, broken, mended, collect=["compiler"])
    assert [version.state for version in found] == ["ready", "ready", "failed", "ready"]
    assert len(made) == 5, "one for each version, and one that waits"
    assert [found[place].output.strip() for place in (1, 3)] == [str(made[place].pid) for place in (1, 3)]
    assert not any(worker.alive for worker in made)


def test_process_without_its_folder_is_not_current(folder):
    async def wait():
        async with script_jobs.started(str(folder / "own.py"), {}, on_output=bytes, waits=True) as worker:
            before = worker.current
            worker._place.job.unlink()  # as where temporary files are removed after days
            return before, worker.current, worker.alive

    assert asyncio.run(wait()) == (True, False, True)


def test_changed_environment_begins_another_process(folder, made, monkeypatch):
    telling = ("own.py", SCRIPT.replace('"begun"', "__import__('os').environ.get('OWN')"))

    def save(path, text):
        monkeypatch.setenv("OWN", "set since")
        path.write_text(text)

    _, found = versions_of(folder, telling, save=save, collect=["compiler"])
    assert found[1].output == "set since\n" and not any(worker.alive for worker in made)


def test_script_that_sets_variables_of_cuda_has_no_process_waiting(folder, made):
    telling = SCRIPT.replace('"begun"', "__import__('os').getpid()")
    chosen = telling + "__import__('os').environ['CUDA_LAUNCH_BLOCKING'] = '1'\n"
    saves = [("own.py", chosen), ("shared.py", "FACTOR = 3\n")]
    _, found = versions_of(folder, *saves, collect=["compiler"])
    # The second waited for a script that did not set them.
    assert [version.output.strip() for version in found[1:]] == [str(worker.pid) for worker in made[2:]]
    assert not any(worker.alive for worker in made)


def test_output_is_that_of_its_own_version(folder):
    slow = (
        "import signal, sys, time\nsignal.signal(signal.SIGTERM, lambda *_: sys.exit(print('ended')))\nprint('slow')\n"
    )
    (folder / "own.py").write_text(slow + "time.sleep(60)\n")

    async def follow():
        watch = Watch(folder / "own.py", runs_dir=folder / "runs", collect=["compiler"])
        async with contextlib.aclosing(watch.follow()) as following:
            async for version in following:
                while version.number == 1 and not version.output:
                    await asyncio.sleep(0.05)
                if version.number == 1:
                    (folder / "own.py").write_text(SCRIPT)
                elif version.state != "running":
                    return version
        return None

    assert asyncio.run(asyncio.wait_for(follow(), 120)).output == "begun\n"


def test_second_save_in_a_second_is_run(folder, monkeypatch):
    monkeypatch.setattr(sys, "dont_write_bytecode", False)
    monkeypatch.delenv("PYTHONDONTWRITEBYTECODE", raising=False)
    (folder / "own.py").write_text(SCRIPT.replace('"begun"', "FACTOR"))

    def save(path, text):
        seen = path.stat()
        path.write_text(text)
        os.utime(path, ns=(seen.st_atime_ns, seen.st_mtime_ns))

    _, found = versions_of(folder, ("shared.py", "FACTOR = 3\n"), save=save, collect=["compiler"])
    assert [version.output for version in found] == ["2\n", "3\n"]


def test_broken_import_names_file_and_line(folder):
    watch, (_, syntax, name) = versions_of(
        folder, ("shared.py", "a = 1\nb = (\n"), ("shared.py", "\n\nFACTOR = nosuch\n")
    )
    assert "line 2 of shared.py" in syntax.error and "line 3 of shared.py" in name.error
    assert (syntax.number, name.number) == (2, 3) and "SPEC" not in syntax.error
    # The script, which did not get to its end, did not change.
    assert watch.compared(syntax).diff[2:] == ["@@ -1 +1,2 @@", "-FACTOR = 2", "+a = 1", "+b = ("]


def test_wrong_version_leaves_the_last_good_one(folder):
    beyond = SCRIPT.replace("+ i, mask", "+ i * 2, mask")
    dying = SCRIPT + "import os, signal\nos.kill(os.getpid(), signal.SIGSEGV)\n"
    watch, (good, *wrong) = versions_of(folder, ("own.py", beyond), ("own.py", "x = (\n"), ("own.py", dying))
    assert [version.state for version in wrong] == ["failed"] * 3
    assert all(watch.compared(version).baseline is good for version in wrong)
    assert "past the end" in wrong[0].wrong[0]
    assert "own.py cannot be run" in wrong[1].error
    assert "its process crashed (SIGSEGV)" in wrong[2].error


def test_results_of_large_launch_are_judged_by_whole_run(folder, monkeypatch):
    monkeypatch.setattr(watching, "_LIMIT", 1e-9)
    (folder / "own.py").write_text(SCRIPT + "assert y.sum() == 2000, 'wrong sum'\n")
    watch, (right, wrong) = versions_of(folder, ("shared.py", "FACTOR = 3\n"))
    assert (right.state, right.error, right.unmade, right.output) == ("ready", "", "", "begun\n")
    assert wrong.state == "failed" and "wrong sum, line" in wrong.error and "of own.py" in wrong.error
    assert watch.compared(wrong).baseline is right


def test_command_prints_the_version(folder, capsys, monkeypatch):
    monkeypatch.chdir(folder)
    assert cli.main(["watch", "--once", "own.py"]) == 0
    said = capsys.readouterr().out.splitlines()
    assert {"printed:", "  begun", "version 1: own.py", "scale_kernel 1000-fp32"} <= {*said}
    assert any(line.startswith("registers") for line in said)
    assert cli.main(["watch", "nosuch.py"]) == 2
    assert cli.main(["watch", "own.py", "--text"]) == 2
    assert "put it before own.py" in capsys.readouterr().err


def case(kernel, **values):
    return versions.Case({"kernel": kernel, "impl": "triton", "pass": "forward", "workload": "8-fp32"}, values, ())


@pytest.fixture
def watch(tmp_path):
    script = tmp_path / "own.py"
    script.write_text("x = 1\n")
    made = Watch(script)
    made.versions.append(Version(1, state="ready", cases=[case("a", registers=32.0)], texts={script: "x = 1\n"}))
    return made


class Profiled(Watch):
    """A watch whose profile is another answer, or an error."""

    answer = None

    async def _profile(self, version):
        version.cases = [case("a", registers=32.0)]
        if isinstance(self.answer, Exception):
            raise self.answer
        return self.answer


def test_worker_under_another_program_is_ready_for_the_next_version(watch, fakes, monkeypatch):
    told = []
    monkeypatch.setattr(watching.supervisor, "may_stand_by", lambda: True)
    for name in ("wake", "leave"):
        monkeypatch.setattr(watching.kept_standby, name, lambda of, name=name: told.append((name, of)))
    profiled = Profiled(watch.script, collect=["compiler", "fakes.wrapped"])
    profiled.answer = SimpleNamespace(collectors=("compiler", "fakes.wrapped"), settings={})
    asyncio.run(profiled._make(second := Version(2)))
    assert second.state == "ready" and told == [("wake", "fakes.wrapped"), ("leave", "fakes.wrapped")]


def test_process_that_cannot_be_started_fails_its_version(watch):
    profiled = Profiled(watch.script)
    profiled.answer = process.StartError(OSError(errno.EMFILE, "Too many open files"))
    asyncio.run(profiled._make(second := Version(2)))
    assert second.state == "failed" and "Too many open files" in second.error


def test_values_are_told_once_as_they_come(watch):
    telling, second = watch_text.Telling(watch), Version(2, cases=())
    watch.versions.append(second)
    assert list(telling.lines(second)) == ["", f"version 2: {watch.script}"]
    second.cases = [case("a", registers=40.0)]
    told = list(telling.lines(second))
    assert told[0] == "a 8-fp32" and told[1].split() == ["version", "1", "version", "2", "change"]
    assert told[2].split() == ["registers", "32", "40", "+25.0", "%"] and len(told) == 3
    second.cases = [case("a", registers=40.0, spill_bytes=8.0)]
    second.state, second.seconds = "ready", 1.5
    second.texts = {watch.script: "x = 2\n"}
    told = list(telling.lines(second))
    assert told[0].split() == ["spilled", "bytes", "–", "8", "B"]
    assert told[-3:] == ["-x = 1", "+x = 2", "version 2 took 1.5 s"]
    assert list(telling.lines(second)) == []


def test_time_waits_for_the_collector_of_its_baseline(watch):
    def timed(seconds, source):
        return dataclasses.replace(case("a", registers=32.0, gpu_time=seconds), time_source=source)

    watch.versions[0].cases = [timed(28e-6, "torch_profiler")]
    telling, second = watch_text.Telling(watch), Version(2, cases=[timed(30e-6, "cupti")])
    watch.versions.append(second)
    assert not [line for line in telling.lines(second) if "GPU time" in line]
    second.cases, second.state = [timed(28e-6, "torch_profiler")], "ready"
    assert [line.split() for line in telling.lines(second) if "GPU time" in line] == [
        ["GPU", "time", "28.0", "µs", "28.0", "µs"]
    ]
    third = Version(3, "", "ready", cases=[timed(30e-6, "cupti")])
    watch.versions.append(third)
    assert [line.split() for line in telling.lines(third) if "GPU time" in line] == [["GPU", "time", "–", "30.0", "µs"]]


def test_saved_over_version_is_told_and_output_is_cut(watch):
    telling, second, third = watch_text.Telling(watch), Version(2, cases=[case("a", registers=40.0)]), Version(3)
    watch.versions.append(second)
    assert "version 2: " in "\n".join(telling.lines(second))
    watch.versions[-1] = third
    third.state, third.error, third.output = "failed", "no", "".join(f"{n}\n" for n in range(20))
    told = list(telling.lines(third))
    assert told[0] == "version 2 was not finished: a file was saved"
    assert told[-10] == "printed, the last 8 of 20 lines:" and told[-9:-1] == [f"  {n}" for n in range(12, 20)]


def test_output_waits_for_missing_results(watch):
    telling = watch_text.Telling(watch)
    second = Version(
        2, "", "ready", "running every program of k", [case("a", registers=32.0)], unmade="k", why="k, line 4: no end"
    )
    second.output, second.texts = "AssertionError\n", watch.versions[0].texts
    watch.versions.append(second)
    waits = "running every program of k: the script's output follows, as it needs their results"
    assert list(telling.lines(second))[-2:] == [second.why, waits]
    second.why = "it takes longer"  # which names no line: it may be right
    assert second.why not in (told := list(watch_text.Telling(watch).lines(second))) and told[-1] == waits
    second.doing, second.why = "", "k, line 4: no end"
    assert list(telling.lines(second)) == [
        "what the script says of k's results is void, as not all of its programs ran: k, line 4: no end",
        "printed:", "  AssertionError",
    ]  # fmt: skip
    assert not list(telling.lines(second))
    second.state, second.error = "failed", "k reads past the end"  # which says why, once
    assert "void" not in " ".join(watch_text.Telling(watch).lines(second))
    second.state, second.error = "ready", ""
    telling, second.doing = watch_text.Telling(watch), "running every program of k"
    list(telling.lines(second))
    second.doing, second.unmade, second.state, second.error = "", "", "failed", "wrong sum"
    assert list(telling.lines(second)) == [
        "wrong: wrong sum", "version 1 stays the last good one", "printed:", "  AssertionError"
    ]  # fmt: skip


def test_failed_version_tells_why_and_what_stays(watch):
    third = Version(2, state="failed", error="own.py cannot be run: invalid syntax")
    watch.versions.append(third)
    told = list(watch_text.Telling(watch).lines(third))
    assert told[2:4] == ["wrong: own.py cannot be run: invalid syntax", "version 1 stays the last good one"]
    assert watch_text.mime(watch, third)["text/html"].startswith("<pre>version 2")


def test_versions_are_named_pinned_paired_and_deleted(watch):
    first, second = watch.versions[0], Version(2, state="ready", cases=[case("b", registers=8.0)])
    third = Version(3, state="ready", cases=[case("b", registers=9.0)])
    watch.versions += [second, third]
    watch.name(first, " before ")
    watch.pin(first)
    compared = watch.compared(third)
    assert compared.baseline.title == "before" and compared.pairs[0].how == "place"
    assert watch.compared(third, second).pairs[0].how == "name"
    watch.pair(third, third.cases[0], first, None)
    assert [pair.baseline and pair.baseline.kernel for pair in watch.compared(third).pairs] == [None, "a"]
    watch.delete(first)
    assert watch.pinned is None and watch.compared(third).baseline is second
    watch.versions.append(Version(4))
    with pytest.raises(ValueError, match="version 4 is being made"):
        watch.delete(watch.versions[-1])


def test_finding_with_another_value_is_told(watch):
    def found(rule, title):
        return Finding(rule, title, "", "a", "forward", "8-fp32", "triton", "", ())

    first, second = watch.versions[0], Version(2, state="ready")
    first.cases = [dataclasses.replace(case("a"), findings=(found("loads", "12.5 % used"), found("idle", "idle")))]
    second.cases = [dataclasses.replace(case("a"), findings=(found("loads", "6.25 % used"), found("idle", "idle")))]
    watch.versions.append(second)
    assert [line for line in watch_text.Telling(watch).lines(second) if "used" in line or "idle" in line] == [
        "still: 6.25 % used"
    ]


def test_typed_pairing_is_told_anew(watch):
    telling, second = watch_text.Telling(watch), Version(2, cases=[case("b", registers=8.0), case("c", registers=9.0)])
    second.state, second.output = "ready", ""
    watch.versions.append(second)
    assert "b 8-fp32, paired with a 8-fp32 by its place" in [*telling.lines(second)]
    assert [*watch_text._pairing(watch, second)][:2] == [
        "launches of version 2: 1 b 8-fp32, 2 c 8-fp32", "launches of version 1: 1 a 8-fp32"
    ]  # fmt: skip
    watch_text.obey(watch, "pair 1 none\n")
    watch_text.obey(watch, "pair 2 1\n")
    told = [*telling.lines(second)]
    assert "version 2: " in told[1] and {"b 8-fp32", "c 8-fp32, paired with a 8-fp32 by hand"} <= {*told}
    assert not [*telling.lines(second)]
    watch.versions.append(third := Version(3, state="ready", cases=second.cases))
    assert "version 2 " in " ".join(telling.lines(third))
    while not watch._changed.empty():
        watch._changed.get_nowait()
    watch_text.obey(watch, "pin 1")
    assert watch.pinned is watch.versions[0] and watch._changed.get_nowait() is third
    assert " version 1 " in " ".join(telling.lines(third))
    for line in ("pair 3 1", "pair 1 2", "pair x none", "pin 9", "what"):
        with pytest.raises(ValueError, match="not understood"):
            watch_text.obey(watch, line)


def test_watch_obeys_what_is_typed(watch, monkeypatch, capsys):
    read, write = os.pipe()

    async def typed():
        with watch_text._listening(watch):
            os.write(write, b"what\npin 1\n")
            while not watch.pinned:
                await asyncio.sleep(0.01)

    with os.fdopen(read) as lines:
        monkeypatch.setattr("sys.stdin", lines)
        asyncio.run(asyncio.wait_for(typed(), 10))
    os.close(write)
    assert "not understood: what" in capsys.readouterr().out


@pytest.mark.parametrize("line", ["", "watch", "stop now", "profile x.py"])
def test_line_magic_refuses_other_words(line):
    with pytest.raises(ValueError, match="takes 'watch SCRIPT"):
        cell_magic.run_line(line)
