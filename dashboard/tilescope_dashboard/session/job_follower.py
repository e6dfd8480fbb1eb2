"""Redraws of a session when a job changes. Jobs change in the server's event loop; a session draws at its own ticks."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import panel as pn

from tilescope_dashboard.session.jobs import JobManager


class JobFollower:
    """Calls ``draw`` after changes of any job, once for several at a time, until the session ends."""

    def __init__(self, jobs: JobManager, draw: Callable[[], Any]) -> None:
        self._draw, self._pending, self._ticking, self._doc = draw, False, None, pn.state.curdoc
        unwatch = jobs.watch(self.changed)
        pn.state.on_session_destroyed(lambda _: unwatch())

    def changed(self) -> None:
        """Schedule a redraw. Called in the server's event loop, for each change."""
        if not self._pending and self._doc is not None:
            self._pending = True
            self._doc.add_next_tick_callback(self._redraw)

    def each_second(self, wanted: bool) -> None:
        """Also draw each second, or stop that. Uses the document's callback, as Panel's periodic callbacks mark every page busy."""
        if wanted and self._ticking is None:
            self._ticking = self._doc.add_periodic_callback(self._redraw, 1000)
        elif not wanted and self._ticking is not None:
            self._doc.remove_periodic_callback(self._ticking)
            self._ticking = None

    def _redraw(self) -> None:
        self._pending = False
        self._draw()
