"""The job that a browser tab started, and whether a job is the same person's."""

from __future__ import annotations

from pathlib import Path

import panel as pn
import param

from tilescope_dashboard.browser.visitor import Visitor
from tilescope_dashboard.components import layout
from tilescope_dashboard.session.jobs import JobManager, JobState


class TabJob(layout.Part):
    """An invisible part of the page, through which the browser tells the visitor's id."""

    job = param.ClassSelector(class_=JobState, default=None, doc="What this tab of the browser started last.")
    known = param.Boolean(default=False, doc="The browser has said who this is.")

    def __init__(self, jobs: JobManager) -> None:
        super().__init__()
        self._jobs = jobs
        self.layout = self._visitor = Visitor()
        self.param.watch(lambda _: self._claim(), "job")
        self._visitor.param.watch(lambda _: self._met(), "tab")
        leave = jobs.enter(self.mine)
        pn.state.on_session_destroyed(lambda _: leave())

    def mine(self, job: JobState) -> bool:
        """Whether the job is this person's, started from any of their pages."""
        return job is self.job or (job.person != "" and job.person == self._visitor.person)

    def result(self) -> Path | None:
        """The run of the tab's own job, returned once: a page reloaded later keeps to its address."""
        folder = None if self.job is None or self.job.active else self.job.folder
        if folder is None or self._visitor.opened == folder.name:
            return None
        self._visitor.opened = folder.name
        return folder

    def _met(self) -> None:
        """Take up a job of this tab that is under way, or that ended while the page was reloaded."""
        if self.job is None:
            self.job = next((job for job in reversed(self._jobs.jobs) if job.tab == self._visitor.tab), None)
        self._claim()
        self.known = bool(self._visitor.person)

    def _claim(self) -> None:
        if self.job is not None:
            self.job.person, self.job.tab = self._visitor.person, self._visitor.tab
