"""The palette: finds kernels, runs, views and actions by a part of their names."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import panel_material_ui as pmui
import param

from tilescope_dashboard.browser.page import FINDS
from tilescope_dashboard.components import layout
from tilescope_dashboard.components.panel_dialog import PanelDialog
from tilescope_dashboard.data.units import short
from tilescope_dashboard.session.scheduling import next_tick
from tilescope_dashboard.session.state import FIND, GPU, PROFILE, RUN, State

_ACTIONS = {
    "Why is it slow?": "view:advice", "What changed?": "changed:", "Which config is the fastest?": "view:autotune",
    "What would fusing save?": "view:fusing", "Is it faster than PyTorch, and where?": "compared:",
    "Profile a kernel": f"panel:{PROFILE}", "GPU of this run": f"panel:{GPU}", "Save a report of this run": f"panel:{RUN}",
    "Dark theme": "theme:dark", "Light theme": "theme:light",
}  # fmt: skip
#: Who opened the palette writes into its field.
_FOCUSED = {"components": {"MuiTextField": {"defaultProps": {"autoFocus": True}}}}


class FindDialog(PanelDialog):
    """A field that lists what fits while one types. ``views`` maps names to titles."""

    name_of_panel, title = FIND, FINDS

    def __init__(self, state: State, views: Mapping[str, str], place: layout.Column | None = None) -> None:
        self._views = views
        super().__init__(state, place)

    def make(self) -> list[Any]:
        self.field = pmui.AutocompleteInput(
            label="name", options={}, case_sensitive=False, search_strategy="includes", min_characters=0,
            sizing_mode="stretch_width", margin=(10, 8, 20, 8), theme_config=_FOCUSED,
        )  # fmt: skip
        self.field.param.watch(self._chosen, "value")
        return [self.field]

    def fill(self) -> None:
        runs = (run for run in self.state.runs if not run.error)
        self.field.options = {
            **{name: f"kernel:{name}" for name in self.state.kernels},
            **{f"{title} (view)": f"view:{name}" for name, title in self._views.items()},
            **{f"{action} (action)": does for action, does in _ACTIONS.items()},
            **{
                f"{short(run.title, 40)} {run.started[:16].replace('T', ' ')} {run.id} (run)": f"run:{run.id}"
                for run in runs
            },
        }

    def follow(self) -> None:
        # The field of the last time still has what was written into it.
        self.made = self.made and self.state.panel != FIND
        super().follow()

    def _chosen(self, event: param.parameterized.Event) -> None:
        kind, _, name = (event.new or "").partition(":")
        if kind:
            next_tick(lambda: self._go(kind, name))

    def _go(self, kind: str, name: str) -> None:
        self.state.panel = name if kind == "panel" else ""
        if kind in ("kernel", "run"):
            self.state.go_to(**{kind: name})
        elif kind == "changed":
            timed = self.state.table["metric"].eq("gpu_time").any()
            self.state.view = "history" if timed else "compare"
        elif kind == "compared":
            self.state.param.update(view="compare", compared=[])
        elif kind != "panel":
            self.state.param.update(**{kind: name})
