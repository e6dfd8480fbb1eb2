"""The app's views in a notebook's output: one run, one kernel, one view."""

from __future__ import annotations

import functools
from pathlib import Path

import panel as pn
from tilescope.store import LoadedRun
from tilescope.suggest import unknown

from tilescope_dashboard.state import State
from tilescope_dashboard.views.autotune import Autotune
from tilescope_dashboard.views.base import View
from tilescope_dashboard.views.occupancy import Occupancy
from tilescope_dashboard.views.roofline import Roofline
from tilescope_dashboard.views.source import Source
from tilescope_dashboard.views.timeline import Timeline
from tilescope_dashboard.views.traffic import Traffic

#: JupyterLab's brand colour is dark, and Panel writes a chosen row's dark text on it.
_CHOSEN = {"--jp-brand-color0": "color-mix(in srgb, #2a8ac6 35%, transparent)"}
VIEWS = {view.name_in_address: view for view in (Roofline, Traffic, Autotune, Occupancy, Timeline, Source)}


class OneRun(State):
    """A state that knows of one run only, whatever else lies on the disk."""

    def refresh(self) -> None:
        self.runs = []

    def __repr__(self) -> str:
        return f"<{self.kernel} in run {Path(self.run).name}>"


def view(loaded: LoadedRun, name: str, kernel: str = "") -> View:
    """The view called ``name`` of one kernel, the run's first unless one is named; dark after ``pn.config.theme = "dark"``.

    Raises ValueError for a kernel that the run lacks.
    """
    kernels = list(loaded.run.kernels)
    if kernel and kernel not in kernels:
        raise ValueError(unknown("kernel", kernel, kernels))
    _extend()
    look = "dark" if pn.config.theme == "dark" else "light"
    state = OneRun(run=str(loaded.folder), kernel=kernel or next(iter(kernels), ""), view=name, theme=look)
    made = VIEWS[name](state)
    made.__panel__().styles = _CHOSEN
    made.refresh()
    return made


@functools.cache
def _extend() -> None:
    """Hands the notebook what draws, once. ``inline``: otherwise the browser would ask a CDN, and offline nothing is drawn."""
    pn.extension("tabulator", inline=True)
