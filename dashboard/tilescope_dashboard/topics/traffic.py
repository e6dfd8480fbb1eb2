"""HBM traffic: bytes that a kernel moves, and what fusion gains."""

from __future__ import annotations

import pandas as pd
from tilescope.models import function_names
from tilescope.models import traffic as model
from tilescope.table.sources import MEASURED

from tilescope_dashboard.data import frames
from tilescope_dashboard.data.columns import GPU_TIME, IMPL, Column
from tilescope_dashboard.data.units import rounded, times, write
from tilescope_dashboard.figures.traffic import MOST
from tilescope_dashboard.topics.sentence import Sentence

#: A run has bars if it has one of these metrics.
NEEDED = frozenset(
    [*(name for choices in model.BYTES.values() for pair in choices for name in pair), f"{model.SAMPLED}_read"]
)
NOTHING = Sentence("HBM traffic", "The bytes of this kernel were not counted.")
#: Columns of ``listed``'s frame, and of ``tilescope.models.traffic.speedup``'s.
LAUNCHES = (
    IMPL, Column("number", "launch", "count"), Column("read", "read (B)", "byte"),
    Column("written", "written (B)", "byte"), Column("over", "vs minimum", "times"), Column("source", "source"),
    Column("called", "function"), Column("function", "its full name"),
)  # fmt: skip
SPEEDUPS = (
    IMPL, Column("bytes", "bytes", "byte"), Column("baseline_bytes", "unfused, bytes", "byte"),
    Column("bytes_source", "bytes from"), Column("predicted", "predicted", "times"), GPU_TIME,
    Column("actual", "actual", "times"), Column("time_source", "time from"),
)  # fmt: skip
#: Remark on a sum that may far exceed what the call moves.
COLD = (
    "ncu empties the caches before each launch, so data that a launch leaves in L2 for the next counts as HBM traffic."
)
#: Share of the least bytes up to which fewer count as equal.
_EQUAL = 0.005
#: Sources of bytes with their labels, the most direct first.
_COUNTED = {"ncu": "measured (ncu)", "cupti": "measured (CUPTI)", "interpreter": "predicted (interpreter)"}


def problems(launches: pd.DataFrame) -> dict[str, tuple[str, str]]:
    """``frames.problems`` with counted bytes. ``launches`` is from ``tilescope.models.traffic.traffic``."""
    return frames.problems(_counted(launches))


def sources(launches: pd.DataFrame) -> dict[str, str]:
    """Sources that counted bytes here, by their labels."""
    known = set(_counted(launches)["source"])
    said = {**_COUNTED, "ncu": "measured (ncu, CUPTI)"} if {"ncu", "cupti"} <= known else _COUNTED
    return {said[source]: source for source in _COUNTED if source in known}


def of_problem(rows: pd.DataFrame, workload: str, direction: str) -> pd.DataFrame:
    """The rows of one workload and pass."""
    return rows[(rows["workload"] == workload) & (rows["pass"] == direction)].reset_index(drop=True)


def floor(rows: pd.DataFrame) -> float | None:
    """The algorithm's bytes of one problem; None if unknown."""
    least = rows[["floor_read", "floor_written"]].sum(axis=1, min_count=2).min()
    return None if pd.isna(least) else float(least)


def bars(rows: pd.DataFrame, source: str = "ncu") -> pd.DataFrame:
    """The launches of one problem from ``source``; for implementations that it lacks, from the most direct other source."""
    counted = _counted(rows)
    order = {name: place for place, name in enumerate(dict.fromkeys([source, *_COUNTED]))}
    place = counted["source"].map(order)
    return counted[place.eq(place.groupby(counted["impl"]).transform("min"))].reset_index(drop=True)


