"""Button that saves the open run as a report, with what it is compared with."""

from __future__ import annotations

import asyncio
import contextlib
import io
from typing import Any

import panel as pn
from tilescope.models import compare
from tilescope.models.compare import Side
from tilescope.runs import store

from tilescope_dashboard import report
from tilescope_dashboard.components import layout
from tilescope_dashboard.components.choice import Choice
from tilescope_dashboard.components.download import Download
from tilescope_dashboard.data.exports import stem
from tilescope_dashboard.data.run_cache import open_cached
from tilescope_dashboard.data.url_state import run_folder
from tilescope_dashboard.session.state import State

_FORMATS = {"HTML": "html", "Markdown": "md", "CSV": "csv", "Parquet": "parquet"}


class Export(layout.Part):
    """A button, and beside it the format: the same files as ``tilescope report`` writes."""

    def __init__(self, state: State) -> None:
        super().__init__()
        self.state = state
        self._format = Choice("as", 116, self._name, options=_FORMATS, value="html", align="end")
        at: dict[str, Any] = {"width": 140, "margin": (5, 8), "align": "end"}
        self.button = Download(
            label="Export report", callback=self._report, filename="tilescope.html", variant="outlined", **at
        )
        state.param.watch(lambda *_: self._name(), ["loaded", "run", "compared"])
        self._name()
        self.layout = pn.Row(self.button, self._format, margin=0)

    def _name(self) -> None:
        self.button.disabled = self.state.loaded is None
        self.button.filename = f"{stem(self.state.run or 'report')}.{self._format.value}"

    async def _report(self) -> io.BytesIO:
        # It takes a second or two, so run it in a thread while other sessions are served.
        return io.BytesIO(await asyncio.to_thread(report.render, sides(self.state), self._format.value))


def sides(state: State) -> list[Side]:
    """The run and its baselines. Runs that cannot be opened are left out, as in Compare."""
    found = [Side(state.loaded)]
    mine = (state.loaded.run.id, f"{state.loaded.run.id}:triton")
    for token in dict.fromkeys(state.compared):
        with contextlib.suppress(store.StoreError, compare.CompareError, OSError):
            side = compare.side(token, run_folder, open_cached)
            if side.name not in (*mine, *(known.name for known in found)):
                found.append(side)
    return found
