"""Button that saves the open run as a report, with what it is compared with."""

from __future__ import annotations

import asyncio
import contextlib
import io

import panel as pn
import panel_material_ui as pmui
import param
from tilescope.models import compare
from tilescope.models.compare import Side
from tilescope.runs import store

from tilescope_dashboard import report
from tilescope_dashboard.components.download import Download
from tilescope_dashboard.data.exports import stem
from tilescope_dashboard.data.run_cache import open_cached
from tilescope_dashboard.data.url_state import run_folder
from tilescope_dashboard.session.state import State

_FORMATS = {"HTML": "html", "Markdown": "md", "CSV": "csv", "Parquet": "parquet"}


class Export(pn.viewable.Viewer):
    """A button, and beside it the format: the same files as ``tilescope report`` writes."""

    state = param.ClassSelector(class_=State)

    def __init__(self, state: State, **settings: object) -> None:
        super().__init__(state=state, **settings)
        self._format = pmui.Select(label="as", options=_FORMATS, value="html", size="small", width=116, align="end")
        self._button = Download(
            label="Export report", callback=self._report, filename="tilescope.html", variant="outlined", width=140,
            margin=(5, 8), align="end",
        )  # fmt: skip
        self._format.param.watch(self._name, "value")
        state.param.watch(self._name, ["loaded", "run", "compared"])
        self._name()

    @property
    def said(self) -> pn.viewable.Viewable:
        """Why the last report was not saved. It stands below the row, which has no room for it."""
        return self._button.said

    def _name(self, *_: param.parameterized.Event) -> None:
        self._button.disabled = self.state.loaded is None
        self._button.filename = f"{stem(self.state.run or 'report')}.{self._format.value}"

    async def _report(self) -> io.BytesIO:
        # It takes a second or two, so run it in a thread while other sessions are served.
        return io.BytesIO(await asyncio.to_thread(report.render, sides(self.state), self._format.value))

    def __panel__(self) -> pn.viewable.Viewable:
        return pn.Row(self._button, self._format, margin=0)


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
