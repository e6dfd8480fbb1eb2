"""Everything on the page that starts or ends work asks whether its visitor may; what a button looks like decides nothing."""

import asyncio
import time
from pathlib import Path

import pytest
from tilescope.jobs.plan import Request
from tilescope_dashboard.session import access
from tilescope_dashboard.session.jobs import CANCELLING, JobManager
from tilescope_dashboard.session.state import State
from tilescope_dashboard.views.form.profile import ProfileForm
from tilescope_dashboard.views.jobs.job_panel import JobPanel

from .conftest import field, press, said
from .test_profile import ENTRY


@pytest.mark.parametrize("may_launch", [False, True])
def test_visitor_starts_work_only_if_allowed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, may_launch: bool) -> None:
    (tmp_path / "kernel.py").write_text("SPEC = 1\n")
    monkeypatch.setenv(access.OWN_FILES, str(tmp_path))

    async def planner(request: Request) -> None:
        await asyncio.Event().wait()

    async def press_everything() -> tuple[int, bool]:
        jobs = JobManager(planner)
        state = State(may_launch=may_launch, catalog=[ENTRY], kernel="softmax")
        form = ProfileForm(state, jobs)
        field(form, "collectors").param.update(options={"compiler": "compiler"}, value=["compiler"])
        press(form, "Start profiling")
        started = len(jobs.jobs)
        if not may_launch:
            field(form, "own kernel").value = "kernel.py:SPEC"
            assert "Reading" not in said(form)
        # Nobody has had a page for it for an hour: whoever may start work may end it.
        job = jobs.start(Request(kernels=("softmax",)))
        job.left = time.monotonic() - 3600
        await asyncio.sleep(0)
        JobPanel(state, jobs).stop()
        ended = job.status == CANCELLING
        await asyncio.sleep(0)
        for number in [one.number for one in jobs.jobs]:
            jobs.cancel(number)
        while jobs.active:
            await asyncio.sleep(0)
        return started, ended

    assert asyncio.run(press_everything()) == (int(may_launch), may_launch)
