"""The GPU that a run speaks about: its sizes, and its roofs as they were measured and as they are published."""

from __future__ import annotations

from html import escape

from tilescope.schema import Ceiling, Device

from tilescope_dashboard import words
from tilescope_dashboard.units import write

_ROOFS = {"hbm": "HBM", "hbm_read": "HBM, reading", "l2": "L2", "l1": "L1"}


def described(device: Device | None) -> str:
    """A heading, four sizes and a table of roofs, each with where it is from; nothing without a device. Escaped."""
    if device is None:
        return ""
    kind = (
        "Its roofs were measured there."
        if device.measured
        else "No such GPU took part: only published figures are known."
    )
    sizes = [
        ("architecture", device.target, ""),
        ("multiprocessors", write(device.multiprocessors, "count"), ""),
        ("L2", write(device.l2_bytes, "byte"), ""),
        ("memory", write(device.memory_bytes, "byte"), ""),
    ]
    names = dict.fromkeys(roof.name for roof in device.ceilings)
    rows = "".join(_row(name, device.ceiling(name, "measured"), device.ceiling(name, "datasheet")) for name in names)
    head = "".join(f"<th>{title}</th>" for title in ("roof", "measured", "datasheet", "reached"))
    table = f'<table class="answer"><thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table>' if rows else ""
    return words.subheading(f"The open run's GPU: {device.name}", kind) + words.stats(sizes) + table


def _row(name: str, measured: Ceiling | None, published: Ceiling | None) -> str:
    reached = write(measured.value / published.value, "ratio") if measured and published and published.value else "–"
    cells = "".join(f"<td>{cell}</td>" for cell in (_value(measured), _value(published), reached))
    return f"<tr><th>{escape(_ROOFS.get(name, name))}</th>{cells}</tr>"


def _value(roof: Ceiling | None) -> str:
    """The roof's height, and how it is known."""
    if roof is None:
        return "–"
    return f'{escape(write(roof.value, roof.unit))}<br><span class="quiet small">{escape(roof.note)}</span>'
