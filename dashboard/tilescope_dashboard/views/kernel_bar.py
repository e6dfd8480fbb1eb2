"""Bar over the views: the kernel, its pass, size and implementation, the baseline, and the GPU."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import panel as pn
import panel_material_ui as pmui
import param

from tilescope_dashboard.browser.list_search import ListSearch
from tilescope_dashboard.data.best_run import best_run
from tilescope_dashboard.data.units import short
from tilescope_dashboard.session.state import State
from tilescope_dashboard.topics import compare

#: It stays in sight while the views scroll below it; a phone scrolls it sideways.
_CSS = """
:host { position: sticky; top: 0; z-index: 20; padding: 8px 0 6px; background: var(--mui-palette-background-default, inherit); }
@media (max-width: 640px) {
  :host { flex-flow: row nowrap !important; overflow: auto hidden !important; scrollbar-width: none; }
}
"""
_NONE = "none"


class KernelBar(pn.viewable.Viewer):
    """Lists bound to the state both ways. What is chosen is every view's, and stands in the address."""

    state = param.ClassSelector(class_=State)

    def __init__(self, state: State, **settings: Any) -> None:
        super().__init__(state=state, **settings)
        self._filling = False
        self._kernel = self._list("kernel", 180, self._choose_kernel, searchable=True, filter_on_search=True)
        self._pass = self._list("pass", 125, lambda value: state.choose(direction=value))
        self._size = self._list("size", 200, lambda value: state.choose(workload=value))
        self._impl = self._list("implementation", 130, lambda value: state.choose(impl=value))
        self._baseline = self._list("baseline", 150, self._choose_baseline)
        self._gpu = self._list("GPU", 110, self._choose_gpu)
        state.param.watch(self._fill, ["runs", "loaded", "kernel", "catalog", "case", "compared"])
        self._fill()
        lists = (self._kernel, self._size, self._pass, self._impl, self._baseline, self._gpu)
        # A column that flows in rows: what it holds keeps its width.
        self._layout = pn.Column(
            *lists, ListSearch(), sizing_mode="stretch_width", margin=0, styles={"flex-flow": "row wrap", "gap": "4px"},
            stylesheets=[_CSS],
        )  # fmt: skip

    def _list(self, label: str, width: int, chosen: Callable[[Any], Any], **settings: Any) -> pmui.Select:
        found = pmui.Select(label=label, options=[], size="small", width=width, margin=(6, 6), **settings)
        found.param.watch(lambda event: self._filling or event.new is None or chosen(event.new), "value")
        return found

    def _choose_kernel(self, name: str) -> None:
        # A name that was searched for leaves the list open, and short.
        self._kernel.param.update(dropdown_open=False, filter_str="")
        self.state.kernel = name

    def _choose_baseline(self, token: str) -> None:
        self.state.compared = [token] if token else []

    def _choose_gpu(self, name: str) -> None:
        found = best_run([run for run in self.state.runs if run.device == name], self.state.kernel)
        if found is not None:
            self.state.param.update(run=found.id, kernel=self.state.kernel)

    def _fill(self, *_: param.parameterized.Event) -> None:
        state, case = self.state, self.state.standing
        cases = list(state.cases.values())
        self._filling = True
        try:
            _offer(self._kernel, state.kernels, state.kernel)
            for widget, field in ((self._pass, "direction"), (self._size, "workload"), (self._impl, "impl")):
                _offer(widget, list(dict.fromkeys(getattr(one, field) for one in cases)), case and getattr(case, field))
            _offer(self._baseline, *self._baselines())
            gpus = [run.device for run in state.runs if not run.error and state.kernel in run.kernels and run.device]
            own = [state.device.name] if state.device else []
            named = {name.removeprefix("NVIDIA "): name for name in dict.fromkeys([*own, *gpus])}
            _offer(self._gpu, named, next(iter(own), None))
        finally:
            self._filling = False

    def _baselines(self) -> tuple[dict[str, str], str]:
        """What can be compared with, and what is: of several the first, which says how many there are."""
        state = self.state
        found = {
            short(name, 60): token for name, token in compare.baselines(state.loaded, state.kernel, state.runs).items()
        }
        chosen = [token for token in state.compared if token in found.values()]
        if len(chosen) > 1:
            found = {f"{len(chosen)} baselines": chosen[0], **{n: t for n, t in found.items() if t != chosen[0]}}
        return {_NONE: "", **found}, next(iter(chosen), "")

    def __panel__(self) -> pn.viewable.Viewable:
        return self._layout


def _offer(widget: pmui.Select, options: Mapping[str, Any] | Sequence[str], value: Any) -> None:
    """Put the options in place of the others, and what is chosen among them; without any there is nothing to choose."""
    changes = {"options": options, "value": value, "disabled": len(options) == 0}
    widget.param.update(**{name: new for name, new in changes.items() if getattr(widget, name) != new})
