"""A dialog over the views that is open while the state says so."""

from __future__ import annotations

from typing import Any

import panel_material_ui as pmui
import param

from tilescope_dashboard.components import layout
from tilescope_dashboard.session.scheduling import next_tick
from tilescope_dashboard.session.state import State

_SX = {"& .MuiDialog-paper": {"margin": "12px", "width": "calc(100% - 24px)", "backgroundImage": "none"}}


class PanelDialog(layout.Part):
    """Open while the state's ``panel`` is its ``name``. The dialog, with a subclass's parts, is made when it first opens, and put into
    ``layout``: a place of its own, or one that dialogs share.
    """

    name_of_panel = title = ""
    size = "sm"

    def __init__(self, state: State, place: layout.Column | None = None) -> None:
        super().__init__()
        self.state, self.made, self.layout = state, False, layout.flow() if place is None else place
        self._dialog: pmui.Dialog | None = None
        state.param.watch(lambda _: next_tick(self.follow), "panel")
        state.param.watch(lambda *_: self.made and self.fill(), ["runs", "loaded", "kernel"])
        if state.panel == self.name_of_panel:
            self.follow()

    def make(self) -> list[Any]:
        """The dialog's parts."""
        raise TypeError(f"{type(self).__name__} has no make")

    def fill(self) -> None:
        """Update the parts from the state."""
        raise TypeError(f"{type(self).__name__} has no fill")

    def follow(self) -> None:
        """Open or close as the state says."""
        opens = self.state.panel == self.name_of_panel
        if opens and not self.made:
            dialog = pmui.Dialog(
                *self.make(), title=self.title, title_variant="h6", width_option=self.size, show_close_button=True,
                close_on_click=True, sizing_mode="stretch_width", sx=_SX, open=True,
            )  # fmt: skip
            dialog.param.watch(self._closed, "open")
            # It is sent open: a busy browser that still makes the dialog does not hear that it opens.
            self.layout.objects = [*(other for other in self.layout if other is not self._dialog), dialog]
            self._dialog, self.made = dialog, True
            self.fill()
        if self._dialog:
            self._dialog.open = opens

    @property
    def open(self) -> bool:
        return self._dialog is not None and self._dialog.open

    def _closed(self, event: param.parameterized.Event) -> None:
        if not event.new and self.state.panel == self.name_of_panel:
            next_tick(lambda: setattr(self.state, "panel", ""))
