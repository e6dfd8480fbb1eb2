"""A user's script as a job of the server: its progress, its end, and its run."""

import asyncio
from pathlib import Path
from typing import Any

import pytest
from tilescope.runs import store
from tilescope_dashboard.session import access
from tilescope_dashboard.session.jobs import CANCELLED, DONE, FAILED, RUNNING, JobManager, JobState
from tilescope_dashboard.session.state import State
from tilescope_dashboard.views.form.profile import ProfileForm

from .conftest import SCRIPT, field


async def ended(script: Path, manager: JobManager | None = None, until: str = "") -> JobState:
    """The job of a script at its end; cancelled as soon as it does ``until``."""
    jobs = manager or JobManager()
    job = jobs.start_script(script)
    while job.active:
        if until and job.doing == until and job.status == RUNNING:
            jobs.cancel(job.number)
        await asyncio.sleep(0.01)
    return job


def test_script_job_events_are_progress() -> None:
    case = "/runs/captured/launches.py:k/triton/forward/8-fp32"

    async def script(file: str, settings: Any, *, title: str, on_event: Any, on_output: Any) -> tuple[None, Path, str]:
        on_output(b"epoch 1\nepoch 2\n")
        on_event({"event": "case", "collector": "compiler", "case": case, "doing": "compiling", "index": 1, "of": 2})
        on_event({"event": "error", "collector": "interpreter", "case": case, "message": "past the end"})
        return None, Path("/runs/x"), f"{title} ended with exit status 3"

    job = asyncio.run(ended(Path("k.py"), JobManager(script=script)))
    assert (job.status, job.folder, job.index, job.of, job.failures) == (DONE, Path("/runs/x"), 1, 2, 1)
    of_case = "k/triton/forward/8-fp32"
    assert [*job.log] == [
        "running k.py", "epoch 1", "epoch 2", f"compiler · {of_case} · compiling",
        f"failed: interpreter · {of_case}: past the end",
    ]  # fmt: skip
    assert job.unfinished.startswith("k.py ended with exit status 3")


def test_script_without_launches_is_refused(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("TILESCOPE_RUNS", str(tmp_path / "runs"))
    (tmp_path / "k.py").write_text("print('there')")
    job = asyncio.run(ended(tmp_path / "k.py"))
    assert (job.status, job.title) == (FAILED, "k.py")
    assert "launched no Triton kernel" in job.error
    assert "there" in job.log


def test_a_cancelled_script_is_ended(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("TILESCOPE_RUNS", str(tmp_path / "runs"))
    left = tmp_path / "left"
    code = f"import time, pathlib; print('there', flush=True); time.sleep(60); pathlib.Path({str(left)!r}).touch()"
    (tmp_path / "k.py").write_text(code)
    job = asyncio.run(ended(tmp_path / "k.py", until="there"))
    assert job.status == CANCELLED
    assert not left.exists()


def test_the_form_runs_a_script_of_which_it_knows_no_kernel(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv(access.OWN_FILES, str(tmp_path))
    (tmp_path / "k.py").write_text("")
    started: list[Path] = []

    async def script(file: str, *_: Any, **options: Any) -> tuple[None, Path, str]:
        started.append(Path(file))
        return None, tmp_path, ""

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
    (tmp_path / "k.py").write_text(SCRIPT)
    job = asyncio.run(ended(tmp_path / "k.py"))
    assert job.folder
    run = store.open_run(job.folder).run
    assert (run.title, list(run.kernels)) == ("k.py", ["scale"])
