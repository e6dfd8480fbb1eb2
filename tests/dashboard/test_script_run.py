"""A person's script is run by the command, whose words become a job's progress."""

import asyncio
import sys
from pathlib import Path
from typing import Any

import pytest
from tilescope.runs import store
from tilescope_dashboard.session import access, script_run
from tilescope_dashboard.session.jobs import CANCELLED, FAILED, RUNNING, JobManager
from tilescope_dashboard.session.state import State
from tilescope_dashboard.views.form.profile import ProfileForm

from .conftest import field

SAID = """
import sys
print("epoch 1", flush=True)
print("1 of 2: compiler compiling k/triton, 3 s", file=sys.stderr, flush=True)
print("failed: interpreter k/triton/forward/8-fp32: past the end", file=sys.stderr, flush=True)
print("failed: interpreter /runs/captured/launches.py:k/triton/forward/8-fp32: past the end", flush=True)
print("run: /runs/x", flush=True)
"""
LAUNCHES = """
import torch, triton, triton.language as tl

@triton.jit
def twice(x_ptr, y_ptr, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(y_ptr + at, 2 * tl.load(x_ptr + at, mask=at < n), mask=at < n)

x = torch.rand(1000, device="cuda")
twice[(1,)](x, torch.empty_like(x), 1000, BLOCK=1024)
"""


def instead(monkeypatch: pytest.MonkeyPatch, code: str) -> None:
    """Another program in the command's place."""
    monkeypatch.setattr(script_run, "_COMMAND", (sys.executable, "-c", code))


def test_what_the_command_says_is_progress(monkeypatch: pytest.MonkeyPatch) -> None:
    instead(monkeypatch, SAID)
    told: list[Any] = []
    assert asyncio.run(script_run.profile(Path("k.py"), told.append)) == Path("/runs/x")
    assert {"event": "case", "doing": "epoch 1"} in told
    assert {"event": "case", "doing": "compiler compiling k/triton", "index": 1, "of": 2} in told
    # It is told of once, though the command says it twice.
    failures = [event["message"] for event in told if event["event"] == "error"]
    assert failures == ["interpreter k/triton/forward/8-fp32: past the end"]


@pytest.mark.parametrize(
    ("code", "said"),
    [
        ("import sys; sys.exit('tilescope: k.py launched no Triton kernel')", "k.py launched no"),
        ("import sys; sys.exit(3)", "status 3"),
    ],
)
def test_script_of_which_no_run_came_is_refused(monkeypatch: pytest.MonkeyPatch, code: str, said: str) -> None:
    instead(monkeypatch, code)

    async def ended() -> Any:
        manager = JobManager()
        job = manager.start_script(Path("k.py"))
        while job.active:
            await asyncio.sleep(0.01)
        return job

    job = asyncio.run(ended())
    assert (job.status, job.title) == (FAILED, "k.py")
    assert job.error.startswith(said) or said in job.error


def test_a_cancelled_script_is_ended(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    left = tmp_path / "left"
    instead(
        monkeypatch,
        f"import time, pathlib; print('there', flush=True); time.sleep(60); pathlib.Path({str(left)!r}).touch()",
    )

    async def ended() -> Any:
        manager = JobManager()
        job = manager.start_script(Path("k.py"))
        while job.doing != "there":
            await asyncio.sleep(0.01)
        assert job.status == RUNNING
        manager.cancel(job.number)
        while job.active:
            await asyncio.sleep(0.01)
        return job

    job = asyncio.run(asyncio.wait_for(ended(), 30))
    assert job.status == CANCELLED
    assert not left.exists()


def test_the_form_runs_a_script_of_which_it_knows_no_kernel(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv(access.OWN_FILES, str(tmp_path))
    (tmp_path / "k.py").write_text("")
    started: list[Path] = []

    async def script(file: Path, _: Any) -> Path:
        started.append(file)
        return tmp_path

    async def pressed() -> ProfileForm:
        manager = JobManager(script=script)
        form = ProfileForm(State(may_launch=True, kernel="in_no_catalog"), manager)
        assert field(form, "Start profiling").disabled
        field(form, "own kernel").value = "k.py"
        while field(form, "Start profiling").disabled:
            await asyncio.sleep(0)
        field(form, "Start profiling").param.trigger("clicks")
        while not started or form.started.active:
            await asyncio.sleep(0)
        field(form, "own kernel").value = ""
        while not field(form, "Start profiling").disabled:
            await asyncio.sleep(0)
        return form

    form = asyncio.run(asyncio.wait_for(pressed(), 30))
    assert started == [tmp_path / "k.py"]
    assert field(form, "Start profiling").disabled


def test_a_script_is_run_and_what_it_launches_is_profiled(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("TILESCOPE_RUNS", str(tmp_path / "runs"))
    (tmp_path / "k.py").write_text(LAUNCHES)
    folder = asyncio.run(script_run.profile(tmp_path / "k.py", lambda _: None))
    run = store.open_run(folder).run
    assert (run.title, list(run.kernels)) == ("k.py", ["twice"])
