"""Bar over the views: the kernel, its pass, size and implementation, the baseline, the GPU, and the button that profiles."""

from __future__ import annotations

from typing import Any

import panel as pn
import panel_material_ui as pmui
from tilescope.runs import store

from tilescope_dashboard.components import layout
from tilescope_dashboard.components.choice import Choice
from tilescope_dashboard.data import run_cache
from tilescope_dashboard.data.kernel_cases import KernelCase
from tilescope_dashboard.data.units import ABSENT, short
from tilescope_dashboard.session.scheduling import IdleWork, next_tick
from tilescope_dashboard.session.state import GPU, OF_ALL, PROFILE, State
from tilescope_dashboard.topics import compare, compared_case
from tilescope_dashboard.views.gpu import GpuDialog

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


class KernelBar(layout.Part):
    """Lists bound to the state both ways, for every view and the address."""

    def __init__(self, state: State) -> None:
        super().__init__()
        self.state = state
        # Cases of the kernel in other runs on the GPU, and the runs still to be read for them.
        self._others: list[KernelCase] = []
        self._unread: list[store.Summary] = []
        self._of: tuple[Any, ...] = ()
        self._spare = IdleWork(self.read_next)
        at: dict[str, Any] = {"margin": (6, 6)}
        self._kernel = Choice("kernel", 188, self._choose_kernel, **at)
        # In a view of all kernels these have nothing to choose.
        at["css_classes"] = ["of-case"]
        self._size = Choice("size", 242, lambda: state.choose(workload=self._size.value), **at)
        self._pass = Choice("pass", 116, lambda: state.choose(direction=self._pass.value), **at)
        self._impl = Choice("implementation", 128, lambda: state.choose(impl=self._impl.value), **at)
        self._baseline = Choice("baseline", 155, self._choose_baseline, **at)
        self._gpu = self._opener(GPU, variant="outlined", margin=(6, 6))
        profile = self._opener(PROFILE, label="Profile", css_classes=["opens-drawer"], margin=(8, 6, 6, 6))
        lists = (self._kernel, self._size, self._pass, self._impl, self._baseline, self._gpu)
        # A column that wraps its parts into rows keeps their widths.
        self.lists = layout.column(*lists, styles={"flex-flow": "row wrap", "gap": "4px"}, stylesheets=[_LISTS_CSS])
        row = pn.Row(self.lists, profile, sizing_mode="stretch_width", margin=0, styles={"align-items": "flex-start"})
        self.layout = layout.column(row, GpuDialog(state, self._gpu), stylesheets=[_CSS])
        state.param.watch(self._fill, ["runs", "loaded", "kernel", "catalog", "case", "compared", "view"])
        self._fill()

    def _opener(self, panel: str, **settings: Any) -> pmui.Button:
        """A button that opens the panel, or closes it."""
        field = {"color": "text.primary", "fontWeight": 400} if panel == GPU else {}
        button = pmui.Button(height=40, sx={"whiteSpace": "nowrap", **field}, styles={"flex": "none"}, **settings)

        def toggle() -> None:
            self.state.panel = "" if self.state.panel == panel else panel

        button.on_click(lambda _: next_tick(toggle))
        return button

    def _choose_kernel(self) -> None:
        if self._kernel.value:
            self.state.go_to(kernel=self._kernel.value)

    def _choose_baseline(self) -> None:
        self.state.compared = [self._baseline.value] if self._baseline.value else []

    def _fill(self, *_: Any) -> None:
        state, case = self.state, self.state.standing
        self._seek_others()
        self.lists.css_classes = ["of-all"] if state.view in OF_ALL else []
        # The bar has no list of configs.
        cases = [*state.cases.values(), *self._others]
        kernels = {name: name for name in state.kernels}
        # In a view of all kernels none is chosen, so that choosing any, even the last one, opens its page.
        if state.view in OF_ALL:
            _offer(self._kernel, {_CHOOSE: "", **kernels}, "")
        else:
            _offer(self._kernel, kernels, state.kernel)
        for widget, field in ((self._pass, "direction"), (self._size, "workload"), (self._impl, "impl")):
            known = dict.fromkeys(getattr(one, field) for one in cases)
            _offer(widget, {name: name for name in known}, case and getattr(case, field))
        _offer(self._baseline, *self._baselines())
        gpu = state.device.name.removeprefix("NVIDIA ") if state.device else "none"
        self._gpu.label = f"{'GPU' if not state.device or state.device.measured else 'predicted for'}: {gpu}"

    def _seek_others(self) -> None:
        """Read the kernel's other runs on this GPU in idle time."""
        state, gpu = self.state, self.state.device.name if self.state.device else ""
        if self._of != (state.runs, state.kernel, state.run, gpu):
            self._of = list(state.runs), state.kernel, state.run, gpu
            known = [run for run in state.runs if not run.error and state.kernel in run.kernels and run.device == gpu]
            self._others, self._unread = [], [run for run in known if run.id != state.run]
            self._spare.start()

    def read_next(self) -> bool:
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


def _offer(widget: Choice, options: dict[str, str], value: Any) -> None:
    """Set the options and the choice. Without options the list is disabled: without a value it would show its label instead."""
    widget.disabled = not options
    widget.offer(options or {ABSENT: ABSENT}, value if options else ABSENT, anew=True)
