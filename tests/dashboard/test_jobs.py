"""The job manager with a planner and a runner of the tests' own: no process, no page."""

import asyncio
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import panel as pn
import pytest
from bokeh.document import Document
from panel.io.state import set_curdoc
from tilescope.jobs.job import Job
from tilescope.jobs.plan import Request, RequestError
from tilescope.table.case import Case
from tilescope_dashboard.session import jobs
from tilescope_dashboard.session.jobs import CANCELLED, DONE, FAILED, RUNNING, WAITING, JobManager
from tilescope_dashboard.session.state import State
from tilescope_dashboard.views.jobs.job_panel import JobPanel, OtherJobs, describe

from .conftest import said

CASES = tuple(Case("softmax", impl, "forward", "8x8-fp32") for impl in ("triton", "eager"))


async def planner(request: Request) -> Job:
    return Job(CASES, ("compiler",), runs_dir=Path("nowhere"), title=request.title)


def runner(release: asyncio.Event | None = None) -> Callable[..., Any]:
    """A supervisor that settles one case, waits, and settles the other."""

    async def run(job: Job, on_event: Callable[[dict[str, Any]], None]) -> Path:
        about = {"collector": "compiler", "of": 2}
        try:
            on_event({"event": "case", "case": CASES[0].id, "doing": "compiling", "index": 0, **about})
            on_event({"event": "result", "case": CASES[0].id, "index": 1, **about})
            on_event({"event": "case", "case": CASES[1].id, "doing": "compiling", "index": 1, **about})
            if release:
                await release.wait()
            on_event({"event": "error", "case": CASES[1].id, "message": "<b>no</b>", "index": 2, **about})
        finally:
            on_event({"event": "done", "folder": "runs/x", "index": 2, "of": 2})
        return Path("runs/x")

    return run


REQUEST = Request(kernels=("softmax",))


async def settle(manager: JobManager) -> None:
    while any(job.active for job in manager.jobs):
        await asyncio.sleep(0)


async def test_progress_counts_cases_and_ends_with_the_folder() -> None:
    release = asyncio.Event()
    manager = JobManager(planner, runner(release))
    job = manager.start(REQUEST)
    assert (job.status, job.title) == (WAITING, "softmax")
    while job.index < 1:
        await asyncio.sleep(0)
    assert job.status == RUNNING
    assert "case 2 of 2" in describe(job)
    assert "softmax/eager" in describe(job)
    release.set()
    await settle(manager)
    assert (job.status, job.index, job.failures, job.folder) == (DONE, 2, 1, Path("runs/x"))
    assert any("<b>no</b>" in line for line in job.log)


async def test_remaining_time_by_the_last_job_then_by_its_own_cases() -> None:
    release = asyncio.Event()
    manager = JobManager(planner, runner(release))
    first = manager.start(REQUEST)
    while first.index < 1:
        await asyncio.sleep(0)
    assert first.remaining is not None and "s left" in describe(first)
    release.set()
    await settle(manager)
    assert first.remaining is None
    second = JobManager(planner, runner()).start(REQUEST)
    assert second.remaining is None and "s left" not in describe(second)
    again = manager.start(REQUEST)
    while not again.pace:
        await asyncio.sleep(0)
    await settle(manager)


async def test_cancel_keeps_results_and_starts_the_next() -> None:
    manager = JobManager(planner, runner(asyncio.Event()))
    first, second = manager.start(REQUEST), manager.start(REQUEST)
    while first.index < 1:
        await asyncio.sleep(0)
    assert second.status == WAITING
    manager.cancel(first.number)
    while first.active:
        await asyncio.sleep(0)
    assert (first.status, first.folder) == (CANCELLED, Path("runs/x"))
    while second.status == WAITING:
        await asyncio.sleep(0)
    manager.cancel(second.number)
    await settle(manager)
    manager.cancel(second.number)  # again, and of one that is not there: nothing happens
    manager.cancel(99)


async def test_a_page_that_breaks_does_not_end_the_job() -> None:
    manager = JobManager(planner, runner())
    seen = []

    def broken() -> None:
        seen.append(1)
        raise RuntimeError("gone")

    unwatch = manager.watch(broken)
    job = manager.start(REQUEST)
    await settle(manager)
    assert job.status == DONE
    assert seen
    unwatch()
    count = len(seen)
    manager.start(REQUEST)
    await settle(manager)
    assert len(seen) == count


def test_a_page_is_redrawn_as_itself_whoever_tells() -> None:
    own, others = Document(), Document()
    drawn = []
    with set_curdoc(own):
        follower = jobs.Follower(lambda changed: lambda: None, lambda: drawn.append(pn.state.curdoc))
    with set_curdoc(others):
        follower.changed()
        (waiting,) = own.session_callbacks
        waiting.callback()
    assert drawn == [own]


