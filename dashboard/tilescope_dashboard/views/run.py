"""The dialog on the open run: a report of it, with what it is compared with."""

from __future__ import annotations

import contextlib
import io
from collections.abc import Callable
from pathlib import Path
from typing import Any

import panel as pn
import panel_material_ui as pmui
from tilescope.models import compare
from tilescope.models.compare import Side
from tilescope.runs import labels, store

from tilescope_dashboard import report
from tilescope_dashboard.components import html_text, layout
from tilescope_dashboard.components.download import link, reason
from tilescope_dashboard.components.panel_dialog import PanelDialog
from tilescope_dashboard.data.exports import stem
from tilescope_dashboard.data.run_cache import open_cached
from tilescope_dashboard.data.url_state import run_folder
from tilescope_dashboard.session.scheduling import next_tick
from tilescope_dashboard.session.state import RUN, State

#: The first press of the button that deletes asks for a second.
_DELETE = "Delete"
_FORMATS = {"HTML": "html", "Markdown": "md", "CSV": "csv", "Parquet": "parquet"}


class RunDialog(PanelDialog):
    """What a user says of the open run, its deletion, and links that save it: the same files as ``tilescope report`` writes."""

    name_of_panel, title = RUN, "This run"

    def make(self) -> list[Any]:
        wide: dict[str, Any] = {"sizing_mode": "stretch_width", "size": "small"}
        self.head, self.trouble = html_text.pane(), html_text.pane()
        self.named, self.tags = pmui.TextInput(label="name", **wide), pmui.TextInput(label="tags, with commas", **wide)
        self.note = pmui.TextAreaInput(label="note", rows=3, **wide)
        self.save, self.gone = (pmui.Button(size="small", variant="outlined", width=120) for _ in range(2))
        self.save.label = "Save"
        self.save.on_click(lambda _: next_tick(self._save))
        self.gone.on_click(lambda _: next_tick(self._delete))
        self.own = layout.column(self.named, self.tags, self.note, pn.Row(self.save, self.gone, margin=0))
        self.links = [
            link(label, self._report(end), self._name(end), f"Save as {label}") for label, end in _FORMATS.items()
        ]
        row = pn.FlexBox(html_text.Html("<b>Report:</b>"), *self.links, align_items="center")
        return [self.head, self.trouble, row, *[pressed.said for pressed in self.links], self.own]

    @property
    def known(self) -> store.Summary | None:
        """The open run in the list of runs."""
        return next((run for run in self.state.runs if run.id == self.state.run), None)

    def fill(self) -> None:
        run = self.known
        self.head.object = html_text.subheading(run.title or run.id, run.id) if run else ""
        self.trouble.object = ""
        self.own.visible = self._may_change(run)
        if run:
            self.named.value, self.tags.value, self.note.value = run.title, ", ".join(run.tags), run.note
        self.gone.label = _DELETE
        for pressed in self.links:
            pressed.disabled = self.state.loaded is None

    def _may_change(self, run: store.Summary | None) -> bool:
        """Whether the visitor may change the run: recordings, and runs that are being written, stay as they are."""
        fixed = run is None or run.recorded or run.path.name.startswith(store.PARTIAL)
        return self.state.may_launch and not fixed

    def _save(self) -> None:
        said = labels.labels(self.named.value, tuple(self.tags.value.split(",")), self.note.value)
        self._change(lambda folder: labels.write(folder, said))

    def _delete(self) -> None:
        """Delete the run at the second press."""
        if self.gone.label == _DELETE:
            self.gone.label = "Delete for good"
            return
        if self._change(labels.delete):
            self.state.panel = ""

    def _change(self, change: Callable[[Path], object]) -> bool:
        """Change the run's folder, if the visitor may, and list the runs again; say why it failed."""
        run = self.known
        if run is None or not self._may_change(run):
            return False
        try:
            change(run.path)
        except OSError as error:
            self.trouble.object = html_text.notice("error", "Not changed:", reason(error))
            return False
        self.state.refresh()
        return True

    def _name(self, end: str) -> Callable[[], str]:
        return lambda: f"{stem(self.state.run or 'report')}.{end}"

    def _report(self, end: str) -> Callable[[], io.BytesIO]:
        return lambda: io.BytesIO(report.render(sides(self.state), end))


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
