"""Fusing: what the next operation in the kernel would save, and a form about a chain of operations."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import panel as pn
import panel_material_ui as pmui
from tilescope.hardware import ceilings
from tilescope.models import baseline, fusion
from tilescope.runs.store import LoadedRun

from tilescope_dashboard.components import cards, html_text, layout
from tilescope_dashboard.components.choice import Choice
from tilescope_dashboard.data import run_cache
from tilescope_dashboard.data.kernel_cases import KernelCase
from tilescope_dashboard.data.recordings import ANYTHING
from tilescope_dashboard.topics import baselines, summary
from tilescope_dashboard.topics import fusing as topic
from tilescope_dashboard.views.base import View

_CHAIN, _SHAPE, _TARGET = "add,relu,mul", "16384x4096-bf16", "sm_90"
_ABOUT = "A chain of PyTorch operations, before there is a kernel for it. Known operations: {}."


class FusionForm(layout.Part):
    """Chain, shape and GPU; the answer follows each change of them."""

    def __init__(self) -> None:
        super().__init__()
        self._answer, self._offered = html_text.pane("", cards.CSS), ("", "")
        self._chain = pmui.TextInput(label="chain", value=_CHAIN, width=260, size="small")
        self._shape = pmui.TextInput(label="shape and dtype", value=_SHAPE, width=200, size="small")
        self._target = Choice("GPU", 110, self._ask, options=list(ceilings.targets()), value=_TARGET)
        for widget in (self._chain, self._shape):
            widget.param.watch(lambda _: self._ask(), "value")
        said = _ABOUT.format(", ".join(sorted(fusion.OPERATIONS)))
        asked = pn.FlexBox(self._chain, self._shape, self._target, sizing_mode="stretch_width", gap="8px")
        self.layout = layout.column(
            html_text.pane(html_text.subheading("Would fusing a chain help?", said)), asked, self._answer
        )
        self._ask()

    def about(self, kernel: str, workload: str) -> None:
        """Ask about a chain that ends with the kernel, where it is a known operation, at its size; else about the usual chain."""
        known = kernel in fusion.OPERATIONS
        offered = (kernel, workload if known else "")
        if self._offered != offered:
            self._offered = offered
            self._chain.value, self._shape.value = (f"scale,{kernel}", workload) if known else (_CHAIN, _SHAPE)

    def _ask(self) -> None:
        try:
            problem = fusion.parse_problem(self._shape.value)
            chain = fusion.count(fusion.parse_chain(self._chain.value), problem)
            self._answer.object = cards.answer(fusion.ask(chain, problem, self._target.value))
        except ValueError as error:
            self._answer.object = html_text.notice("warning", "This cannot be answered:", str(error))


class Fusing(View):
    """The gain of the next operation in the kernel, and a form that predicts the gain for a chain."""

    name_in_address, title, question = "fusing", "Fusing", ANYTHING
    collectors = ("interpreter",)

    def build(self) -> list[Any]:
        self._form = FusionForm()
        return [self._form]

    def update(self) -> None:
        loaded, case, kernel = self.state.loaded, self.state.standing, self.state.kernel
        self._form.about(kernel, case.workload if case else "")
        values = summary.values(loaded, kernel, case) if loaded and case else None
        said = topic.sentence(kernel, values, self.state.device, _unfused(loaded, kernel, case))
        if said.text.startswith(topic.UNKNOWN):
            self.say_nothing(said, keeps=True)
        else:
            self.say(said)


def _unfused(loaded: LoadedRun | None, kernel: str, case: KernelCase | None) -> Sequence[Mapping[str, Any]]:
    """The case against its operations one by one, where the run has them; none otherwise."""
    names = baselines.declared(loaded, kernel)
    if loaded is None or case is None or case.impl == "eager" or baseline.called("eager", names) != "unfused":
        return []
    tokens = (f"{loaded.run.id}:eager",)
    rows, _ = run_cache.kept_against(
        loaded, tokens, ("baseline", kernel, case, tokens),
        lambda: summary.baseline(loaded, kernel, case, tokens, run_cache.open_cached),
    )  # fmt: skip
    return rows
