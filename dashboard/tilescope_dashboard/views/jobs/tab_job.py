"""The job that a browser tab started, and whether a job is the same person's."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar

import panel as pn
import param
from param.parameterized import no_instance_params

from tilescope_dashboard.components.script import ScriptComponent
from tilescope_dashboard.session.jobs import JobManager, JobState
from tilescope_dashboard.session.scheduling import next_tick, once_loaded


@no_instance_params  # else each has copies of its forty parameters
class TabJob(ScriptComponent):
    """An invisible part of the page, through which the browser tells who this is, so that a job keeps its owner when the page is reloaded.

    ``person`` and ``tab`` are random ids that the browser keeps for this site and for this tab of it. They are empty until it has told
    them, and where it keeps nothing. They are secrets: whoever knows them may do what the person may. So they stand in no address, which
    people hand on, and no other session is told them.
    """

    person = param.String()
    tab = param.String()
    opened = param.String(doc="Id of the run of the last job whose result this tab has opened by itself.")
    job = param.ClassSelector(class_=JobState, default=None, precedence=-1, doc="What this tab started last.")
    known = param.Boolean(default=False, precedence=-1, doc="The browser has said who this is.")
    #: These two are the server's alone.
    _rename: ClassVar[Mapping[str, str | None]] = {"job": None, "known": None}

    def __init__(self, jobs: JobManager) -> None:
        super().__init__(width=0, height=0, margin=0)
        self._jobs = jobs
        self.param.watch(lambda _: self._claim(), "job")
        leave = jobs.enter(self.mine)
        pn.state.on_session_destroyed(lambda _: leave())

    def mine(self, job: JobState) -> bool:
        """Whether the job is this person's, started from any of their pages."""
        return job is self.job or (job.person != "" and job.person == self.person)

    def result(self) -> Path | None:
        """The run of the tab's own job, returned once: a page reloaded later keeps to its address."""
        folder = None if self.job is None or self.job.active else self.job.folder
        if folder is None or self.opened == folder.name:
            return None
        self.opened = folder.name
        return folder

    def _handle_msg(self, data: Any) -> None:
        told = {name: str(data.get(name) or "") for name in ("person", "tab", "opened")}
        # Changes made before the page is loaded would not reach the browser.
        once_loaded(lambda: next_tick(lambda: self._meet(told)))

    def _meet(self, told: dict[str, str]) -> None:
        """Take up a job of this tab that is under way, or that ended while the page was reloaded."""
        self.param.update(**{**told, "opened": self.opened or told["opened"]})
        if self.job is None:
            self.job = next((job for job in reversed(self._jobs.jobs) if job.tab == self.tab), None)
        self._claim()
        self.known = bool(self.person)

    def _claim(self) -> None:
        if self.job is not None:
            self.job.person, self.job.tab = self.person, self.tab
