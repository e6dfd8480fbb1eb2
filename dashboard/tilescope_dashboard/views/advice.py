"""Advice: findings on one case of the kernel, NVIDIA's own, and the gain of fusing a chain of operations."""

from __future__ import annotations

from typing import Any

import panel_material_ui as pmui
from tilescope.models import summary
from tilescope.models.advice import nvidia_rules

from tilescope_dashboard.components import cards, html_text
from tilescope_dashboard.data import run_cache
from tilescope_dashboard.data.kernel_cases import OF_KERNEL, case_name
from tilescope_dashboard.topics import advice as topic
from tilescope_dashboard.views.base import View
from tilescope_dashboard.views.fusion import FusionForm
from tilescope_dashboard.views.missing import Missing, rows_of


class Advice(View):
    """Findings of the chosen case as cards, ours and NVIDIA's apart, and a small form for the fusion question."""

    name_in_address, title = "advice", "Advice"

    def build(self) -> list[Any]:
        self._case = pmui.Select(label="case", options=[], sizing_mode="stretch_width", max_width=620, size="small")
        self._head, self._missing = html_text.pane(), Missing(self.state)
        self._cards, self._nvidia, self._fusion = cards.pane(), cards.pane(), FusionForm()
        self._filling = False
        self._case.param.watch(lambda event: self._filling or self._choose(event.new), "value")
        return [self._head, self._missing, self._case, self._cards, self._nvidia, self._fusion]

    def update(self) -> None:
        options = dict(self.state.cases)
        chosen = self.state.chosen or self._largest(options)
        self._filling = True
        self._case.visible = bool(options)
        self._case.param.update(options=options, value=chosen)
        self._filling = False
        self._show()

    def _choose(self, case: Any) -> None:
        self.state.case = case_name(case)

    def _largest(self, options: dict[str, Any]) -> Any:
        """The case that stands for the kernel, else the first there is, else None."""
        loaded = self.state.loaded
        summaries = run_cache.summaries(loaded) if loaded and options else None
        head = (
            None if summaries is None else summary.representative(summaries[summaries["kernel"] == self.state.kernel])
        )
        case = tuple(head[name] for name in OF_KERNEL) if head else None
        return case if case in options.values() else next(iter(options.values()), None)

    def _show(self) -> None:
        loaded, case = self.state.loaded, self._case.value
        if loaded is None or case is None:
            self._head.object = html_text.heading(*topic.nothing(self.state.kernel))
            self._cards.object = self._nvidia.object = ""
            self._missing.seek(rows_of())
            return
        self._missing.say("")
        table = self.state.table
        sources = set(table.loc[(table[OF_KERNEL] == list(case)).all(axis="columns"), "source"])
        of_kernel = (self.state.kernel, *case)
        ours = run_cache.findings(loaded, of_kernel)
        theirs = [found for found in nvidia_rules.of_run(loaded.folder) if found.case == of_kernel]
        self._head.object = html_text.heading(*topic.sentence(ours, sources))
        self._cards.object = cards.cards(ours)
        self._nvidia.object = html_text.subheading(*topic.nvidia_sentence(theirs)) + cards.cards(theirs)