def listed(shown: pd.DataFrame, least: float | None) -> pd.DataFrame:
    """``bars`` for the table: launches are numbered from 1, functions have readable names (``called``), and bytes are also given
    ``over`` the ``least``, in bytes. Estimates from a sample are rounded and have no ratio.
    """
    of_sample = shown["metric"] == model.SAMPLED
    over = ((shown["read"] + shown["written"]) / (least or float("nan"))).mask(of_sample)
    shown = shown.assign(**{way: shown[way].mask(of_sample, shown[way].map(rounded)) for way in ("read", "written")})
    source = shown["source"].where(~of_sample, "≈ of a sample (" + shown["source"] + ")")
    return shown.assign(
        number=shown["launch"].astype("float64") + 1,
        over=over,
        source=source,
        called=shown["function"].map(function_names.said),
    )


def sentence(shown: pd.DataFrame, gains: pd.DataFrame, least: float | None, l2_bytes: int) -> Sentence:
    """The sentence on the bytes of Triton, or of the implementation with the fewest, against the ``least``, and on its speedup.

    ``shown`` is ``bars``, ``gains`` are rows of ``tilescope.models.traffic.speedup``, both of one problem. It remarks on sums of
    launches that each fit in an L2 of ``l2_bytes`` and were counted with cold caches.
    """
    totals = (shown["read"] + shown["written"]).groupby(shown["impl"]).sum()
    ours = "triton" if "triton" in totals else totals.idxmin()
    together = "; the last segment has the smallest" if shown["impl"].value_counts().max() > MOST else ""
    said = f"Solid: measured by hardware counters. Pale: predicted. Each segment is one launch{together}."
    by_ncu = (shown["read"] + shown["written"])[shown["source"] == "ncu"].groupby(shown["impl"])
    cold = {impl for impl, moved in by_ncu if model.cold([*moved], l2_bytes)}
    sources = set(shown.loc[shown["impl"] == ours, "source"])
    of_sample = shown[(shown["impl"] == ours) & (shown["metric"] == model.SAMPLED)]
    verb = "moves at most" if ours in cold else "moves" if sources <= MEASURED else "has to move"
    if cold:
        said += f" {COLD}"
    if len(of_sample):
        # Every access counts in full; caches may serve repeated ones.
        verb = "asks for ≈"
        said = f"{sampled(of_sample['counted'].sum(), of_sample['programs'].sum())} {said}"
    title, gain = f"{ours} {verb} {write(totals[ours], 'byte')}", gains[gains["impl"] == ours]
    if of_sample.empty and len(gain) and gain["bytes_source"].iloc[0] in sources and gain["predicted"].iloc[0] > 1:
        title += f", {write(1 - 1 / gain['predicted'].iloc[0], 'ratio', 2)} less than unfused"
    if least and of_sample.empty:
        less = 1 - totals[ours] / least
        fewer = f"{write(less, 'ratio', 2)} less than its inputs and outputs"
        title += f", {fewer if less > _EQUAL else f'{times(1 - less)} the minimum'}"
    if len(gain) and pd.notna(gain["predicted"].iloc[0]):
        actual = gain["actual"].iloc[0]
        timed = f"; the measured speedup is {times(actual)}" if pd.notna(actual) else ""
        source = gain["bytes_source"].iloc[0]
        # These may differ from the bars, which prefer measured bytes.
        counted = f", {_COUNTED[source]}," if source in _COUNTED else ""
        predicted = times(gain["predicted"].iloc[0])
        said = f"Bytes{counted} predict a speedup of {predicted} vs unfused{timed}. {said}"
    return Sentence(title, said)


def sampled(counted: float, programs: float) -> str:
    """Remark on bytes of sampled programs."""
    of = f" of {counted:,.0f} of {programs:,.0f} programs" if counted > 0 else " of the programs"
    return (
        f"Dotted and ≈: estimated from a sample{of}. Every access counts in full, because distinct bytes are unknown."
    )


def _counted(launches: pd.DataFrame) -> pd.DataFrame:
    return launches[launches["source"] != "model"]
