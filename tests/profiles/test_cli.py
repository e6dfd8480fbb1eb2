"""The command's output, and one clear line where it cannot serve."""

import json
import os
import re
import signal
import subprocess
import sys
import time
import tomllib
from pathlib import Path

import pytest
from tilescope import cli
from tilescope.commands import running
from tilescope.hardware import device
from tilescope.models import summary
from tilescope.notebook.opened_run import Profile
from tilescope.runs import store
from tilescope.table.case import Case
from tilescope.table.run import Failure

from . import made_up
from .fake_jobs import OWN

ROOTS = [str(Path(__file__).parents[2] / root) for root in ("kernels", "profiles", "dashboard")]
QUICK = ["profile", OWN, "--collect", "fakes.quick"]


@pytest.fixture(autouse=True)
def bare(kit, runs, no_gpu, forked):
    """No recordings and no GPU."""


def tilescope(capsys, *arguments):
    """Exit status, standard output and standard error."""
    try:
        status = cli.main(arguments)
    except SystemExit as ended:
        status = int(ended.code or 0)
    return status, *capsys.readouterr()


def a_run(tmp_path, **fields):
    case = Case("softmax", "triton", "forward", "8x8-fp32")
    rows = [case.row("registers", 32, "compiler", launch=0, function="k")]
    return made_up.written(tmp_path / "runs", rows, **fields)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["profile", OWN, "--collect", "compilr"], "unknown collector 'compilr': did you mean 'compiler'?"),
        (["profile", OWN, "--collect", "../../x"], "unknown collector '../../x'"),
        (["profile", OWN, "--collect", "a..b"], "unknown collector 'a..b'"),
        (["profile", OWN, "--collect", "..x"], "unknown collector '..x'"),
        (["profile", OWN, "--collect", ".x.y"], "unknown collector '.x.y'"),
        (["profile", OWN, "--collect", "ncu"], "ncu cannot run here: "),
        (["profile", OWN, "--target", "sm_91"], "unknown target 'sm_91': did you mean 'sm_90'?"),
        ([*QUICK, "--impl", "goood"], "unknown implementation 'goood': did you mean 'good'?"),
        ([*QUICK, "gone.py:SPEC"], "gone.py is not a file"),
        ([*QUICK, "--quick", "gone.py:SPEC"], "unrecognized arguments: --quick gone.py:SPEC"),
        (["watch", "softmax"], "watch takes a script: softmax is none"),
        (["watch", "--impl", "triton", "gone.py"], "unrecognized arguments: --impl"),
        ([*QUICK[:2], OWN.replace("/own.py", "/../orchestration/own.py"), *QUICK[2:]], "two kernels are called"),
        (["profile"], "the following arguments are required: KERNEL"),
        (["profile", OWN, "--timeout", "0"], "'0' is no number of seconds above 0"),
        (["profile", OWN, "--repetitions", "1.5"], "'1.5' is no whole number above 0"),
        (["profile", OWN, "--repetitions", "9" * 5000], "is no whole number above 0 and below 10^18"),
        (["profil", OWN], "invalid choice: 'profil'"),
        (["show", "20250101"], "no run '20250101'"),
        (["recordings", "recover", "20250101"], "no run '20250101'"),
        (["recordings", "publish", "20250101", "softmax"], "no run '20250101'"),
    ],
)
def test_bad_input_is_one_line_and_status_2(capsys, arguments, said):
    status, out, err = tilescope(capsys, *arguments)
    (last,) = [text for text in err.splitlines() if "reading the kernels" not in text]
    assert said in last
    assert status == 2
    assert out == ""
    assert "Traceback" not in err


def test_help_lists_twelve_commands_in_groups(capsys):
    status, out, _ = tilescope(capsys, "--help")
    listed = re.findall(r"^  (\w+) {2,}\S", out.partition("Profile:")[2], re.MULTILINE)
    assert status == 0 and len(listed) == 12
    assert "Also: check, resume, list, fuse, mcp, recordings" in out
    assert not {"record", "publish", "claims", "recover"} & {*listed}


