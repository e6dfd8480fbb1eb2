"""Ways to have live code profiled: a call, a script, a cell of a notebook, and what torch.compile generates."""

from __future__ import annotations

import functools
import importlib
import itertools
import os
import sys
import time
import types
from pathlib import Path

import pytest
import tilescope
import torch
from tilescope import cli
from tilescope.commands import profile as profile_command
from tilescope.interpreter import interpret
from tilescope.notebook import capturing, live_call
from tilescope.runs import staleness, store

from . import foreign_launches as foreign

SCRIPT = """
import sys
import torch, triton
import triton.language as tl

BY = tl.constexpr(4)

@triton.jit
def in_a_script(x_ptr, n, BLOCK: tl.constexpr):
    offsets = tl.arange(0, BLOCK)
    tl.store(x_ptr + offsets, tl.load(x_ptr + offsets, mask=offsets < n) * BY, mask=offsets < n)

if __name__ == "__main__":
    x = torch.ones(int(sys.argv[2]))
    in_a_script[(1,)](x, x.numel(), 64)
    print(sys.argv[1:], x.sum().item())
    sys.exit(int(sys.argv[2]) - 50)
"""


@pytest.fixture(autouse=True)
def own_runs(no_gpu, monkeypatch, tmp_path):
    monkeypatch.setenv("TILESCOPE_RUNS", str(tmp_path / "runs"))


@pytest.fixture
def kept(monkeypatch):
    """Captures that were to be profiled, without workers."""
    found = []
    monkeypatch.setattr(
        capturing.Capture, "profile", lambda capture, *args, **kwargs: found.append((capture, args, kwargs))
    )
    return found


def test_a_script_is_run_with_its_arguments_and_profiled(tmp_path, capsys):
    script = tmp_path / "train.py"
    script.write_text(SCRIPT)
    runs = tmp_path / "runs"
    arguments = ["profile", "--runs", str(runs), "--collect", "interpreter", str(script), "--n", "50"]
    assert cli.main(arguments) == 0
    out = capsys.readouterr().out
    assert "['--n', '50'] 200.0" in out
    assert "200 / 200" in out
    assert "check skipped: no reference was given" in out
    (listed,) = tilescope.list_runs([runs])
    run = store.open_run(listed.path)
    assert run.run.kernels["in_a_script"]["summary"].endswith("train.py:15")
    assert staleness.stale_kernels(run) == []
    # The run takes its records along.
    assert (run.folder / "captured" / "in_a_script" / "launches.json").is_file()
    # The text that is shown is the script's own, by its own lines.
    assert run.sources["in_a_script"]["train.py"] == SCRIPT
    assert set(run.lines["line"]) == {11}


def test_what_a_failing_script_launched_is_profiled_all_the_same(tmp_path, kept):
    from tilescope.notebook import script_running

    script = tmp_path / "train.py"
    script.write_text(SCRIPT.replace("print(", "raise RuntimeError('late'); print("))
    capture = tilescope.capture()
    assert script_running.run_script(str(script), ["--n", "50"], capture).endswith("ended with RuntimeError: late")
    assert capture.calls == 1
    script.write_text("def broken(")
    with pytest.raises(ValueError, match="cannot be run"):
        script_running.run_script(str(script), [], tilescope.capture())


# A thread that ends by SystemExit is silent, but where pytest looks on.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
@pytest.mark.parametrize(
    "way_out",
    [
        "os._exit(3)",
        "import threading; threading.Timer(0.3, os._exit, [3]).start(); threading.Event().wait()",
        "os.waitpid(os.fork() or os._exit(0), 0); os._exit(3)",
    ],
    ids=["at once", "in a thread", "after a fork of it"],
)
def test_what_a_script_launched_before_it_left_is_profiled_all_the_same(tmp_path, kept, way_out):
    from tilescope.notebook import script_running

    script = tmp_path / "train.py"
    script.write_text(SCRIPT.replace("print(", f"import os; {way_out}; print("))
    capture, leave = tilescope.capture(), os._exit
    assert script_running.run_script(str(script), ["--n", "50"], capture) == f"{script} called os._exit(3)"
    assert capture.calls == 1
    assert os._exit is leave


