"""Panel of the current job, in every session: progress, the log's tail, the result, and a button to cancel it."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any

import panel as pn
import panel_material_ui as pmui
import param

from tilescope_dashboard.components import html_text
from tilescope_dashboard.session.job_follower import JobFollower
from tilescope_dashboard.session.jobs import CANCELLING, FAILED, JobManager, JobState
from tilescope_dashboard.session.state import State
from tilescope_dashboard.views.jobs.gpu_readings import GpuReadings
from tilescope_dashboard.views.jobs.job_text import describe, log
from tilescope_dashboard.views.jobs.other_jobs import OtherJobs
from tilescope_dashboard.views.jobs.tab_job import TabJob


class JobPanel(pn.viewable.Viewer):
    """Follows the tab's own job, else the newest one. The result of its own job opens as soon as it ends.

    Only its owner may cancel a job, from any of their pages; others only once the owner's pages are closed.
    """

    state = param.ClassSelector(class_=State)

    def __init__(self, state: State, jobs: JobManager, **settings: Any) -> None:
        super().__init__(state=state, **settings)
        self._witnessed: set[int] = set()
        self._jobs, self._dismissed, self.tab_job = jobs, 0, TabJob(jobs)
        # Built when first needed: it has many models, and most pages show no job.
        self._place = pn.Column(sizing_mode="stretch_width", margin=0)
        self._seen = jobs.current.number if jobs.current and not jobs.current.active else 0
        state.param.watch(lambda _: self.draw(), "run")
        self.tab_job.param.watch(lambda _: self.draw(), "known")
        self._follower = JobFollower(jobs, self.draw)
        self.draw()

    @functools.cached_property
    def _layout(self) -> pn.Column:
        """The panel itself."""
        self._text = html_text.pane()
        self._cancel = pmui.Button(label="Cancel", variant="outlined", size="small", width=96)
        self._show = pmui.Button(label="Show results", variant="contained", size="small", width=130)
        self._close = pmui.Button(label="Dismiss", variant="text", size="small", width=90)
        self._buttons, self._log, self._gpu = pn.Row(margin=0), html_text.pane(), GpuReadings(self.state)
        self._others = OtherJobs(lambda job: self.state.may_launch and self._may_end(job), self._jobs.cancel)
        self._below = pn.Column(sizing_mode="stretch_width", margin=0)
        self._cancel.on_click(self._stop)
        self._show.on_click(lambda _: self._open(self._shown.folder if self._shown else None))
        self._close.on_click(self._dismiss)
        return pn.Column(
            self._text, self._buttons, self._gpu, self._others, self._below, sizing_mode="stretch_width",
            visible=False, styles={"border": "1px solid color-mix(in srgb, currentColor 18%, transparent)",
                                   "border-radius": "6px", "padding": "6px"}, margin=(4, 8),
        )  # fmt: skip

    @property
    def _shown(self) -> JobState | None:
        own = self.tab_job.job
        return own if own and own.active else self._jobs.current

    def draw(self) -> None:
        """Show the job as it is now."""
        job = self._shown
        visible = job is not None and job.number != self._dismissed and self._concerns(job)
        if visible and not self._place.objects:
            self._place.append(self._layout)
        if self._place.objects:
            self._layout.visible = visible
        if job is None:
            return
        self._follower.each_second(job.active)
        if self._place.objects:
            self._fill(job)
        if not job.active and self._seen != job.number:
            self._seen = job.number
            self.state.refresh()
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

    def _stop(self, _: Any) -> None:
        if self._shown and self._may_end(self._shown) and self.state.may_launch:
            self._jobs.cancel(self._shown.number)

    def _dismiss(self, _: Any) -> None:
        self._dismissed = self._shown.number if self._shown else 0
        self._layout.visible = False

    def __panel__(self) -> pn.viewable.Viewable:
        return pn.Column(self.tab_job, self._place, sizing_mode="stretch_width", margin=0)
