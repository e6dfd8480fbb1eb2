"""Other jobs under way: a line each, with a button to cancel it."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import panel as pn
import panel_material_ui as pmui

from tilescope_dashboard.components import html_text, layout
from tilescope_dashboard.session.jobs import CANCELLING, JobState
from tilescope_dashboard.views.jobs import job_text

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
            text.object, button.disabled = job_text.line(job), job.status == CANCELLING
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
