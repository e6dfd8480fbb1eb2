"""Everything on the page that starts or ends work asks whether its visitor may; what a button looks like decides nothing."""

import asyncio
import time
from pathlib import Path
from typing import Any

import pytest
from tilescope_dashboard.session import access
from tilescope_dashboard.session.job_follower import JobFollower
from tilescope_dashboard.session.jobs import JobManager, JobState
from tilescope_dashboard.session.state import State
from tilescope_dashboard.views.form import choices
from tilescope_dashboard.views.form.fields import ProfileFields
from tilescope_dashboard.views.form.profile import ProfileForm
from tilescope_dashboard.views.jobs.job_panel import JobPanel

from .conftest import field


def test_who_may_not_launch_starts_reads_and_ends_nothing_whatever_the_page_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "kernel.py").write_text("SPEC = 1\n")
    monkeypatch.setenv(access.OWN_FILES, str(tmp_path))
    monkeypatch.setattr(JobFollower, "each_second", lambda self, wanted: None)
    monkeypatch.setattr(choices, "entry_of", lambda catalog, name: {"name": "softmax"})
    monkeypatch.setattr(ProfileFields, "fill", lambda self, entry: None)
    monkeypatch.setattr(ProfileFields, "request", lambda self, entry: entry)
    described: list[Any] = []
    monkeypatch.setattr("tilescope_dashboard.views.form.user_kernel.questions.describe", described.append)

    async def press_everything(may_launch: bool) -> list[str]:
        jobs, done = JobManager(), []
        monkeypatch.setattr(jobs, "start", lambda request: done.append("started") or JobState(2, "second"))
        monkeypatch.setattr(jobs, "cancel", lambda number: done.append("cancelled"))
        state = State(may_launch=may_launch)
        form = ProfileForm(state, jobs)
        field(form, "Start profiling").param.trigger("clicks")
        if not may_launch:
            field(form, "own kernel").value = "kernel.py:SPEC"
        # Nobody has had a page for it for an hour: whoever may start work may end it.
        jobs.jobs.append(JobState(1, "first", left=time.monotonic() - 3600))
        JobPanel(state, jobs)._stop(None)
        for _ in range(20):
            await asyncio.sleep(0)
        return done

    assert asyncio.run(press_everything(may_launch=False)) == []
    assert described == []
    assert asyncio.run(press_everything(may_launch=True)) == ["started", "cancelled"]
