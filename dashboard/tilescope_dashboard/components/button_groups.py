"""Groups of buttons that stand beside fields."""

from __future__ import annotations

import panel_material_ui as pmui

from tilescope_dashboard.topics.claims import STANDINGS

#: As high as the field beside them; the group's label is as small as a field's.
BESIDE_FIELDS = (
    ".MuiToggleButton-root { white-space: nowrap; height: 40px; } "
    "#toggle-buttons-group-label { font-size: 12px; line-height: 1; margin-bottom: 3px; }"
)


def standings() -> pmui.RadioButtonGroup:
    """Filter by how a kernel compares with the fastest other implementation; empty for any."""
    return pmui.RadioButtonGroup(
        label="vs the fastest other", options={"all": "", **{word: word for word in STANDINGS}}, value="", size="small",
        width=290, margin=(0, 10), stylesheets=[BESIDE_FIELDS],
    )  # fmt: skip
