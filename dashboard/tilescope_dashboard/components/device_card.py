"""The GPU of a run as HTML: its sizes, and its roofs as measured and as published."""

from __future__ import annotations

import math
from collections.abc import Sequence
from html import escape

from tilescope.hardware.ceilings import MEASURED
from tilescope.table.run import Ceiling, Device

from tilescope_dashboard.components import html_text
from tilescope_dashboard.data.units import ABSENT, moments, write

_ROOFS = {"hbm": "HBM", "hbm_read": "HBM, reading", "l2": "L2", "l1": "L1"}


def described(device: Device | None) -> str:
    """A heading, four sizes (0 is unknown) and a table of roofs with their sources, as HTML; nothing without a device."""
    if device is None:
        return ""
    if not device.measured:
        kind = "Predicted without this GPU, from published figures."
    elif any(roof.origin == MEASURED for roof in device.ceilings):
        kind = "All runs on this GPU and driver share these measured roofs."
    else:
        kind = "Its roofs were not measured: they are published figures."
    sizes = [
        ("architecture", device.target or ABSENT, ""),
        ("SMs", write(device.multiprocessors or math.nan, "count"), ""),
        ("L2", write(device.l2_bytes or math.nan, "byte"), ""),
        ("memory", write(device.memory_bytes or math.nan, "byte"), ""),
    ]
    names = dict.fromkeys(roof.name for roof in device.ceilings)
    pairs = [(name, device.ceiling(name, "measured"), device.ceiling(name, "datasheet")) for name in names]
    notes = list(dict.fromkeys(roof.provenance for _, *pair in pairs for roof in pair if roof and roof.provenance))
    rows = "".join(_row(name, measured, published, notes) for name, measured, published in pairs)
    head = "".join(f"<th>{title}</th>" for title in ("roof", "measured", "datasheet", "reached"))
    table = f'<table class="answer"><thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table>' if rows else ""
    origins = "".join(f"<li>{escape(moments(note))}</li>" for note in notes)
    listed = f'<ol class="notes quiet small">{origins}</ol>' if notes else ""
    return html_text.subheading(f"The open run's GPU: {device.name}", kind) + html_text.stats(sizes) + table + listed


def _row(name: str, measured: Ceiling | None, published: Ceiling | None, notes: Sequence[str]) -> str:
    reached = write(measured.value / published.value, "ratio") if measured and published and published.value else "–"
    cells = "".join(f"<td>{cell}</td>" for cell in (_value(measured, notes), _value(published, notes), reached))
    return f"<tr><th>{escape(_ROOFS.get(name, name))}</th>{cells}</tr>"


def _value(roof: Ceiling | None, notes: Sequence[str]) -> str:
    """The roof's height, and the index of the note on its source."""
    if roof is None:
        return "–"
    mark = f' <sup class="quiet">{notes.index(roof.provenance) + 1}</sup>' if roof.provenance else ""
    # On one line: a mark that wraps below its number is not understood.
    return f'<span class="value">{escape(write(roof.value, roof.unit))}{mark}</span>'
