"""Bar over the views: the kernel, its pass, size and implementation, the baseline, the GPU, and the button that profiles."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import panel as pn
import panel_material_ui as pmui
import param
from tilescope.runs import store

from tilescope_dashboard.browser.list_search import ListSearch
from tilescope_dashboard.components.opener import Opener
from tilescope_dashboard.data import run_cache
from tilescope_dashboard.data.kernel_cases import KernelCase
from tilescope_dashboard.data.units import ABSENT, short
from tilescope_dashboard.session.idle_work import IdleWork
from tilescope_dashboard.session.scheduling import next_tick
from tilescope_dashboard.session.state import GPU, HOME, PROFILE, State
from tilescope_dashboard.topics import compare, compared_case
from tilescope_dashboard.views.gpu import GpuPopover

#: It stays in sight while the views scroll below it; a phone scrolls the lists sideways, and the button stays beside them.
_CSS = ":host { position: sticky; top: 0; z-index: 20; background: var(--mui-palette-background-default, inherit); }"
_LISTS_CSS = """
:host(.home) .of-case { display: none; }
:host { flex: 1 1 0; min-width: 0; padding: 8px 0 6px; }
@media (max-width: 640px) {
  :host { flex-flow: row nowrap !important; overflow: auto hidden !important; scrollbar-width: none;
    mask-image: linear-gradient(to left, transparent, #000 24px); }
}
"""


#: What the list of kernels says where none is chosen.
_CHOOSE = "choose one"


class KernelBar(pn.viewable.Viewer):
    """Lists bound to the state both ways. What is chosen is every view's, and stands in the address."""

    state = param.ClassSelector(class_=State)

    def __init__(self, state: State, **settings: Any) -> None:
        super().__init__(state=state, **settings)
        self._filling = False
        # Cases that other runs on the GPU have of the kernel, and runs that were not read for them yet.
        self._others: list[KernelCase] = []
        self._unread: list[store.Summary] = []
        self._of: tuple[Any, ...] = ()
        self._spare = IdleWork(self._join)
        self._kernel = self._list("kernel", 180, self._choose_kernel, searchable=True, filter_on_search=True)
        self._pass = self._list("pass", 125, lambda value: state.choose(direction=value))
        self._size = self._list("size", 240, lambda value: state.choose(workload=value))
        self._impl = self._list("implementation", 130, lambda value: state.choose(impl=value))
        self._baseline = self._list("baseline", 165, self._choose_baseline)
        self._gpu = Opener(opens=GPU, caption="GPU", within=".gpu-popover", over=True, margin=(6, 6))
        self._profile = Opener(opens=PROFILE, text="Profile", within=".contextbar", margin=(14, 6, 6, 6))
        state.param.watch(self._fill, ["runs", "loaded", "kernel", "catalog", "case", "compared", "view"])
        self._fill()
        # On Home, which is of no case, there is nothing to choose with these.
        for of_case in (self._size, self._pass, self._impl, self._baseline):
            of_case.css_classes = ["of-case"]
        lists = (self._kernel, self._size, self._pass, self._impl, self._baseline, self._gpu)
        # A column that flows in rows: what it holds keeps its width.
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
            self._lists, self._profile, ListSearch(width=0, margin=0), sizing_mode="stretch_width", margin=0,
            styles={"align-items": "flex-start"},
        )  # fmt: skip
        self._layout = pn.Column(row, GpuPopover(state), sizing_mode="stretch_width", margin=0, stylesheets=[_CSS])

    def _list(self, label: str, width: int, chosen: Callable[[Any], Any], **settings: Any) -> pmui.Select:
        found = pmui.Select(label=label, options=[], size="small", width=width, margin=(6, 6), **settings)
        found.param.watch(lambda event: self._filling or event.new is None or chosen(event.new), "value")
        return found

    def _show_panel(self) -> None:
        self._gpu.panel = self._profile.panel = self.state.panel

    def _choose_kernel(self, name: str) -> None:
        if not name:
            return
        # A name that was searched for leaves the list open, and short.
        self._kernel.param.update(dropdown_open=False, filter_str="")
        self.state.go_to(kernel=name)

    def _choose_baseline(self, token: str) -> None:
        self.state.compared = [token] if token else []

    def _fill(self, *_: param.parameterized.Event) -> None:
        state, case = self.state, self.state.standing
        self._seek_others()
        # A config of a sweep has no list here.
        cases = [*state.cases.values(), *self._others]
        self._filling = True
        try:
            kernels = {name: name for name in state.kernels}
            # Home is of no kernel: any leads to its page from there, the last one too.
            if state.view == HOME:
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
        """Read the other runs of the kernel on this GPU when there is time: no page waits for them."""
        state, gpu = self.state, self.state.device.name if self.state.device else ""
        if self._of != (state.runs, state.kernel, state.run, gpu):
            self._of = list(state.runs), state.kernel, state.run, gpu
            known = [run for run in state.runs if not run.error and state.kernel in run.kernels and run.device == gpu]
            self._others, self._unread = [], [run for run in known if run.id != state.run]
            self._spare.start()

    def _join(self) -> bool:
        """Offer the cases of one run more; False if none was left."""
        if not self._unread:
            return False
        run = self._unread.pop(0)
        try:
            self._others += run_cache.cases_of(run_cache.open_cached(run.path), self.state.kernel)
        except (store.StoreError, OSError):
            return True  # a damaged run has none
        if not self._unread:
            self._fill()
        return True

    def _baselines(self) -> tuple[dict[str, str], str]:
        """What can be compared with, and what is: of several the first, which says how many there are."""
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
    """Classes of the lists."""
    return ["home"] if view == HOME else []


def _offer(widget: pmui.Select, options: Mapping[str, Any] | Sequence[str], value: Any) -> None:
    """Put the options in place of the others, and what is chosen among them; without any there is nothing to choose."""
    none = len(options) == 0
    # Without a value its label would lie where one stands.
    changes = {"options": [ABSENT] if none else options, "value": ABSENT if none else value, "disabled": none}
    changed = {name: new for name, new in changes.items() if getattr(widget, name) != new}
    widget.param.update(**changed)
    if "options" in changed and "value" not in changed:
        widget.param.trigger("value")  # the browser knows a value by its label, which may be another one now
