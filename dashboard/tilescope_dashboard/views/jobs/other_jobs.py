"""Other jobs under way: a line each, with a button to cancel it."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import panel as pn
import panel_material_ui as pmui

from tilescope_dashboard.components import html_text
from tilescope_dashboard.session.jobs import CANCELLING, JobState
from tilescope_dashboard.views.jobs import job_text

#: Most rows, as each is several models. Later jobs move up as others end.
_SHOWN = 25


class OtherJobs(pn.viewable.Viewer):
    """Empty without other jobs. ``may_end`` tells whether the visitor may cancel a job; ``cancel`` does."""

    def __init__(self, may_end: Callable[[JobState], bool], cancel: Callable[[int], None]) -> None:
        super().__init__()
        self._may_end, self._cancel = may_end, cancel
        self._texts: dict[int, pn.viewable.Viewable] = {}
        self._buttons: dict[int, pmui.Button] = {}
        self._head, self._more = html_text.pane(), html_text.pane()
        self._layout = pn.Column(sizing_mode="stretch_width", margin=0)

    def draw(self, jobs: Sequence[JobState]) -> None:
        """Show these jobs in order, the running one first."""
        shown = jobs[:_SHOWN]
        rows = [self._row(job) for job in shown]
        for kept in (self._texts, self._buttons):
            for number in kept.keys() - {job.number for job in shown}:
                del kept[number]
        self._head.object = "<h3>Other jobs under way</h3>"
        self._more.object = f"<p>and {len(jobs) - len(shown)} more that wait</p>" if len(jobs) > len(shown) else ""
        flat = [part for row in rows for part in row]
        objects = [self._head, *flat, *([self._more] if self._more.object else [])] if flat else []
        # Unchanged rows are not sent to the browser again.
        if objects != self._layout.objects:
            self._layout.objects = objects

    def _row(self, job: JobState) -> list[pn.viewable.Viewable]:
        if job.number not in self._texts:
            self._texts[job.number] = html_text.pane()
            button = pmui.Button(label=f"Cancel job {job.number}", variant="outlined", size="small", width=150)
            button.on_click(lambda _: self._stop(job))
            self._buttons[job.number] = button
        text, button = self._texts[job.number], self._buttons[job.number]
        text.object = job_text.line(job)
        button.disabled = job.status == CANCELLING
        return [text, button] if self._may_end(job) else [text]

    def _stop(self, job: JobState) -> None:
        if self._may_end(job):
            self._cancel(job.number)

    def __panel__(self) -> pn.viewable.Viewable:
        return self._layout
