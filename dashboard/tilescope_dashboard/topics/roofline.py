"""Roofline: the share of its roof that a kernel reaches."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace

import pandas as pd
from tilescope.hardware import ceilings

from tilescope_dashboard.data.columns import GPU_TIME, IMPL, PASS, WORKLOAD, Column
from tilescope_dashboard.data.kernel_cases import OF_KERNEL, KernelCase
from tilescope_dashboard.data.units import rounded, write
from tilescope_dashboard.figures.roofline import KINDS
from tilescope_dashboard.figures.roofs import LEVELS
from tilescope_dashboard.topics.sentence import Sentence

#: A run has points if it has one of these metrics.
NEEDED = frozenset({"algorithm_bytes_read", "requested_bytes_read", "sampled_bytes_read", "dram_bytes_read"})
NOTHING = Sentence("Roofline", "There are no operations or bytes of this kernel.")
_READING = "Hollow marks are predicted, filled marks measured. A dotted line joins the points of one launch."
_SAMPLED = "A cross is an estimate (≈) from a sample of programs. HBM traffic gives the size of the sample."
_NO_WORK = "A roofline needs operations, and this kernel has none. HBM traffic gives the bytes that it moves."
#: Columns of ``listed``'s frame.
COLUMNS = (
    IMPL, WORKLOAD, PASS, Column("kind", "point"), Column("level", "level"),
    Column("flops", "operations needed", "flop"), Column("executed_ratio", "executed / needed", "times"),
    Column("bytes", "bytes", "byte"), Column("intensity", "intensity", "flop/byte"),
    Column("performance", "performance", "flop/second"), GPU_TIME, Column("fraction", "of roofline", "ratio"),
    Column("function", "launch"), Column("sources", "sources"),
)  # fmt: skip
#: Bytes that the headline uses: the algorithm's first, as in every view.
_KINDS = ("algorithm", "moved", "requested", "sampled")


def columns(points: pd.DataFrame) -> tuple[Column, ...]:
    """The table's columns. Operations are called integer where any point is of an integer pipe."""
    if not any(ceilings.unit(pipe) == "op/second" for pipe in points["pipe"].unique()):
        return COLUMNS
    return tuple(
        replace(c, unit=c.unit.replace("flop", "op")) if c.unit in ("flop", "flop/second") else c for c in COLUMNS
    )


def listed(points: pd.DataFrame) -> pd.DataFrame:
    """The points for the table: levels by name, and all sources of the values in ``sources``."""
    sources = zip(*(points[f"{what}_source"].tolist() for what in ("flops", "bytes", "time")), strict=True)
    said = pd.Series([", ".join(dict.fromkeys(filter(None, row))) for row in sources], dtype=object)
    near = points["kind"].eq("sampled")
    points = points.assign(**{what: points[what].mask(near, points[what].map(rounded)) for what in ("flops", "bytes")})
    kind = points["kind"].map(lambda kind: KINDS.get(kind, kind))
    return points.assign(sources=said, level=points["level"].map(LEVELS), kind=kind)


def shared(points: pd.DataFrame) -> list[str]:
    """Columns with one value in all points, which a table may leave out."""
    return [name for name in ("pass", "level", "function") if points[name].nunique(dropna=False) <= 1]


def chosen(
    points: pd.DataFrame, levels: Collection[str] = ("hbm",), each: bool = False, held: Mapping[str, str] | None = None
) -> pd.Series:
    """Mask of the shown points: those of ``levels``, of ``each`` launch or of whole calls, with the ``held`` values."""
    found = points["level"].isin(levels) & (points["launch"].notna() == each)
    for column, value in (held or {}).items():
        found &= points[column] == value
    return found


def sentence(points: pd.DataFrame, standing: KernelCase | None = None) -> Sentence:
    """The sentence on the ``standing`` case of ``tilescope.models.roofline.points``, or on the largest timed one, or on points
    without times.
    """
    timed = points[points["fraction"].notna()]
    reading = " ".join([_READING, *([_SAMPLED] if points["kind"].eq("sampled").any() else [])])
    if len(timed):
        own = timed[(timed[OF_KERNEL] == list(standing)).all(axis="columns")] if standing else timed
        case = _largest(own if len(own) else timed)
        return Sentence(
            f"{write(case['fraction'], 'ratio')} of the {_roof(case)} at {_intensity(case['intensity'])}",
            f"{case['impl']} on {case['workload']} reaches {write(case['performance'], ceilings.unit(case['pipe']))} "
            f"({case['kind']} bytes through {LEVELS[case['level']]}). Its roofs are {write(case['memory_roof'], 'byte/second')} and "
            f"{write(case['compute_roof'], ceilings.unit(case['pipe']))} ({case['origin'].replace('+', ' and ')}). {reading}",
        )
    if points.empty:
        return Sentence("Roofline", "No point fits these choices.")
    if not points["intensity"].gt(0).any():
        return Sentence("No operations are counted", _NO_WORK)
    return Sentence("Nothing was timed here", f"Dashed marks stand at the performance that the roofs allow. {reading}")


def _roof(case: pd.Series) -> str:
    """The roof above the point."""
    if case["compute_roof"] <= case["memory_roof"] * case["intensity"]:
        return f"{case['pipe']} roof"
    return f"{LEVELS[case['level']]} roof"


def _intensity(value: float) -> str:
    """``2,730 flop/byte``, not in kiloflops."""
    return f"{float(f'{value:.3g}'):,.9g} flop/byte"


def _largest(timed: pd.DataFrame) -> pd.Series:
    """The Triton implementation's point on its largest problem, forward where there is one."""
    found = timed[timed["kind"] == min(timed["kind"].unique(), key=_KINDS.index)]
    for column, wanted in (("impl", "triton"), ("pass", "forward")):
        preferred = found[found[column] == wanted]
        found = preferred if len(preferred) else found
    return found.loc[(found["gpu_time"] * found["fraction"]).idxmax()]
