"""The page's bar: the kernel, its pass, size, implementation, baseline and run, the GPU, and the button that profiles."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any

import panel as pn
from tilescope.runs import store

from tilescope_dashboard.components import html_text, layout
from tilescope_dashboard.components.choice import CHOOSE, Choice
from tilescope_dashboard.data import run_cache
from tilescope_dashboard.data.kernel_cases import KernelCase
from tilescope_dashboard.data.units import ABSENT, short
from tilescope_dashboard.figures.style import distinct
from tilescope_dashboard.session.scheduling import IdleWork, next_tick
from tilescope_dashboard.session.state import GPU, LISTS, MODEL, OF_ALL, PROFILE, RUN, State
from tilescope_dashboard.topics import baselines

#: Pixels of the bar's height, and the width of a page below which its lists unfold under it.
HEIGHT, _FOLDS = 56, 1264
_LISTS_CSS = f"""
:host(.of-all) :is(.of-case, .of-run), :host(.of-run) .of-case {{ display: none; }}
@media (max-width: {_FOLDS - 1}px) {{
  :host {{ position: fixed; top: {HEIGHT}px; left: 0; right: 0; padding: 6px 12px 12px; flex-flow: row wrap !important;
    background: var(--mui-palette-background-default, inherit); border-bottom: 1px solid var(--mui-palette-divider); }}
  :host(.folded) {{ display: none !important; }}
}}
"""
_UNFOLD_CSS = f"@media (min-width: {_FOLDS}px) {{ :host {{ display: none !important; }} }}"
_OPENERS_CSS = """
:host { flex: none; } :host(.of-all) [data-panel=run] { display: none; }
button { height: 38px; min-width: 64px; padding: 4px 9px; border: 1px solid color-mix(in srgb, currentColor 50%, transparent);
  border-radius: 4px; background: none; color: var(--mui-palette-primary-main); cursor: pointer;
  font: 600 13px Inter, Roboto, "Helvetica Neue", Arial, sans-serif; }
