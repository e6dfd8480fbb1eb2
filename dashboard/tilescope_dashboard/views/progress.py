"""What the newest job is doing, in every session: progress, cancel, the log's tail, and its result."""

from __future__ import annotations

from typing import Any

import panel as pn
import panel_material_ui as pmui
import param

from tilescope_dashboard import words
from tilescope_dashboard.job_text import describe, log
from tilescope_dashboard.jobs import CANCELLING, JobManager, JobState
from tilescope_dashboard.state import State
from tilescope_dashboard.views.strip import Strip


class Progress(pn.viewable.Viewer):
    """Follows the job manager. A job that this session started is shown as soon as it ends."""

    state = param.ClassSelector(class_=State)
    own = param.ClassSelector(class_=JobState, default=None, doc="The job this session started.")

    def __init__(self, state: State, jobs: JobManager, **settings: Any) -> None:
        super().__init__(state=state, **settings)
        self._jobs, self._pending, self._ticking, self._dismissed = jobs, False, None, 0
        self._text = words.pane()
        self._cancel = pmui.Button(label="Cancel", variant="outlined", size="small", width=96)
        self._show = pmui.Button(label="Show results", variant="contained", size="small", width=130)
        self._close = pmui.Button(label="Dismiss", variant="text", size="small", width=90)
        self._buttons, self._log, self._strip = pn.Row(margin=0), words.pane(), Strip(state)
        self._below = pn.Column(sizing_mode="stretch_width", margin=0)
        self._cancel.on_click(self._stop)
        self._show.on_click(lambda _: self._open(self._jobs.current))
        self._close.on_click(self._dismiss)
        self._layout = pn.Column(
            self._text, self._buttons, self._strip, self._below, sizing_mode="stretch_width",
            visible=False, styles={"border": "1px solid color-mix(in srgb, currentColor 18%, transparent)",
                                   "border-radius": "6px", "padding": "6px"}, margin=(4, 8),
        )  # fmt: skip
        self._seen = jobs.current.number if jobs.current and not jobs.current.active else 0
        self._doc = pn.state.curdoc
        state.param.watch(lambda _: self.draw(), "run")
        unwatch = jobs.watch(self._changed)
        pn.state.on_session_destroyed(lambda _: unwatch())
        self.draw()

    def _changed(self) -> None:
        """Called in the server's loop, perhaps many times: draw once, in this session's turn."""
        if not self._pending:
            self._pending = True
            self._doc.add_next_tick_callback(self._in_turn)

    def _in_turn(self) -> None:
        self._pending = False
        self.draw()

    def draw(self) -> None:
        """Show the newest job as it is now."""
        job = self._jobs.current
        self._layout.visible = job is not None and job.number != self._dismissed
        if job is None:
            return
        self._tick(job.active)
        self._strip.follow(job.active)
        self._text.object = describe(job)
        self._offer(job)
        self._log.object = log(job)
        self._below.objects = [self._log] if self._log.object else []
        if not job.active and self._seen != job.number:
            self._seen = job.number
            self.state.refresh()
            if job is self.own and job.folder is not None:
                self._open(job)

    def _offer(self, job: JobState) -> None:
        """The buttons that make sense now. Put in and taken out: a change of their ``visible`` alone may get lost."""
        offered = []
        if job.active and self.state.may_launch:
            self._cancel.disabled = job.status == CANCELLING
            offered.append(self._cancel)
        if not job.active:
            elsewhere = job.folder is not None and job.folder.name != self.state.run
            offered += [self._show, self._close] if elsewhere else [self._close]
        if offered != self._buttons.objects:
            self._buttons.objects = offered

    def _open(self, job: JobState | None) -> None:
        if job and job.folder:
            self.state.refresh()
            self.state.run = job.folder.name

    def _stop(self, _: Any) -> None:
        if self._jobs.current and self.state.may_launch:
            self._jobs.cancel(self._jobs.current.number)

    def _dismiss(self, _: Any) -> None:
        self._dismissed = self._jobs.current.number if self._jobs.current else 0
        self._layout.visible = False

    def _tick(self, active: bool) -> None:
        """Count seconds while a job runs. On the document: Panel's own periodic callbacks mark every page busy."""
        if active and self._ticking is None:
            self._ticking = self._doc.add_periodic_callback(self._in_turn, 1000)
        elif not active and self._ticking is not None:
            self._doc.remove_periodic_callback(self._ticking)
            self._ticking = None

    def __panel__(self) -> pn.viewable.Viewable:
        return self._layout