def test_a_script_without_launches_is_told_in_a_line(tmp_path, capsys):
    script = tmp_path / "quiet.py"
    script.write_text("import sys; sys.exit(3)")
    assert cli.main([str(script)]) == 2
    said = f"{script} launched no Triton kernel ({script} ended with exit status 3): one that it declares is named {script}:SPEC"
    assert capsys.readouterr().err == f"tilescope: {said}\n"
    script.write_text("import sys; sys.exit('no data')")
    assert cli.main([str(script)]) == 2
    assert "ended with exit status 1: no data)" in capsys.readouterr().err
    assert cli.main(["profile", "softmax", str(script)]) == 2
    assert "is a script: profile it by itself" in capsys.readouterr().err


def test_a_scripts_arguments_are_told_from_the_commands():
    split = profile_command.split
    assert split(["a.py", "--lr", "3"]) == (["profile", "a.py"], ["--lr", "3"])
    assert split(["profile", "--title", "x.py", "--target=sm_90", "a.py", "b.py"]) == (
        ["profile", "--title", "x.py", "--target=sm_90", "a.py"],
        ["b.py"],
    )
    assert split(["profile", "a.py:SPEC", "--title", "x.py"]) == (["profile", "a.py:SPEC", "--title", "x.py"], [])
    assert split(["show", "a.py"]) == (["show", "a.py"], [])
    # An option that takes no value, also by its first letters.
    assert split(["profile", "--renew", "a.py", "--lr", "3"]) == (["profile", "--renew", "a.py"], ["--lr", "3"])
    assert split(["--target", "sm_90", "a.py", "show"]) == (["profile", "--target", "sm_90", "a.py"], ["show"])
    assert split(["--runs", "a", "show"]) == (["--runs", "a", "show"], [])


def triple(x: torch.Tensor, *, out: dict | None = None) -> dict[str, list[torch.Tensor]]:
    result = x.detach().contiguous().clone()
    foreign.multiplier(3)(result)
    return {"results": [result], "given": [] if out is None else out}


@pytest.mark.parametrize("wrap", [lambda f: f, functools.partial, lambda f: lambda *a, **k: (f(*a, **k), None)])
def test_a_live_call_takes_inputs_as_they_are(kept, wrap):
    x = torch.ones(8, 32, dtype=torch.bfloat16, requires_grad=True)[:, ::2]
    tilescope.profile(wrap(triple), x, out={"a": 1}, repetitions=7, collectors=["compiler"])
    ((capture, (collectors,), settings),) = kept
    assert (capture.calls, collectors, settings["repetitions"]) == (1, ["compiler"], 7)
    assert capture.checked == ""


def test_a_live_module_is_compared_with_a_reference_in_its_own_dtype(kept):
    class Triple(torch.nn.Module):
        def forward(self, x):
            foreign.multiplier(3)(x)  # in place: there is nothing to return

    def right(x):
        x *= 3

    tilescope.profile(Triple(), torch.ones(16, dtype=torch.bfloat16), reference=right)
    tilescope.profile(Triple(), torch.ones(16), reference=lambda x: [x.mul_(2)][1:])
    checked = [capture.checked for capture, *_ in kept]
    assert checked[0] == "check: right: result 0 in bfloat16 is 0 from the reference (allowed 3e-02)"
    assert checked[1].startswith("check: wrong: result 0 in float32 is 0.5 from the reference")


def test_results_of_other_shapes_or_numbers_are_wrong():
    one, two = torch.ones(2), torch.ones(3)
    assert "gives 1 tensors, the reference 2" in live_call.compared(one, (), (one, two), ())
    assert "has shape (2,)" in live_call.compared(one, (), two, ())