button:hover { background: color-mix(in srgb, currentColor 8%, transparent); }
button + button { margin-left: 8px; }
[data-panel=profile] { background: var(--mui-palette-primary-main); color: var(--mui-palette-primary-contrastText); }
[data-panel=profile]:hover { background: var(--mui-palette-primary-dark); }
@media (pointer: coarse) { button { height: 40px; } }
"""


def _wider(width: int) -> str:
    """Gives a list so many pixels where the page has room for its longer texts."""
    return f"@media (min-width: 1400px) {{ :host, .MuiFormControl-root {{ width: {width}px !important; }} }}"


_AT: dict[str, Any] = {"margin": (8, 4), "sx": {"height": 38, "& .MuiSelect-select": {"fontSize": 14}}}


class KernelBar(layout.Part):
    """Lists bound to the state both ways, for every view and the address. A narrow page has a button that unfolds them."""

    def __init__(self, state: State) -> None:
        super().__init__()
        self.state = state
        # Cases of the kernel in other runs on the GPU, and the runs still to be read for them.
        self._others: list[KernelCase] = []
        self._unread: list[store.Summary] = []
        self._of: tuple[Any, ...] = ()
        self._spare = IdleWork(self.read_next)
        self._kernel = Choice("kernel", 140, self._choose_kernel, **_AT)
        # In a view of all kernels these have nothing to choose.
        of_case = {**_AT, "css_classes": ["of-case"]}
        self._size = Choice("size", 168, lambda: state.choose(workload=self._size.value), **of_case)
        self._pass = Choice("pass", 98, lambda: state.choose(direction=self._pass.value), **of_case)
        self._impl = Choice("implementation", 112, lambda: state.choose(impl=self._impl.value), **of_case)
        self._baseline = Choice("baseline", 136, self._choose_baseline, stylesheets=[_wider(184)], **of_case)
        of_run = {**_AT, "css_classes": ["of-run"]}
        self._run = Choice("run", 164, self._choose_run, stylesheets=[_wider(252)], **of_run)
        self._openers = _openers({RUN: "This run", GPU: "GPU", PROFILE: "Profile"})
        lists = (self._size, self._pass, self._impl, self._baseline, self._run, self._openers)
        self.lists = layout.flow(
            *lists, wrap="nowrap", styles={"flex": "1 1 0", "min-width": "0"}, stylesheets=[_LISTS_CSS]
        )
        self.layout = pn.Row(
            self._kernel,
            self.lists,
            _openers({LISTS: "More"}, _UNFOLD_CSS),
            sizing_mode="stretch_width",
            margin=(0, 0, 0, 10),
            styles={"align-items": "center", "min-width": "0"},
        )
        state.param.watch(self._fill, ["runs", "loaded", "kernel", "catalog", "case", "compared", "view"])
        state.param.watch(lambda _: next_tick(self._close), ["view", "loaded"])
        state.param.watch(self._fold, ["view", "panel", "loaded"])
        self._fold()
        self._fill()

    def _close(self) -> None:
        """Fold the lists once what was chosen there is open."""
        if self.state.panel == LISTS:
            self.state.panel = ""

    def _fold(self, *_: Any) -> None:
        view, of_step = self.state.view, self.state.of_step
        marks = {"of-all": view in OF_ALL, "of-run": view == MODEL or of_step, "folded": self.state.panel != LISTS}
        self.lists.css_classes = self._openers.css_classes = [mark for mark, has in marks.items() if has]

    def _choose_kernel(self) -> None:
        if self._kernel.value:
            self.state.go_to(kernel=self._kernel.value)

    def _choose_baseline(self) -> None:
        self.state.compared = [self._baseline.value] if self._baseline.value else []

    def _choose_run(self) -> None:
        # The list first reports the choice that it was made with: that is no change.
        if self._run.value != self.state.run:
            self.state.go_to(run=self._run.value)

    def _fill(self, *_: Any) -> None:
        state, case = self.state, self.state.standing
        self._seek_others()
        # The bar has no list of configs.
        cases = [*state.cases.values(), *self._others]
        kernels = {name: name for name in state.kernels}
        # In a view of no kernel none is chosen, so that choosing any, even the last one, opens its page.
        if state.view in (*OF_ALL, MODEL) or not state.kernel:
            _offer(self._kernel, {CHOOSE: "", **kernels}, "")
        else:
            _offer(self._kernel, kernels, state.kernel)
        for widget, field in ((self._pass, "direction"), (self._size, "workload"), (self._impl, "impl")):
            known = dict.fromkeys(getattr(one, field) for one in cases)
            names = distinct(known, 60, state.look.called if widget is self._impl else str)
            _offer(widget, {names[name]: name for name in known}, case and getattr(case, field))
        _offer(self._baseline, *self._baselines())
        made_by = baselines.tritons(state.runs)
        labels = {_label(run, *made_by.get(run.id, [])): run.id for run in state.runs if not run.error}
        if state.run not in labels.values():
            # Without a matching option the widget would choose another run itself.
            labels = {short(state.run, 40) or ABSENT: state.run, **labels}
        self._run.offer(labels, state.run, anew=True)

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
            short(name, 60): token
            for name, token in baselines.possible(state.loaded, state.kernel, state.runs, state.catalog).items()
        }
        chosen = [token for token in state.compared if token in found.values()]
        if len(chosen) > 1:
            found = {f"{len(chosen)} baselines": chosen[0], **{n: t for n, t in found.items() if t != chosen[0]}}
        declared = baselines.declared(state.loaded, state.kernel)
        token = next(iter(baselines.usual(state.loaded, state.kernel, state.runs)), "")
        usual = baselines.name_of(token, state.runs, declared)
        return {f"{short(usual, 60)} (usual)" if token else "none": "", **found}, next(iter(chosen), "")


def _openers(labels: Mapping[str, str], *css: str) -> html_text.Html:
    """Buttons that open or close panels (``browser/page.js``), by the panels' names."""
    buttons = "".join(f'<button data-panel="{panel}">{label}</button>' for panel, label in labels.items())
    return html_text.Html(buttons, stylesheets=[_OPENERS_CSS, *css], margin=(8, 4))


def _offer(widget: Choice, options: dict[str, str], value: Any) -> None:
    """Set the options and the choice. Without options the list is disabled: without a value it would show its label instead."""
    widget.disabled = not options
    widget.offer(options or {ABSENT: ABSENT}, value if options else ABSENT, anew=True)


def _label(run: store.Summary, *made_by: str) -> str:
    """Label of a run, its GPU and time first, as a narrow list cuts the end. The end of the id tells runs of one minute apart."""
    kind = "recorded" if run.recorded else "" if run.measured else "predicted"
    when = f"{datetime.fromisoformat(run.started):%-d %b %H:%M}" if run.started else ""
    first = " ".join(filter(None, [kind, when]))
    parts = [run.device.removeprefix("NVIDIA "), first, *made_by, short(run.title, 40), run.id[-4:]]
    return " · ".join(filter(None, parts))
