"""Advice: why one case of the kernel is slow, what NVIDIA's rules say of it, and what fusing a chain could win."""

from __future__ import annotations

from typing import Any

import panel as pn
import panel_material_ui as pmui
from tilescope import advice, ceilings, fusion, ncu_rules, summary
from tilescope.advice import Finding

from tilescope_dashboard import cards, opened, words
from tilescope_dashboard.views.base import View

_CASE = ["impl", "pass", "workload", "config"]
_CHAIN, _SHAPE, _TARGET = "add,relu,mul", "16384x4096-bf16", "sm_90"
_ORDER = (
    "Ranked by what mending each could win at most. A bound is no promise: mend one and measure again. "
    "A solid edge was measured, a dashed one is predicted; values in italics were not measured."
)
_NONE = "This run says nothing about {}: profile it with the compiler collector, or with ncu on a GPU."
_FUSION = "A chain of PyTorch operations, before there is a kernel for it. Known operations: {}."


class Advice(View):
    """Findings of the chosen case as cards, ours and NVIDIA's apart, and a small form for the fusion question."""

    name_in_address, title = "advice", "Advice"

    def build(self) -> list[Any]:
        self._case = pmui.Select(label="case", options=[], sizing_mode="stretch_width", max_width=620, size="small")
        self._head, self._cards, self._nvidia, self._answer = words.pane(), cards.pane(), cards.pane(), cards.pane()
        self._chain = pmui.TextInput(label="chain", value=_CHAIN, width=260, size="small")
        self._shape = pmui.TextInput(label="shape and dtype", value=_SHAPE, width=200, size="small")
        targets = list(ceilings.targets())
        self._target = pmui.Select(label="GPU", options=targets, value=_TARGET, width=110, size="small")
        self._case.param.watch(lambda _: self._show(), "value")
        for widget in (self._chain, self._shape, self._target):
            widget.param.watch(lambda _: self._ask(), "value")
        said = _FUSION.format(", ".join(sorted(fusion.OPERATIONS)))
        question = cards.pane(words.subheading("Would fusing help?", said))
        form = pn.FlexBox(self._chain, self._shape, self._target, sizing_mode="stretch_width", gap="8px")
        return [self._head, self._case, self._cards, self._nvidia, question, form, self._answer]

    def update(self) -> None:
        self._ask()
        rows = self.state.table[_CASE].drop_duplicates()
        options = {" · ".join(filter(None, case)): case for case in rows.itertuples(index=False, name=None)}
        # The person's choice stays where this run has it too.
        chosen = self._case.value if self._case.value in options.values() else self._largest(options)
        self._case.visible = bool(options)
        self._case.param.update(options=options, value=chosen)
        self._show()

    def _largest(self, options: dict[str, Any]) -> Any:
        """The kernel's headline case, else the first there is, else None."""
        loaded = self.state.loaded
        headlines = opened.headlines(loaded) if loaded and options else None
        head = None if headlines is None else summary.headline(headlines[headlines["kernel"] == self.state.kernel])
        case = tuple(head[name] for name in _CASE) if head else None
        return case if case in options.values() else next(iter(options.values()), None)

    def _show(self) -> None:
        loaded, case = self.state.loaded, self._case.value
        if loaded is None or case is None:
            say = _NONE.format(self.state.kernel) if self.state.kernel else "Choose a kernel to get advice on it."
            self._head.object, self._cards.object, self._nvidia.object = words.heading("Advice", say), "", ""
            return
        table = self.state.table
        table = table[(table[_CASE] == list(case)).all(axis="columns")]
        ours = advice.findings(table, loaded.run.device, loaded.run.kernels)
        self._head.object = words.heading(_headline(ours), _ORDER if ours else _missing(set(table["source"])))
        self._cards.object = cards.cards(ours)
        theirs = [f for f in ncu_rules.of_run(loaded.folder) if f.case == (self.state.kernel, *case)]
        self._nvidia.object = words.subheading("NVIDIA's rules", _theirs(theirs)) + cards.cards(theirs)

    def _ask(self) -> None:
        try:
            problem = fusion.parse_problem(self._shape.value)
            chain = fusion.count(fusion.parse_chain(self._chain.value), problem)
            self._answer.object = cards.answer(fusion.ask(chain, problem, self._target.value))
        except ValueError as error:
            self._answer.object = words.notice("warning", "This cannot be answered:", str(error))


def _headline(found: list[Finding]) -> str:
    """The first finding that is bounded, or what there is."""
    if not found:
        return "Nothing to mend was found"
    bound = found[0].bound
    win = f": at most {bound.ratio:.2f}×" if bound else ""
    return found[0].title + win


def _missing(sources: set[str]) -> str:
    """Which collectors would say more."""
    wanted = [name for name in ("compiler", "interpreter", "ncu") if name not in sources]
    return f"Profile it with {' and '.join(wanted)} to know more." if wanted else "Every rule had its counters."


def _theirs(found: list[Finding]) -> str:
    if found:
        return "Nsight Compute's own, for each launch; its estimates are its own too."
    return "Not collected for this case: on a GPU, 'tilescope profile KERNEL --collect ncu_rules' asks for them."
