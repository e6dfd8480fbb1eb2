"""Advice: findings on one case of the kernel, NVIDIA's own, and the gain of fusing a chain of operations."""

from __future__ import annotations

from typing import Any

import panel as pn
import panel_material_ui as pmui
from tilescope.hardware import ceilings
from tilescope.models import fusion
from tilescope.models.advice import nvidia_rules

from tilescope_dashboard.components import cards, html_text, layout
from tilescope_dashboard.components.choice import Choice
from tilescope_dashboard.data import run_cache
from tilescope_dashboard.data.kernel_cases import OF_KERNEL, case_name
from tilescope_dashboard.data.recordings import ANYTHING
from tilescope_dashboard.topics import advice as topic
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
            html_text.pane(html_text.subheading("Would fusing help?", said)), asked, self._answer
        )
        self._ask()

    def about(self, kernel: str, workload: str) -> None:
        """Ask about a chain that ends with the kernel, where it is a known operation, at its size."""
        if kernel in fusion.OPERATIONS and self._offered != (kernel, workload):
            self._offered = kernel, workload
            self._chain.value, self._shape.value = f"scale,{kernel}", workload

    def _ask(self) -> None:
        try:
            problem = fusion.parse_problem(self._shape.value)
            chain = fusion.count(fusion.parse_chain(self._chain.value), problem)
            self._answer.object = cards.answer(fusion.ask(chain, problem, self._target.value))
        except ValueError as error:
            self._answer.object = html_text.notice("warning", "This cannot be answered:", str(error))


class Advice(View):
    """Findings of the chosen case as cards, NVIDIA's separately, and a form that predicts the gain of fusion."""

    name_in_address, title, question = "advice", "Advice", ANYTHING

    def build(self) -> list[Any]:
        self._case = Choice("case", 620, self._choose, sizing_mode="stretch_width", max_width=620)
        self.ours, self.theirs = html_text.pane("", cards.CSS), html_text.pane("", cards.CSS)
        self._fusion = FusionForm()
        return [self._case, self.ours, self.theirs, self._fusion]

    def _choose(self) -> None:
        self.state.case = case_name(self._case.value)

    def update(self) -> None:
        loaded, case, kernel = self.state.loaded, self.state.standing, self.state.kernel
        self._case.offer(dict(self.state.cases), case, anew=True)
        # The bar has no configs.
        if not any(known.config for known in self.state.cases.values()):
            self.hide_like_bar(self._case, case)
        self.ours.object = self.theirs.object = ""
        if loaded is None or case is None:
            self.say(topic.nothing(kernel))
            return
        self._fusion.about(kernel, case.workload)
        table = self.state.table
        sources = set(table.loc[(table[OF_KERNEL] == list(case)).all(axis="columns"), "source"])
        ours = run_cache.findings(loaded, (kernel, *case))
        theirs = [one for one in nvidia_rules.of_run(loaded.folder, loaded.run.kernels) if one.case == (kernel, *case)]
        self.say(topic.sentence(ours, sources))
        self.ours.object = cards.cards(ours)
        self.theirs.object = html_text.subheading(*topic.nvidia_sentence(theirs)) + cards.cards(theirs)
