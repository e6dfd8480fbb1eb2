"""A sweep over configs that the open run lacks: one under way, the run that has one, or how to make one."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from html import escape
from typing import Any

from tilescope.models import sweeps
from tilescope.runs import store

from tilescope_dashboard.data.recordings import with_sweep
from tilescope_dashboard.session.job_follower import JobFollower
from tilescope_dashboard.session.jobs import JobManager, JobState
from tilescope_dashboard.session.state import State
from tilescope_dashboard.views.missing import Missing

#: The label in the profile form.
_TICK = "every config (autotune)"


class MissingSweep(Missing):
    """Follows the jobs, for one of them may be the sweep."""

    def __init__(self, state: State, jobs: JobManager, **settings: Any) -> None:
        super().__init__(state=state, **settings)
        self._jobs, self._job, self._missing = jobs, None, False
        state.param.watch(lambda _: self._draw(), ["runs", "catalog", "may_launch"])
        self._follower = JobFollower(jobs, self._changed)

    def show(self, missing: bool) -> None:
        """Say where to find a sweep of the state's kernel, if it is ``missing``."""
        self._missing = missing
        self._draw()

    def _changed(self) -> None:
        if self._missing and sweeping(self._jobs.jobs, self.state.kernel) is not self._job:
            self._draw()

    def _draw(self) -> None:
        state = self.state
        self._job = sweeping(self._jobs.jobs, state.kernel) if self._missing else None
        if not self._missing:
            self.say("")
        elif self._job:
            self.say(under_way(state.kernel))
        else:
            command, implementations = state.command("tune"), state.declared.get("implementations", {})
            made = how_to_make(state.kernel, implementations, command, form=state.may_launch)
            self.seek(with_sweep, described, otherwise=made)


def sweeping(jobs: Iterable[JobState], kernel: str) -> JobState | None:
    """The job that sweeps over the kernel's configs now, or will; None where none does."""
    return next((job for job in jobs if job.active and kernel in job.swept), None)


def described(run: store.LoadedRun, kernel: str) -> str:
    """Number of the kernel's configs in a run, in words."""
    return f"{sweeps.size(run.table, kernel)} configs"


def how_to_make(kernel: str, implementations: Mapping[str, Mapping[str, Any]], command: str, form: bool) -> str:
    """Ways to have configs in the view: the profile ``form``, where there is one, or a command; escaped.

    ``implementations`` are as the kernel declares them, empty where that is not known.
    """
    name = escape(kernel or "a kernel")
    if implementations and not any(known.get("configs") for known in implementations.values()):
        return f"<p>{name} declares none.</p>"
    by_form = f"tick '{_TICK}' in the form and profile it, or " if form else ""
    return f"<p>To have those of {name}, {by_form}run <code>{escape(command)}</code>.</p>"


def under_way(kernel: str) -> str:
    """Notice that configs are being profiled; escaped."""
    return f"<p>Those of {escape(kernel)} are being profiled: the progress stands above the views.</p>"
