"""The message where no recording has a sweep: one is under way, or how to make one."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from html import escape
from typing import Any

from tilescope_dashboard.session.jobs import JobState
from tilescope_dashboard.session.state import State

#: The label in the profile form.
_TICK = "every config (autotune)"


def otherwise(state: State, jobs: Iterable[JobState]) -> str:
    """How to get a sweep of the chosen kernel, as HTML."""
    if sweeping(jobs, state.kernel):
        return under_way(state.kernel)
    implementations = state.declared.get("implementations", {})
    return how_to_make(state.kernel, implementations, state.command("tune"), form=state.may_launch)


def sweeping(jobs: Iterable[JobState], kernel: str) -> JobState | None:
    """The running or waiting job that sweeps the kernel's configs; None without one."""
    return next((job for job in jobs if job.active and kernel in job.swept), None)


def how_to_make(kernel: str, implementations: Mapping[str, Mapping[str, Any]], command: str, form: bool) -> str:
    """Ways to have configs in the view: the profile ``form``, where there is one, or a command; escaped.

    ``implementations`` are as the kernel declares them, empty where that is not known.
    """
    name = escape(kernel or "a kernel")
    if implementations and not any(known.get("configs") for known in implementations.values()):
        return f"<p>{name} declares no configs.</p>"
    by_form = f"press Profile and tick '{_TICK}', or " if form else ""
    return f"<p>No run has configs of {name}: {by_form}run <code>{escape(command)}</code>.</p>"


def under_way(kernel: str) -> str:
    """Notice that configs are being profiled; escaped."""
    return f"<p>Those of {escape(kernel)} are being profiled: the progress stands above the views.</p>"