#: Runs the command, and prints the number of Tilescope's modules whose functions this process called.
COUNTED = """
import sys, threading
from tilescope import cli
seen = set()
def watch(frame, event, argument):
    name, inside = frame.f_globals.get("__name__", ""), frame
    if event == "call" and name.startswith("tilescope") and name not in seen:
        while (inside := inside.f_back) and not (inside.f_code.co_name == "<module>" and inside.f_globals["__name__"] != "__main__"):
            pass
        if not inside:  # not while a module is imported
            seen.add(name)
sys.setprofile(watch), threading.setprofile(watch)
cli.main(sys.argv[1:])
sys.setprofile(None)
print(len(seen), *sorted(seen))
"""


def test_profile_command_calls_few_modules():
    path = os.pathsep.join([os.environ["PYTHONPATH"], *ROOTS])
    command = [sys.executable, "-c", COUNTED, *QUICK, "--impl", "good", "--workload", "small"]
    done = subprocess.run(
        command, env={**os.environ, "PYTHONPATH": path}, capture_output=True, text=True, timeout=300, check=True
    )
    count, *modules = done.stdout.splitlines()[-1].split()
    assert int(count) <= 75, modules


def test_unwritable_folders_are_no_fault_of_a_kernel(capsys, tmp_path, monkeypatch):
    script, ran, file = (tmp_path / name for name in ("script.py", "ran", "file"))
    script.write_text(f"open({str(ran)!r}, 'w').close()\n")
    file.touch()
    for given in (QUICK, ["profile", str(script)]):
        status, _, err = tilescope(capsys, *given[:1], "--runs", str(file / "runs"), *given[1:])
        assert status == 2 and "set TILESCOPE_RUNS" in err and not ran.exists()
    monkeypatch.setenv("TRITON_CACHE_DIR", str(file / "cache"))
    for given in (["profile", OWN, "--collect", "compiler"], ["profile", str(script)]):
        status, out, err = tilescope(capsys, *given)
        assert (status, out) == (2, "") and not ran.exists()
        assert "Triton's cache" in err and "set TRITON_CACHE_DIR to a folder you may write to" in err
    # Nothing is compiled.
    assert tilescope(capsys, *QUICK, "--impl", "good", "--workload", "small")[0] == 0


def test_profile_prints_a_table_and_names_the_run(capsys, tmp_path):
    status, out, err = tilescope(capsys, *QUICK, "--impl", "good", "--workload", "small")
    assert status == 0
    assert "0 of 1: fakes.quick running own.py/good/" in err
    lines = out.splitlines()
    assert lines[0] == "own.py/good/forward/8-fp32: no problem found (not timed: no GPU)"
    assert lines[1] == "predicted for NVIDIA H200 (sm_90): no such GPU took part"
    assert lines[2].split() == ["kernel", "impl", "pass", "workload", "registers"]
    assert lines[3].split() == ["own.py", "good", "forward", "8-fp32", "32"]
    folder = Path(lines[-1].removeprefix("run: "))
    assert folder.parent == tmp_path / "runs"
    status, out, _ = tilescope(capsys, "show", "latest", "--json")
    assert json.loads(out)["run"]["id"] == folder.name
    assert {row["metric"] for row in json.loads(out)["table"]} >= {"registers", "algorithm_bytes_read"}


def test_run_without_a_value_has_status_1(capsys):
    status, out, _ = tilescope(capsys, *QUICK, "--impl", "skips", "--workload", "small")
    assert status == 1
    assert "nothing was measured or compiled" in out
    status, out, _ = tilescope(capsys, "advise", "latest")
    assert status == 1
    assert "Nothing was measured or compiled" in out and "bottleneck" not in out


def test_failure_names_index_of_last_element(capsys, tmp_path):
    said = "InterpretationFailed: k, program (9, 0, 0), line 7: reads 8 bytes past the end of x: element 10 of 10"
    running.tell([failure := Failure("k/a/b/c", "interpreter", said)])
    found = "k reads past the end of x in line 7. It reads x[10]; the last element is 9. "
    assert capsys.readouterr().out.startswith(f"failed: interpreter k/a/b/c: {found}")
    folder = a_run(tmp_path, failures=(failure,))
    assert f"k/a/b/c, interpreter: {found}It happens in program (9, 0, 0) of k. Mask" in repr(
        Profile.of(store.open_run(folder))
    )


