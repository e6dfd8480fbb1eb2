"""Advice: findings on one case of the kernel, NVIDIA's own, and the gain of fusing a chain of operations."""

from __future__ import annotations

from typing import Any

import panel_material_ui as pmui
from tilescope.models.advice import nvidia_rules

from tilescope_dashboard.components import cards, html_text
from tilescope_dashboard.data import run_cache
from tilescope_dashboard.data.kernel_cases import OF_KERNEL, case_name
from tilescope_dashboard.data.recordings import ANYTHING
from tilescope_dashboard.topics import advice as topic
from tilescope_dashboard.views.base import View
from tilescope_dashboard.views.fusion import FusionForm


class Advice(View):
    """Findings of the chosen case as cards, NVIDIA's separately, and a form that predicts the gain of fusion."""

    name_in_address, title, question = "advice", "Advice", ANYTHING

    def build(self) -> list[Any]:
        self._case = pmui.Select(label="case", options=[], sizing_mode="stretch_width", max_width=620, size="small")
        self._cards, self._nvidia, self._fusion = cards.pane(), cards.pane(), FusionForm()
        self._filling = False
        self._case.param.watch(lambda event: self._filling or self._choose(event.new), "value")
        return [self._case, self._cards, self._nvidia, self._fusion]

    def update(self) -> None:
        options = dict(self.state.cases)
        self._filling = True
        self._case.visible = bool(options)
        self._case.param.update(options=options, value=self.state.standing)
        self._filling = False
        self._show()

    def _choose(self, case: Any) -> None:
        self.state.case = case_name(case)

    def _show(self) -> None:
        loaded, case = self.state.loaded, self._case.value
        if loaded is None or case is None:
            self._head.object = html_text.heading(*topic.nothing(self.state.kernel))
            self._cards.object = self._nvidia.object = ""
            return
        table = self.state.table
        sources = set(table.loc[(table[OF_KERNEL] == list(case)).all(axis="columns"), "source"])
        of_kernel = (self.state.kernel, *case)
        ours = run_cache.findings(loaded, of_kernel)
        theirs = [found for found in nvidia_rules.of_run(loaded.folder, loaded.run.kernels) if found.case == of_kernel]
        self._head.object = html_text.heading(*topic.sentence(ours, sources))
        self._cards.object = cards.cards(ours)
        self._nvidia.object = html_text.subheading(*topic.nvidia_sentence(theirs)) + cards.cards(theirs)
