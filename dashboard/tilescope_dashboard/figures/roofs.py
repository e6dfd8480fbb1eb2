"""The roofs of a roofline: the choice of a device's roofs, their strokes and labels. Pure: frame -> columns."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np
import pandas as pd
from tilescope.hardware import ceilings

from tilescope_dashboard.data.units import write

#: A renderer's data, by column.
Columns = dict[str, "np.ndarray"]

LEVELS = {"hbm": "HBM", "l2": "L2", "l1": "L1"}


class Roof(NamedTuple):
    """A roof of memory or of a pipe. ``reads`` marks the HBM roof for reading alone."""

    name: str
    kind: str
    value: float
    origin: str
    reads: bool


def applying(roofs: pd.DataFrame, held_against: set[float]) -> list[Roof]:
    """The roofs to draw.

    The roof of reading HBM is drawn if points are compared with it. The roof of copying is then drawn only if other points are
    compared with that one.
    """
    columns = (roofs[name].tolist() for name in ("name", "kind", "value", "origin"))
    named = [
        Roof("hbm" if name == "hbm_read" else name, kind, value, origin, name == "hbm_read")
        for name, kind, value, origin in zip(*columns, strict=True)
    ]
    reading = any(roof.reads and roof.value in held_against for roof in named)
    copies = [roof for roof in named if roof.name == "hbm" and roof.origin == "measured" and not roof.reads]
    optional = [*(roof for roof in named if roof.reads), *(copies if reading else [])]
    left_out = {roof for roof in optional if roof.value not in held_against}
    return [roof for roof in named if (roof.kind == "compute" or roof.name in LEVELS) and roof not in left_out]


def used(roofs: Sequence[Roof], pipes: set[str]) -> list[Roof]:
    """Memory roofs, and the compute roofs of the pipes in use (all of them where none is known)."""
    known = pipes & {roof.name for roof in roofs}
    return [roof for roof in roofs if roof.kind == "memory" or not known or roof.name in known]


def split(roofs: Sequence[Roof]) -> tuple[list[Roof], list[Roof]]:
    """Split into memory roofs and compute roofs."""
    return [roof for roof in roofs if roof.kind == "memory"], [roof for roof in roofs if roof.kind == "compute"]


def _by_name(roofs: Sequence[Roof]) -> dict[str, list[Roof]]:
    found: dict[str, list[Roof]] = {}
    for roof in roofs:
        found.setdefault(roof.name, []).append(roof)
    return found


def _highest(roofs: Iterable[Roof]) -> float:
    """The highest of the roofs, in its unit; NaN where there are none."""
    return max((roof.value for roof in roofs), default=math.nan)


def lines(roofs: Sequence[Roof], left: float, right: float) -> Columns:
    """A stroke a roof, long enough for panning; memory roofs end at the highest compute roof of their origin."""
    memory, compute = split(roofs)
    fastest, highest = _highest(memory), _highest(compute)
    ends = []
    for roof in memory:
        top = _highest(other for other in compute if other.origin == roof.origin)
        top = highest if math.isnan(top) else top
        top = right * roof.value if math.isnan(top) else top
        start = left / 1e3
        ends.append((start, start * roof.value, top / roof.value, top))
    for roof in compute:
        start = left if math.isnan(fastest) else roof.value / fastest
        ends.append((start, roof.value, right * 1e3, roof.value))
    drawn = [*memory, *compute]
    measured = [roof.origin == "measured" for roof in drawn]
    x0, y0, x1, y1 = np.array(ends, dtype=float).reshape(-1, 4).T
    return {
        "x0": x0, "y0": y0, "x1": x1, "y1": y1,
        "width": np.where([roof.name in ("l2", "l1") for roof in drawn], 1.2, 2.0),
        "dash": np.where(measured, "solid", "6 4"),
        "alpha": np.where(measured, 0.9, 0.6),
    }  # fmt: skip


def memory_labels(roofs: Sequence[Roof], brief: bool, across: tuple[float, float], low: float) -> Columns:
    """A label along each roof, where the roof enters the figure."""
    named = _by_name(split(roofs)[0])
    highest = np.array([_highest(values) for values in named.values()])
    left, right = across
    start = (right / left) ** 0.05 * np.maximum(left, low / highest)
    texts = [_roof_text(name, values, "byte/second", brief) for name, values in named.items()]
    return {"x": start, "y": start * highest, "text": np.array(texts, dtype=str)}


def compute_labels(roofs: Sequence[Roof], brief: bool, right: float) -> Columns:
    """A label at each roof's right end. Roofs too close for separate labels share one."""
    labels: list[tuple[float, str]] = []
    named = _by_name(split(roofs)[1])
    for name, values in sorted(named.items(), key=lambda pair: -_highest(pair[1])):
        height, text = _highest(values), _roof_text(name, values, ceilings.unit(name), brief)
        if labels and labels[-1][0] / height < 1.6:
            labels[-1] = (labels[-1][0], f"{labels[-1][1]}  ·  {text}")
        else:
            labels.append((height, text))
    return {
        "x": np.full(len(labels), right),
        "y": np.array([height for height, _ in labels]),
        "text": np.array([text for _, text in labels], dtype=str),
    }


def _roof_text(name: str, roofs: Sequence[Roof], unit: str, brief: bool) -> str:
    """``HBM 4.27 TB/s (datasheet 4.80 TB/s)``."""
    title = LEVELS.get(name, name)
    measured = sorted((roof for roof in roofs if roof.origin == "measured"), key=lambda roof: roof.reads)
    if not measured:
        return f"{title} {write(_highest(roofs), unit)} datasheet"
    said = [f"{'reading ' if roof.reads else ''}{write(roof.value, unit)}" for roof in measured]
    text = f"{title} {', '.join(said)}"
    sheet = _highest(roof for roof in roofs if roof.origin == "datasheet")
    return text if brief or math.isnan(sheet) else f"{text} (datasheet {write(sheet, unit).split()[0]})"