def test_a_cell_is_run_and_profiled(kept, capsys):
    shell = pytest.importorskip("IPython.core.interactiveshell").InteractiveShell()
    wrong = pytest.importorskip("IPython.core.error").UsageError  # told without a traceback
    tilescope.load_ipython_extension(shell)
    shell.run_cell_magic("tilescope", "--target sm_86 --collect compiler,interpreter --title mine", SCRIPT.replace(
        "sys.argv[2]", "'50'").replace("sys.exit", "kept = "))  # fmt: skip
    ((capture, (collectors,), named),) = kept
    assert (collectors, named["title"], capture.target) == (["compiler", "interpreter"], "mine", "sm_86")
    assert shell.user_ns["x"].sum() == 200
    assert capture.records[0].sites == {"cell:14": 1}  # IPython counts from the cell's first line that is not empty
    assert shell.run_cell_magic("tilescope", "", "1 / 0") is None
    failing = SCRIPT.replace("sys.argv[2]", "'50'").replace("print(", "raise RuntimeError('late'); print(")
    shell.run_cell_magic("tilescope", "--target sm_86", failing)
    assert [capture.calls for capture, *_ in kept] == [1, 1]
    assert "the cell failed: what it launched until then is profiled" in capsys.readouterr().out
    with pytest.raises(wrong, match="it takes --target"):
        shell.run_cell_magic("tilescope", "--tarket x", "1")


@pytest.mark.filterwarnings("ignore:.torch.jit.script:DeprecationWarning")
def test_where_nothing_is_launched_it_is_said_why(tmp_path, monkeypatch):
    with tilescope.capture() as capture:
        assert torch.compile(lambda x: x * 2)(torch.ones(4)).sum() == 8
    with pytest.raises(
        ValueError, match=r"no Triton kernel was launched: .*; functions of torch.compile become Triton kernels"
    ):
        capture.write(tmp_path)
    monkeypatch.setitem(sys.modules, "a_library.pynvml", sys)
    with pytest.raises(ValueError, match="none is here; the GPU is assumed for PyTorch and Triton, and NVML"):
        capture.write(tmp_path)


def test_what_inductor_generates_is_captured_where_it_launches_by_itself(tmp_path):
    x, out = torch.randn(1000), torch.empty(1000)
    with tilescope.capture() as capture:
        # Imported within: Inductor's runtime is patched when it comes.
        from .generated_module import triton_poi_fused_relu_tanh_0 as kernel

        kernel.run(x, out, 1000, stream=0)
    assert torch.allclose(out, torch.tanh(x).clamp(min=0), atol=1e-6)
    (record,) = capture.records
    assert record.data["counted"]["unique_bytes_read"] == 4000
    (reference,) = capture.write(tmp_path)
    assert {file.name for file in Path(reference.rpartition(":")[0]).parent.glob("*.py")} >= {"generated_module.py"}


def test_what_inductor_takes_from_another_process_is_captured(monkeypatch):
    """It comes without its function's source, and with what loads that again."""
    with tilescope.capture() as capture:
        from . import generated_module

        kernel = generated_module.triton_poi_fused_relu_tanh_0
        fresh = importlib.reload(generated_module).triton_poi_fused_relu_tanh_0
        monkeypatch.setattr(kernel, "_reload_kernel", lambda: fresh, raising=False)
        monkeypatch.setattr(kernel.fn, "fn", None)
        x = torch.randn(512)
        kernel.run(x, torch.empty_like(x), 512, stream=0)
    assert [record.function.__name__ for record in capture.records] == ["triton_poi_fused_relu_tanh_0"]


def test_a_terminal_is_told_how_far_a_long_launch_is(capsys, monkeypatch):
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    # Every program takes 20 ms more than it does: how quick this machine is decides nothing.
    late = itertools.count()
    clock = types.SimpleNamespace(thread_time=lambda: time.thread_time() + 0.02 * next(late))
    monkeypatch.setattr(interpret, "time", clock)
    counter, out = torch.zeros(1, dtype=torch.int32), torch.empty(200, dtype=torch.int32)
    with tilescope.capture("sm_90", limit=600) as capture:
        foreign.counting_kernel[(200,)](counter.cuda(), out.cuda())
        assert "counted" in capture.records[0].data
    said = capsys.readouterr().err
    assert "interpreting counting_kernel: program " in said
    assert "interpreted what was launched, " in said.splitlines()[-1]
