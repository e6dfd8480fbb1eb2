"""Texts on a job's progress and outcome, as HTML. Pure; every text of a job is escaped here."""

from __future__ import annotations

from html import escape

from tilescope_dashboard.components import html_text
from tilescope_dashboard.session.jobs import CANCELLED, CANCELLING, DONE, FAILED, WAITING, JobState

#: Last lines of the log that are shown.
_LINES = 40


def describe(job: JobState) -> str:
    """A heading and a line while the job runs, a notice when it has ended."""
    failures = f"{job.failures} failed, see the log" if job.failures else ""
    spent = f"{job.elapsed:.0f} s"
    if job.active:
        return _progress(job, spent, failures)
    kept = "Finished cases are kept." if job.folder else "No case had finished."
    kind, head, text = {
        DONE: _done(job, spent, failures),
        CANCELLED: ("info", f"{job.title}: cancelled after {spent}.", kept),
        FAILED: ("error", f"{job.title}: could not be profiled.", job.error),
    }[job.status]
    return html_text.notice(kind, head, text)


def beside_the_button(job: JobState) -> str:
    """For the form that started the job: where to look while it runs, and why it failed.

    Empty when it ended otherwise, which the progress says.
    """
    if job.active:
        return html_text.notice("info", f"{job.title} is being profiled.", "Its progress stands above the views.")
    return describe(job) if job.status == FAILED else ""


def log(job: JobState) -> str:
    """The folded end of the log; empty while the job runs, as each new line would fold it again."""
    lines = "\n".join(list(job.log)[-_LINES:])
    return f"<details><summary>Log</summary><pre>{escape(lines)}</pre></details>" if lines and not job.active else ""


def line(job: JobState) -> str:
    """One line for another job under way."""
    how = f"{job.index} of {job.of}" if job.of else ""
    return f"<p>{escape(' · '.join(filter(None, [job.title, job.status, how, f'{job.elapsed:.0f} s'])))}</p>"


def _done(job: JobState, spent: str, failures: str) -> tuple[str, str, str]:
    if job.unfinished:
        return "warning", f"{job.title}: ended after {spent}.", "; ".join(filter(None, [job.unfinished, failures]))
    return "warning" if job.failures else "info", f"{job.title}: finished in {spent}.", failures


def _progress(job: JobState, spent: str, failures: str) -> str:
    head = {WAITING: "Waiting for the job before it:", CANCELLING: "Cancelling:"}.get(job.status, "Profiling")
    of = f"case {min(job.index + 1, job.of)} of {job.of}" if job.of else ""
    value = f'value="{job.index}" max="{job.of}"' if job.of else ""
    left = "" if job.remaining is None else f"about {job.remaining:.0f} s left"
    line = " · ".join(filter(None, [of, job.doing, spent, left, failures]))
    return (
        f"<h3>{escape(head)} {escape(job.title)}</h3>"
        f'<p class="small" role="status">{escape(line)}</p><progress {value} aria-label="progress"></progress>'
    )
