"""Bar over the views: the kernel, its pass, size and implementation, the baseline, the GPU, and the button that profiles."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import panel as pn
import panel_material_ui as pmui
import param
from tilescope.runs import store

from tilescope_dashboard.components.opener import Opener
from tilescope_dashboard.data import run_cache
from tilescope_dashboard.data.kernel_cases import KernelCase
from tilescope_dashboard.data.units import ABSENT, short
from tilescope_dashboard.session.idle_work import IdleWork
from tilescope_dashboard.session.scheduling import next_tick
from tilescope_dashboard.session.state import GPU, OF_ALL, PROFILE, State
from tilescope_dashboard.topics import compare, compared_case
from tilescope_dashboard.views.gpu import GpuPopover

#: The bar stays in sight while views scroll. On a phone its lists scroll sideways beside the fixed button.
_CSS = ":host { position: sticky; top: 0; z-index: 20; background: var(--mui-palette-background-default, inherit); }"
_LISTS_CSS = """
:host(.of-all) .of-case { display: none; }
:host { flex: 1 1 0; min-width: 0; padding: 8px 0 6px; }
@media (max-width: 640px) {
  :host { flex-flow: row nowrap !important; overflow: auto hidden !important; scrollbar-width: none;
    mask-image: linear-gradient(to left, transparent, #000 24px); }
}
"""


#: Placeholder of the list of kernels.
_CHOOSE = "choose one"


class KernelBar(pn.viewable.Viewer):
    """Lists bound to the state both ways, for every view and the address."""

    state = param.ClassSelector(class_=State)

    def __init__(self, state: State, **settings: Any) -> None:
        super().__init__(state=state, **settings)
        self._filling = False
        # Cases of the kernel in other runs on the GPU, and the runs still to be read for them.
        self._others: list[KernelCase] = []
        self._unread: list[store.Summary] = []
        self._of: tuple[Any, ...] = ()
        self._spare = IdleWork(self._join)
        self._kernel = self._list("kernel", 188, self._choose_kernel)
        self._pass = self._list("pass", 116, lambda value: state.choose(direction=value))
        self._size = self._list("size", 242, lambda value: state.choose(workload=value))
        self._impl = self._list("implementation", 128, lambda value: state.choose(impl=value))
        self._baseline = self._list("baseline", 155, self._choose_baseline)
        self._gpu = Opener(opens=GPU, caption="GPU", within=".gpu-popover", over=True, margin=(6, 6))
        self._profile = Opener(opens=PROFILE, text="Profile", within=".contextbar", margin=(14, 6, 6, 6))
        state.param.watch(self._fill, ["runs", "loaded", "kernel", "catalog", "case", "compared", "view"])
        self._fill()
        # In a view of all kernels these have nothing to choose.
        for of_case in (self._size, self._pass, self._impl, self._baseline):
            of_case.css_classes = ["of-case"]
        lists = (self._kernel, self._size, self._pass, self._impl, self._baseline, self._gpu)
        # A column that wraps its parts into rows keeps their widths.
        self._lists = pn.Column(
            *lists, css_classes=_of(state.view), sizing_mode="stretch_width", margin=0, styles={"flex-flow": "row wrap", "gap": "4px"},
            stylesheets=[_LISTS_CSS],
        )  # fmt: skip
        for opener in (self._gpu, self._profile):
            opener.panel = state.panel
            opener.param.watch(lambda event: next_tick(functools.partial(setattr, state, "panel", event.new)), "panel")
        state.param.watch(lambda event: next_tick(self._show_panel), "panel")
        state.param.watch(lambda event: setattr(self._lists, "css_classes", _of(event.new)), "view")
        row = pn.Row(
            self._lists, self._profile, sizing_mode="stretch_width", margin=0, styles={"align-items": "flex-start"}
        )
        self._layout = pn.Column(row, GpuPopover(state), sizing_mode="stretch_width", margin=0, stylesheets=[_CSS])

    def _list(self, label: str, width: int, chosen: Callable[[Any], Any], **settings: Any) -> pmui.Select:
        found = pmui.Select(label=label, options=[], size="small", width=width, margin=(6, 6), **settings)
        found.param.watch(lambda event: self._filling or event.new is None or chosen(event.new), "value")
        return found

    def _show_panel(self) -> None:
        self._gpu.panel = self._profile.panel = self.state.panel

    def _choose_kernel(self, name: str) -> None:
        if name:
            self.state.go_to(kernel=name)

    def _choose_baseline(self, token: str) -> None:
        self.state.compared = [token] if token else []

    def _fill(self, *_: param.parameterized.Event) -> None:
        state, case = self.state, self.state.standing
        self._seek_others()
        # The bar has no list of configs.
        cases = [*state.cases.values(), *self._others]
        self._filling = True
        try:
            kernels = {name: name for name in state.kernels}
            # In a view of all kernels none is chosen, so that choosing any, even the last one, opens its page.
            if state.view in OF_ALL:
                _offer(self._kernel, {_CHOOSE: "", **kernels}, "")
            else:
                _offer(self._kernel, kernels, state.kernel)
            for widget, field in ((self._pass, "direction"), (self._size, "workload"), (self._impl, "impl")):
                _offer(widget, list(dict.fromkeys(getattr(one, field) for one in cases)), case and getattr(case, field))
            _offer(self._baseline, *self._baselines())
            self._gpu.text = state.device.name.removeprefix("NVIDIA ") if state.device else "none"
        finally:
            self._filling = False

    def _seek_others(self) -> None:
        """Read the kernel's other runs on this GPU in idle time."""
        state, gpu = self.state, self.state.device.name if self.state.device else ""
        if self._of != (state.runs, state.kernel, state.run, gpu):
            self._of = list(state.runs), state.kernel, state.run, gpu
            known = [run for run in state.runs if not run.error and state.kernel in run.kernels and run.device == gpu]
            self._others, self._unread = [], [run for run in known if run.id != state.run]
            self._spare.start()

    def _join(self) -> bool:
        """Add the cases of one more run; False if none is left."""
        if not self._unread:
            return False
        run = self._unread.pop(0)
        try:
            self._others += run_cache.cases_of(run_cache.open_cached(run.path), self.state.kernel)
        except (store.StoreError, OSError):
            return True  # a damaged run
        if not self._unread:
            self._fill()
        return True

    def _baselines(self) -> tuple[dict[str, str], str]:
        """The possible baselines by label, and the chosen one. Several chosen ones are one option with their number."""
        state = self.state
        found = {
            short(name, 60): token for name, token in compare.baselines(state.loaded, state.kernel, state.runs).items()
        }
        chosen = [token for token in state.compared if token in found.values()]
        if len(chosen) > 1:
            found = {f"{len(chosen)} baselines": chosen[0], **{n: t for n, t in found.items() if t != chosen[0]}}
        usual = [token.partition(":")[2] for token in compared_case.usual(state.loaded, state.kernel)]
        return {f"{usual[0]} (usual)" if usual else "none": "", **found}, next(iter(chosen), "")

    def __panel__(self) -> pn.viewable.Viewable:
        return self._layout


def _of(view: str) -> list[str]:
    """CSS classes of the lists."""
    return ["of-all"] if view in OF_ALL else []


def _offer(widget: pmui.Select, options: Mapping[str, Any] | Sequence[str], value: Any) -> None:
    """Set the options and the choice. Without options the list is disabled."""
    none = len(options) == 0
    # A list without a value would show its label in place of the value.
    changes = {"options": [ABSENT] if none else options, "value": ABSENT if none else value, "disabled": none}
    changed = {name: new for name, new in changes.items() if getattr(widget, name) != new}
    widget.param.update(**changed)
    if "options" in changed and "value" not in changed:
        widget.param.trigger("value")  # the browser keeps the label, which may have changed
