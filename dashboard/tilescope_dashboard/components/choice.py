"""Selectors: one whose options change with the run and the kernel, and buttons that stand beside fields."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import panel_material_ui as pmui
from param.parameterized import no_instance_params

from tilescope_dashboard.topics.claims import STANDINGS

#: Placeholder of a list in which nothing is chosen.
CHOOSE = "choose one"


#: A list is as high as a text field beside it.
FIELD = {"height": 40}


@no_instance_params  # else each has copies of its forty parameters
class Choice(pmui.Select):
    """Calls ``chosen`` when a user chose, not while options are offered: other selectors may not have theirs yet.

    A user's choice is kept as long as the options include it.
    """

    def __init__(self, label: str, width: int, chosen: Callable[[], object], **settings: Any) -> None:
        wide = {} if "sizing_mode" in settings else {"width": width}
        super().__init__(**{"label": label, "options": {}, "size": "small", "sx": FIELD, **wide, **settings})
        self._chosen, self._offering, self._picked = chosen, False, False
        self.param.watch(lambda _: self._pick(), "value")

    def offer(self, options: Mapping[str, Any] | Sequence[Any], first: Any, *, anew: bool = False) -> None:
        """Put these options, labelled if they are a mapping, in place of the others; ``first`` is the one to start with, which
        ``anew`` puts in place of what a user picked, too.
        """
        values = options.values() if isinstance(options, Mapping) else options
        self._picked = self._picked and not anew
        value = self.value if self._picked and self.value in values else first
        relabelled = options != self.options and value == self.value
        self._offering = True
        self.param.update(options=options, value=value, visible=bool(options))
        if relabelled:
            self.param.trigger("value")  # the browser keeps the label, which may have changed
        self._offering = False

    def _pick(self) -> None:
        if not self._offering and self.value is not None:
            self._picked = True
            self._chosen()


#: As high as the field beside them; the group's label is as small as a field's, and above the row as well.
BESIDE_FIELDS = (
    ".MuiToggleButton-root { white-space: nowrap; height: 40px; } "
    "#toggle-buttons-group-label { font-size: 12px; line-height: 1; position: absolute; bottom: 100%; padding-bottom: 2px; }"
)


def standings() -> pmui.RadioButtonGroup:
    """Filter by how a kernel compares with the fastest other implementation; empty for any."""
    return pmui.RadioButtonGroup(
        label="vs the fastest other", options={"all": "", **{word: word for word in STANDINGS}}, value="", size="small",
        width=290, margin=(10, 10), stylesheets=[BESIDE_FIELDS],
    )  # fmt: skip