def test_show_says_a_fault_before_the_table(capsys, tmp_path):
    said = "CompilationFailed: k does not compile for sm_90: line 3: no"
    case = "softmax/triton/forward/8x8-fp32"
    again = Failure(case, "interpreter", "InterpretationFailed: k, program (0, 0, 0), line 3: ValueError: no")
    unmade = f"the launch was not made: {again.message.partition(': ')[2]}"
    folder = a_run(tmp_path, failures=(again, Failure(case, "compiler", said)), notes=(unmade,))
    status, out, _ = tilescope(capsys, "show", "latest")
    assert status == 0
    first = f"failed: compiler softmax/triton/forward/8x8-fp32: {said.partition(': ')[2]}"
    assert out.splitlines()[0] == first and out.count("line 3") == 1
    for shown in (out, repr(Profile.of(store.open_run(folder)))):
        assert "ValueError" not in shown and "note: the launch was not made" in shown
    loaded = store.open_run(folder)
    loaded.run.settings["target"] = "sm_90"
    assert running.show(loaded, False) == 1  # as 'tilescope profile' does
    out = capsys.readouterr().out
    assert out.splitlines()[0] == first and out.count("line 3") == 1
    assert "  Correct that line, then profile it again." in out
    status, out, _ = tilescope(capsys, "advise", "latest")
    assert out.splitlines()[1:] == [
        "  1. k does not compile for sm_90: line 3: no",
        "     do: Correct that line, then profile it again.",
    ]


def test_warning_is_said_first_and_once(capsys, tmp_path):
    said = "k, line 7: lanes have no value without other=: give other= a value"
    a_run(tmp_path, warnings=(Failure("softmax/triton/forward/8x8-fp32", "compiler", said),))
    assert tilescope(capsys, "show", "latest")[1].startswith(f"warning: {said}\n")
    assert tilescope(capsys, "show", "latest")[1].count("line 7") == 1


def test_shown_run_is_summarised_once(capsys, tmp_path, monkeypatch):
    summarised = []
    summarise = summary.summarise
    monkeypatch.setattr(summary, "summarise", lambda *given: summarised.append(given) or summarise(*given))
    a_run(tmp_path)
    assert tilescope(capsys, "show", "latest")[0] == 0
    assert len(summarised) == 1


def test_names_and_messages_are_shown_without_escapes(capsys, tmp_path):
    odd = "\x1b[31mred\x1b]0;title\x07\u202e"
    case = f"{odd}/triton/forward/8x8-fp32"
    a_run(
        tmp_path, failures=(Failure(case, "compiler", f"CompilationFailed: {odd} does not compile"),), notes=(odd,),
        title=odd,
    )  # fmt: skip
    markdown = tmp_path / "gate.md"
    for given in (
        ["show", "latest"],
        ["show"],
        ["advise", "latest"],
        ["show", "latest", "--json"],
        ["compare", "latest", "latest"],
        ["compare", "latest", "latest", "--json"],
        ["gate", "latest", "latest", "--markdown", str(markdown)],
        ["show", odd],
        ["advise", "latest", odd],
    ):
        said = "".join(tilescope(capsys, *given)[1:])
        assert not {"\x1b", "\x07", "\u202e"} & {*said}
    assert not {"\x1b", "\u202e"} & {*markdown.read_text()}
    said = repr(Profile.of(store.open_run(store.find("latest"))))
    assert "\\u202e" in said and not {"\x1b", "\u202e"} & {*said}


def test_long_names_are_cut_in_their_middle(capsys, tmp_path):
    named = f"{'k' * 4000}end"
    a_run(tmp_path, failures=(Failure(f"{named}/triton/forward/8x8-fp32", "compiler", f"{named} does not compile"),))
    for given in (["show", "latest"], ["advise", "latest"]):
        out = tilescope(capsys, *given)[1]
        assert "…k" in out and "end" in out and max(map(len, out.splitlines())) < 1000
    for name in ("q" * 5000, "q/" * 5000):  # too long for a path
        assert tilescope(capsys, "show", name)[2].startswith("tilescope: no run")


def test_list_marks_absent_implementations(capsys, describe_as):
    implementations = {"triton": {"available": True}, "liger": {"available": False}}
    workloads = [{"label": "small", "id": "8-fp32"}, {"label": "", "id": "9-fp32"}]
    describe_as([{"kernel": "k", "passes": ["forward"], "implementations": implementations, "workloads": workloads,
                  "summary": "what it does", "family": "norms"}])  # fmt: skip
    line = tilescope(capsys, "list")[1].splitlines()[1]
    assert "triton, (liger)" in line
    assert "small, 9-fp32" in line