async def test_a_job_is_left_to_others_when_its_person_has_gone(clock: SimpleNamespace) -> None:
    manager = JobManager(planner, runner())
    job = manager.start(REQUEST)
    job.person = "p"
    leave, stay = manager.enter(lambda other: other.person == "p"), manager.enter(lambda other: False)
    clock.now += 1000.0
    assert not manager.abandoned(job)  # a page of theirs is there
    leave()
    clock.now += 30.0
    assert not manager.abandoned(job)  # it may be loaded anew
    clock.now += 60.0
    assert manager.abandoned(job)
    manager.enter(lambda other: other.person == "p")
    assert not manager.abandoned(job)  # they are back
    stay()
    # The minute begins when they go, whether or not anyone has asked meanwhile.
    other = manager.start(REQUEST)
    other.person = "q"
    gone = manager.enter(lambda job: job.person == "q")
    clock.now += 1000.0
    gone()
    assert not manager.abandoned(other)
    await settle(manager)


@pytest.mark.parametrize("error", [RequestError("unknown <kernel>"), RuntimeError("boom")])
async def test_what_cannot_be_planned_is_said_escaped(error: Exception, caplog: pytest.LogCaptureFixture) -> None:
    async def refuse(request: Request) -> Job:
        raise error

    manager = JobManager(refuse, runner())
    job = manager.start(REQUEST)
    await settle(manager)
    assert (job.status, job.error) == (FAILED, str(error))
    assert "<kernel>" not in describe(job)
    # Only what nobody expected leaves a traceback in the log.
    assert bool(caplog.records) == isinstance(error, RuntimeError)


async def test_old_running_job_is_remembered_and_cancelled() -> None:
    release = asyncio.Event()
    manager = JobManager(planner, runner(release))
    first = manager.start(REQUEST)
    others = [manager.start(REQUEST) for _ in range(30)]
    while first.index < 1:
        await asyncio.sleep(0)
    assert manager.active == [first, *others]
    manager.cancel(first.number)
    while first.active:
        await asyncio.sleep(0)
    assert first.status == CANCELLED
    release.set()
    await settle(manager)
    assert manager.active == []
    # The newest jobs that have ended are kept.
    assert manager.jobs == others[-20:]


def test_page_lists_jobs_and_stops_only_own() -> None:
    stopped: list[int] = []
    listed = OtherJobs(lambda job: job.person == "me", stopped.append)
    running = jobs.JobState(1, "<b>mine</b>", status=RUNNING, person="me", of=9, index=3)
    theirs = jobs.JobState(2, "theirs", person="you")
    waiting = [jobs.JobState(number, f"job {number}", person="me") for number in range(3, 60)]
    listed.draw([running, theirs, *waiting])
    shown = listed.__panel__().objects
    texts = [part.object for part in shown if hasattr(part, "object")]
    assert "&lt;b&gt;mine&lt;/b&gt; · running · 3 of 9" in texts[1]
    assert texts[-1] == f"<p>and {59 - 25} more that wait</p>"
    buttons = [part for part in shown if hasattr(part, "clicks")]
    assert len(buttons) == 24  # all that are listed but theirs
    buttons[0].clicks += 1
    assert stopped == [1]
    listed.draw([theirs])
    assert not any(hasattr(part, "clicks") for part in listed.__panel__().objects)
    listed.draw([])
    assert listed.__panel__().objects == []


async def test_job_with_outstanding_cases_is_no_success() -> None:
    why = (
        "not complete: 24 of 48 cases of compiler are outstanding (worker was killed): go on with 'tilescope resume x'"
    )

    async def run(job: Job, on_event: Callable[[dict[str, Any]], None]) -> Path:
        on_event({"event": "done", "folder": "runs/x", "complete": False, "why": why, "index": 1, "of": 2})
        return Path("runs/x")

    manager = JobManager(planner, run)
    job = manager.start(REQUEST)
    await settle(manager)
    assert (job.status, job.unfinished) == (DONE, why)
    assert "24 of 48 cases" in describe(job)
    assert "finished in" not in describe(job)


def test_failed_job_is_shown_once_to_its_person(in_runs: None) -> None:
    manager = JobManager(planner, runner())
    job = jobs.JobState(1, "softmax", status=RUNNING)
    manager.jobs.append(job)
    state = State(may_launch=True)
    own, other = JobPanel(state, manager), JobPanel(state, manager)
    own.tab_job.job = job
    for page in (own, other):
        page.draw()
        assert page.panel.visible
    job.status, job.error = FAILED, "no such file"
    for page in (own, other):
        page.draw()
    assert own.panel.visible
    assert "no such file" in said(own)
    assert not other.panel.visible
    later = JobPanel(state, manager)
    later.tab_job.job = job
    later.draw()
    assert not later.panel.visible
    assert not JobPanel(state, manager).panel.visible
    # A page that was being loaded anew when its job ended says how.
    job.told = False
    later.draw()
    assert later.panel.visible
