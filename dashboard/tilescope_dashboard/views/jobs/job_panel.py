"""Panel of the current job, in every session: progress, the log's tail, the result, and buttons to cancel it and the others."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from pathlib import Path

import panel as pn
import panel_material_ui as pmui

from tilescope_dashboard.components import html_text, layout
from tilescope_dashboard.session.jobs import CANCELLING, FAILED, Follower, JobManager, JobState
from tilescope_dashboard.session.state import State
from tilescope_dashboard.views.jobs.job_text import describe, line, log
from tilescope_dashboard.views.jobs.readings import JobReadings
from tilescope_dashboard.views.jobs.tab_job import TabJob

#: Most rows, as each is several models. Later jobs move up as others end.
_SHOWN = 25


class OtherJobs(layout.Part):
    """Empty without other jobs. ``may_end`` tells whether the visitor may cancel a job; ``cancel`` does."""

    def __init__(self, may_end: Callable[[JobState], bool], cancel: Callable[[int], None]) -> None:
        super().__init__()
        self._may_end, self._cancel = may_end, cancel
        self._rows: dict[int, tuple[pn.pane.HTML, pmui.Button]] = {}
        self._head, self._more = html_text.pane("<h3>Other jobs under way</h3>"), html_text.pane()
        self.layout = layout.column()

    def draw(self, jobs: Sequence[JobState]) -> None:
        """Show these jobs in order, the running one first."""
        shown = jobs[:_SHOWN]
        self._rows = {job.number: self._rows.get(job.number) or self._row(job) for job in shown}
        objects: list[pn.viewable.Viewable] = [self._head] if shown else []
        for job in shown:
            text, button = self._rows[job.number]
            text.object, button.disabled = line(job), job.status == CANCELLING
            objects += [text, button] if self._may_end(job) else [text]
        if len(jobs) > len(shown):
            self._more.object = f"<p>and {len(jobs) - len(shown)} more that wait</p>"
            objects.append(self._more)
        # Unchanged rows are not sent to the browser again.
        if objects != self.layout.objects:
            self.layout.objects = objects

    def _row(self, job: JobState) -> tuple[pn.pane.HTML, pmui.Button]:
        button = pmui.Button(label=f"Cancel job {job.number}", variant="outlined", size="small", width=150)
        button.on_click(lambda _: self._stop(job))
        return html_text.pane(), button

    def _stop(self, job: JobState) -> None:
        if self._may_end(job):
            self._cancel(job.number)


_FRAME = {
    "border": "1px solid color-mix(in srgb, currentColor 18%, transparent)",
    "border-radius": "6px",
    "padding": "6px",
}


class JobPanel(layout.Part):
    """Follows the tab's own job, else the newest one. The result of its own job opens as soon as it ends.

    Only its owner may cancel a job, from any of their pages; others only once the owner's pages are closed.
    """

    def __init__(self, state: State, jobs: JobManager) -> None:
        super().__init__()
        self.state, self._witnessed = state, set[int]()
        self._jobs, self._dismissed, self.tab_job = jobs, 0, TabJob(jobs)
        self.layout = layout.column(self.tab_job)
        self._seen = jobs.current.number if jobs.current and not jobs.current.active else 0
        state.param.watch(lambda _: self.draw(), "run")
        self.tab_job.param.watch(lambda _: self.draw(), "known")
        self._follower = Follower(jobs.watch, self.draw)
        self.draw()

    @functools.cached_property
    def panel(self) -> pn.Column:
        """Built when first needed: it has many models, and most pages show no job."""
        self._text = html_text.pane()
        self._cancel = pmui.Button(label="Cancel", variant="outlined", size="small", width=96)
        self._show = pmui.Button(label="Show results", variant="contained", size="small", width=130)
        self._close = pmui.Button(label="Dismiss", variant="text", size="small", width=90)
        self._buttons, self._log, self._gpu = pn.Row(margin=0), html_text.pane(), JobReadings(self.state)
        self._others = OtherJobs(lambda job: self.state.may_launch and self._may_end(job), self._jobs.cancel)
        self._below = layout.column()
        self._cancel.on_click(lambda _: self.stop())
        self._show.on_click(lambda _: self._open(self._shown.folder if self._shown else None))
        self._close.on_click(lambda _: self._dismiss())
        parts = self._text, self._buttons, self._gpu, self._others, self._below
        return layout.column(*parts, visible=False, styles=_FRAME, margin=(4, 8))

    @property
    def _shown(self) -> JobState | None:
        own = self.tab_job.job
        return own if own and own.active else self._jobs.current

    def draw(self) -> None:
        """Show the job as it is now."""
        job = self._shown
        visible = job is not None and job.number != self._dismissed and self._concerns(job)
        if visible and self.panel not in self.layout:
            self.layout.append(self.panel)
        built = len(self.layout) > 1
        if built:
            self.panel.visible = visible
        if job is None:
            return
        self._follower.each_second(job.active)
        if built:
            self._fill(job)
        if not job.active and self._seen != job.number:
            self._seen = job.number
            self.state.refresh()
            if pn.state.notifications and self.tab_job.mine(job):
                pn.state.notifications.info(html_text.plain(f"{job.title}: {job.status}"), duration=8000)
        self._open(self.tab_job.result())

    def _fill(self, job: JobState) -> None:
        self._gpu.follow(job.active)
        self._text.object = describe(job)
        self._offer(job)
        self._others.draw([other for other in self._jobs.active if other is not job])
        self._log.object = log(job)
        self._below.objects = [self._log] if self._log.object else []

    def _concerns(self, job: JobState) -> bool:
        """Whether the page shows the job: while it is under way, and its end if the page saw it under way.

        A failure is shown to its owner alone. A reloaded page of the owner shows the end if no page has yet.
        """
        own = self.tab_job.mine(job)
        if job.active or (job is self.tab_job.job and not job.told):
            self._witnessed.add(job.number)
        shown = job.active or (job.number in self._witnessed and (own or job.status != FAILED))
        job.told = job.told or (shown and own and not job.active)
        return shown

    def _offer(self, job: JobState) -> None:
        """Show the buttons that apply. They are added and removed, as a change of ``visible`` alone may get lost."""
        offered = []
        may_end = self._may_end(job)
        # Offer it until the browser has told the visitor's id: a button added while the page loads may get lost.
        if job.active and self.state.may_launch and (may_end or not self.tab_job.known):
            self._cancel.disabled = job.status == CANCELLING or not may_end
            offered.append(self._cancel)
        if not job.active:
            elsewhere = job.folder is not None and job.folder.name != self.state.run
            offered += [self._show, self._close] if elsewhere else [self._close]
        if offered != self._buttons.objects:
            self._buttons.objects = offered

    def _open(self, folder: Path | None) -> None:
        if folder is not None:
            self.state.refresh()
            self.state.go_to(run=folder.name)

    def _may_end(self, job: JobState) -> bool:
        return self.tab_job.mine(job) or self._jobs.abandoned(job)

    def stop(self) -> None:
        """Cancel the job that is shown, if the visitor may."""
        if self._shown and self._may_end(self._shown) and self.state.may_launch:
            self._jobs.cancel(self._shown.number)

    def _dismiss(self) -> None:
        self._dismissed = self._shown.number if self._shown else 0
        self.panel.visible = False
