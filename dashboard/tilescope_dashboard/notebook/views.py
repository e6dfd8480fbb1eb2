"""The app's views in a notebook's output: one run, one kernel, one view."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path
from typing import Any, cast

import panel as pn
from tilescope.runs.store import LoadedRun
from tilescope.table.suggest import unknown

from tilescope_dashboard.notebook import compressed_scripts
from tilescope_dashboard.notebook.page_theme import PageTheme
from tilescope_dashboard.notebook.without_scripts import below
from tilescope_dashboard.session.state import State
from tilescope_dashboard.views.advice import Advice
from tilescope_dashboard.views.autotune import Autotune
from tilescope_dashboard.views.base import View
from tilescope_dashboard.views.inside import Inside
from tilescope_dashboard.views.occupancy import Occupancy
from tilescope_dashboard.views.roofline import Roofline
from tilescope_dashboard.views.source import Source
from tilescope_dashboard.views.timeline import Timeline
from tilescope_dashboard.views.traffic import Traffic

#: JupyterLab's brand colour is dark, and Panel writes a chosen row's dark text on it; every other row it greys out.
_COLOURS = {
    "--jp-brand-color0": "color-mix(in srgb, #2a8ac6 35%, transparent)",
    "--jp-ui-font-color2": "var(--jp-ui-font-color0)",
}
VIEWS = {
    view.name_in_address: view for view in (Advice, Roofline, Traffic, Autotune, Occupancy, Timeline, Inside, Source)
}


class OneRun(State):
    """A state that knows of one run only, whatever else lies on the disk."""

    def refresh(self) -> None:
        self.runs = []

    def _folder(self) -> Path:
        return Path(self.run)

    @property
    def origin(self) -> tuple[str, ...]:
        kernel, _, gpu = super().origin
        return kernel, Path(self.run).name, gpu

    def __repr__(self) -> str:
        return f"<{self.kernel} in run {Path(self.run).name}>"


def view(loaded: LoadedRun, name: str, kernel: str = "") -> View:
    """The view called ``name`` of one kernel, the run's first unless one is named, in the notebook's light or dark theme.

    Raises ValueError for a kernel that the run lacks.
    """
    kernels = list(loaded.run.kernels)
    if kernel and kernel not in kernels:
        raise ValueError(unknown("kernel", kernel, kernels))
    _hand_over(_running_cell())
    look = "dark" if pn.config.theme == "dark" else "light"
    state = OneRun(run=str(loaded.folder), kernel=kernel or next(iter(kernels), ""), view=name, theme=look)
    made = VIEWS[name](state)
    layout = cast("pn.Column", made.__panel__())
    layout.styles = _COLOURS
    ground = PageTheme(theme=look, width=0, height=0, margin=0)
    ground.param.watch(lambda event: setattr(state, "theme", event.new), "theme")
    layout.append(ground)
    made.refresh()
    return made


#: The cell whose output holds what draws; empty before the first.
_holder: list[tuple[str, str]] = []


def _hand_over(running: tuple[str, str]) -> None:
    """Hands the notebook what draws, megabytes of it, in the ``running`` cell (see ``_running_cell``): once for all cells.

    It lies in the output of the cell that was first to show a view, and is saved there, so that it draws again when the
    notebook is opened again. That cell's next run clears it, and must hand it over again.
    """
    # In Colab each output is a page of its own.
    alone = "google.colab" in sys.modules
    if not _holder or (_holder[0] != running and (alone or _holder[0][0] == running[0])):
        _load()
        _holder[:] = [running]


def _load() -> None:
    """Shows what draws, compressed; views are compressed from then on, too."""
    shell = _shell()
    if not hasattr(shell, "kernel"):
        pn.extension("tabulator", inline=True)
        return
    # By name: only a notebook has them.
    capture = importlib.import_module("IPython.utils.capture").capture_output
    publish = importlib.import_module("IPython.display").publish_display_data
    with capture(stdout=False, stderr=False) as captured:
        # Inline: otherwise the browser would ask a CDN, and offline nothing is drawn.
        pn.extension("tabulator", inline=True)
    for output in captured.outputs:
        publish(compressed_scripts.compressed(output.data), output.metadata)
    publish(compressed_scripts.lender())
    shell.display_formatter.mimebundle_formatter.for_type(View, _mimebundle)


def _mimebundle(shown: View) -> tuple[dict[str, Any], dict[str, Any]]:
    data, metadata = shown._repr_mimebundle_()
    return compressed_scripts.compressed(data, lambda place: below(place, shown)), metadata


def _shell() -> Any:
    """IPython's shell, or None."""
    return getattr(sys.modules.get("IPython"), "get_ipython", lambda: None)()


def _running_cell() -> tuple[str, str]:
    """The cell's id and that of this run of it; empty where there is no notebook. A cell without an id goes by its code:
    run again it most often has the same.
    """
    shell = _shell()
    request = shell.get_parent() if hasattr(shell, "get_parent") else {}
    cell = request.get("metadata", {}).get("cellId") or request.get("content", {}).get("code", "")
    return cell, request.get("header", {}).get("msg_id", "")