def test_show_prints_a_run_and_the_list(capsys, tmp_path):
    failures, predicted = (Failure("a/b", "ncu", "denied"),), device.for_target("sm_90")
    folder = a_run(tmp_path, failures=failures, notes=("remark",), title="mine", device=predicted)
    status, out, _ = tilescope(capsys, "show", "2026")
    assert status == 0
    assert "20261120-221530-3fa9 mine" in out and ", predicted for NVIDIA H200, with" in out
    assert "note: remark" in out
    assert "failed: ncu a/b: denied" in out
    (folder.parent / "20261121-000000-aaaa").mkdir()
    out = tilescope(capsys, "show")[1]
    assert "1 failed" in out
    assert "run.json is missing" in out


def test_doctor_always_succeeds(capsys):
    status, out, _ = tilescope(capsys, "doctor")
    assert status == 0
    for name in ("GPU", "driver", "torch", "triton cache", "ncu", "counter permission"):
        assert name in out


def test_commands_of_packages_are_added_or_say_why_not(capsys, monkeypatch, tmp_path):
    about = tmp_path / "works-1.dist-info"
    about.mkdir()
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: works\nVersion: 1\n")
    (about / "entry_points.txt").write_text("[tilescope.commands]\nworks = works:add\nbroken = no_bokeh:add\n")
    (tmp_path / "works.py").write_text(
        "def add(subparsers): subparsers.add_parser('works').set_defaults(run=lambda arguments: 7)"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    assert cli.main(["works"]) == 7
    status, _, err = tilescope(capsys, "broken")
    assert (status, err) == (2, "tilescope: command broken does not import: No module named 'no_bokeh'\n")


def _registers(printed: str) -> list[str]:
    """The last column of a printed table of ``own.py``, without the lines below it, which contain the time of day."""
    return [row.split()[-1] for row in printed.splitlines() if row.startswith("own.py ")]


INTERRUPTED_IMPORT = """
import contextlib, importlib, os, signal, sys

class Interrupting:
    def find_spec(self, name, *more):
        if name == "tilescope.cli":
            with contextlib.suppress(KeyboardInterrupt):  # as in a callback of an import
                os.kill(os.getpid(), signal.SIGINT)

sys.meta_path.insert(0, Interrupting())
module, name = sys.argv.pop().split(":")
sys.exit(getattr(importlib.import_module(module), name)())
"""


def test_command_interrupted_amid_its_imports_ends_in_a_line():
    entry = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())["project"]["scripts"]["tilescope"]
    done = subprocess.run(
        [sys.executable, "-c", INTERRUPTED_IMPORT, "show", entry], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "tilescope: interrupted\n")


@pytest.mark.parametrize("stop", [signal.SIGINT, signal.SIGTERM], ids=["SIGINT", "SIGTERM"])
def test_interrupting_keeps_the_finished_cases(tmp_path, capsys, stop):
    command = [sys.executable, "-m", "tilescope", *QUICK, "--impl", "good,hangs", "--workload", "small"]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([os.environ["PYTHONPATH"], *ROOTS])}
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment
    ) as process:
        for text in process.stderr:
            if "hangs" in text:
                break
        time.sleep(0.3)
        process.send_signal(stop)
        out, err = process.communicate(timeout=300)
    assert process.returncode == 130
    loaded = store.open_run(store.find("latest"))
    assert f"the finished cases are kept, go on with 'tilescope resume {loaded.run.id}'\n" in err
    assert "Traceback" not in err
    assert _registers(out) == ["32"]
    assert not loaded.run.complete
    assert set(loaded.table[loaded.table["source"] == "compiler"]["impl"]) == {"good"}
    if stop == signal.SIGTERM:
        return  # it goes on as after the other
    again = subprocess.run(
        [*command[:3], "resume", loaded.run.id],
        env={**environment, "FAKES_ANSWER": "1"}, capture_output=True, text=True, timeout=300, check=True,
    )  # fmt: skip
    assert _registers(again.stdout) == ["32", "32"]
    assert again.stdout.endswith(f"run: {loaded.folder}\n")
    assert store.open_run(loaded.folder).run.complete
    said = f"tilescope: {loaded.run.id} is complete: there is nothing to resume\n"
    assert tilescope(capsys, "resume", loaded.run.id) == (2, "", said)
