"""Advice: why one case of the kernel is slow, what NVIDIA's rules say of it, and what fusing a chain could win."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

import panel_material_ui as pmui
from tilescope.models import summary
from tilescope.models.advice import Finding, nvidia_rules

from tilescope_dashboard.components import cards, html_text
from tilescope_dashboard.data import run_cache
from tilescope_dashboard.data.units import times
from tilescope_dashboard.views.base import View
from tilescope_dashboard.views.elsewhere import Elsewhere, rows_of
from tilescope_dashboard.views.fusion import FusionForm

#: A case of the chosen kernel: ``opened.CASE`` without the kernel.
_CASE = list(run_cache.CASE[1:])
_ORDER = (
    "Ranked by potential speedup. Estimates are upper limits: fix one, then measure again. "
    "A solid edge was measured, a dashed one is predicted; values in italics were not measured."
)
_NONE = "This run says nothing about {}: profile it with the compiler collector, or with ncu on a GPU."


class Advice(View):
    """Findings of the chosen case as cards, ours and NVIDIA's apart, and a small form for the fusion question."""

    name_in_address, title = "advice", "Advice"

    def build(self) -> list[Any]:
        self._case = pmui.Select(label="case", options=[], sizing_mode="stretch_width", max_width=620, size="small")
        self._head, self._nowhere = html_text.pane(), Elsewhere(self.state)
        self._cards, self._nvidia, self._fusion = cards.pane(), cards.pane(), FusionForm()
        self._filling = False
        self._case.param.watch(lambda event: self._filling or self._choose(event.new), "value")
        self.state.param.watch(self._changed, "case")
        return [self._head, self._nowhere, self._case, self._cards, self._nvidia, self._fusion]

    def update(self) -> None:
        rows = self.state.table[_CASE].drop_duplicates()
        options = {run_cache.case_name(case): case for case in rows.itertuples(index=False, name=None)}
        # The person's choice stays where this run has it too.
        chosen = options[self.state.case] if self.state.case in options else self._largest(options)
        self._filling = True
        self._case.visible = bool(options)
        self._case.param.update(options=options, value=chosen)
        self._filling = False
        self._show()

    def _choose(self, case: Any) -> None:
        self.state.case = run_cache.case_name(case)

    def _largest(self, options: dict[str, Any]) -> Any:
        """The kernel's headline case, else the first there is, else None."""
        loaded = self.state.loaded
        headlines = run_cache.headlines(loaded) if loaded and options else None
        head = (
            None if headlines is None else summary.representative(headlines[headlines["kernel"] == self.state.kernel])
        )
        case = tuple(head[name] for name in _CASE) if head else None
        return case if case in options.values() else next(iter(options.values()), None)

    def _show(self) -> None:
        loaded, case = self.state.loaded, self._case.value
        if loaded is None or case is None:
            say = _NONE.format(self.state.kernel) if self.state.kernel else "Choose a kernel to get advice on it."
            self._head.object, self._cards.object, self._nvidia.object = html_text.heading("Advice", say), "", ""
            self._nowhere.seek(rows_of())
            return
        self._nowhere.say("")
        table = self.state.table
        sources = set(table.loc[(table[_CASE] == list(case)).all(axis="columns"), "source"])
        of_kernel = (self.state.kernel, *case)
        ours = run_cache.findings(loaded, of_kernel)
        theirs = [found for found in nvidia_rules.of_run(loaded.folder) if found.case == of_kernel]
        self._head.object = html_text.heading(_headline(ours), _ORDER if ours else _missing(sources))
        self._cards.object = cards.cards(ours)
        self._nvidia.object = html_text.subheading("NVIDIA's rules", _theirs(theirs)) + cards.cards(theirs)


def _headline(found: Sequence[Finding]) -> str:
    """The first finding that is bounded, or what there is."""
    if not found:
        return "No known bottleneck found"
    bound = found[0].bound
    win = f": {bound.most}{times(bound.ratio)}" if bound else ""
    return found[0].title + win


def _missing(sources: Collection[str]) -> str:
    """Which collectors would say more."""
    wanted = [name for name in ("compiler", "interpreter", "ncu") if name not in sources]
    return f"Profile it with {' and '.join(wanted)} to know more." if wanted else "Every rule had its counters."


def _theirs(found: Sequence[Finding]) -> str:
    if found:
        return "Nsight Compute's own, for each launch; its estimates are its own too."
    return "Not collected for this case: on a GPU, 'tilescope profile KERNEL --collect ncu_rules' asks for them."
