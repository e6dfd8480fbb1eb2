"""Form that predicts the gain of fusing a chain of PyTorch operations from sizes and datasheets; nothing is run."""

from __future__ import annotations

import panel as pn
import panel_material_ui as pmui
from tilescope.hardware import ceilings
from tilescope.models import fusion

from tilescope_dashboard.components import cards, html_text, layout
from tilescope_dashboard.components.choice import Choice

_CHAIN, _SHAPE, _TARGET = "add,relu,mul", "16384x4096-bf16", "sm_90"
_ABOUT = "A chain of PyTorch operations, before there is a kernel for it. Known operations: {}."


class FusionForm(layout.Part):
    """Chain, shape and GPU; the answer follows each change of them."""

    def __init__(self) -> None:
        super().__init__()
        self._answer, self._offered = cards.pane(), ("", "")
        self._chain = pmui.TextInput(label="chain", value=_CHAIN, width=260, size="small")
        self._shape = pmui.TextInput(label="shape and dtype", value=_SHAPE, width=200, size="small")
        self._target = Choice("GPU", 110, self._ask, options=list(ceilings.targets()), value=_TARGET)
        for widget in (self._chain, self._shape):
            widget.param.watch(lambda _: self._ask(), "value")
        said = _ABOUT.format(", ".join(sorted(fusion.OPERATIONS)))
        asked = pn.FlexBox(self._chain, self._shape, self._target, sizing_mode="stretch_width", gap="8px")
        self.layout = layout.column(cards.pane(html_text.subheading("Would fusing help?", said)), asked, self._answer)
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
