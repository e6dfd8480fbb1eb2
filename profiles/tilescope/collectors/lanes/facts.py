"""What the lanes of a launch say about it: shares of its warps' and programs' time, for sentences and advice. Pure."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator

import numpy as np
import pandas as pd

from tilescope.collectors.lanes import records

_PRODUCT_WAIT, _FREE = "wait for products", "arrive at barrier"
#: Seconds above which a wait for products waited for them, and did not find them ended.
_BLOCKED = 1e-7
#: Steps that a loop of products must have for its waits to count as those of each step.
_STEPS = 4
#: Columns of spans that say when products are in flight.
_FLIGHT = ["kind", "pending", "least", "start", "end"]


def of_launch(own: pd.DataFrame) -> dict[str, float]:
    """Metrics of a launch's spans by name. One that has no meaning for the launch is absent."""
    took = own["end"] - own["start"]
    whole = took.sum()
    if not whole > 0:
        return {}
    found = {
        "lane_wait_share": took[own["kind"] == records.WAIT].sum() / whole,
        "lane_conversion_share": took[own["kind"] == records.CONVERSION].sum() / whole,
        "lane_barrier_share": took[own["name"] == records.BLOCK_BARRIER].sum() / whole,
    }
    if (own["kind"] == records.PRODUCT).any():
        found["lane_product_share"] = product_share(own)
        found |= _of_products(own)
    return {name: float(value) for name, value in found.items()}


def product_share(own: pd.DataFrame) -> float:
    """The share of the programs' time in which a product of one of their warps is in flight, from its start to the end of the wait
    for it, or where that wait found it ended, to the end of the time that its pipe needs.
    """
    lane = ["launch", "program", "warp"]
    programs = own.groupby(lane[:2], sort=False)
    whole = float((programs["end"].max() - programs["start"].min()).sum())
    asked = own[(own["kind"] == records.PRODUCT) | (own["name"] == _PRODUCT_WAIT)]
    flights: dict[tuple[int, int], list[tuple[float, float]]] = {}
    for (launch, program, _), waits in asked[[*lane, *_FLIGHT]].groupby(lane, sort=False):
        flights.setdefault((launch, program), []).extend(_flights(waits))
    return sum(map(_union, flights.values())) / whole if whole else 0.0


def _flights(lane: pd.DataFrame) -> Iterator[tuple[float, float]]:
    flying: deque[tuple[float, float, float]] = deque()
    ended = 0.0
    for kind, pending, least, start, end in zip(*(lane[name].tolist() for name in _FLIGHT), strict=True):
        if kind == records.PRODUCT:
            flying.append((start, end, least))
            continue
        while len(flying) > pending:
            begun, _, needed = flying.popleft()
            found_ended = needed and end - start < _BLOCKED
            ended = min(end, max(begun, ended) + needed) if found_ended else end
            yield begun, ended
    # No wait is for a product that ends where it is.
    yield from ((start, end) for start, end, _ in flying)


def _union(intervals: list[tuple[float, float]]) -> float:
    total, reach = 0.0, float("-inf")
    for start, end in sorted(intervals):
        total += max(0.0, end - max(start, reach))
        reach = max(reach, end)
    return total


def _of_products(own: pd.DataFrame) -> dict[str, float]:
    """The metrics of a launch with products. They are the share of waits for tiles between a lane's first and last product, the line of
    the longest, the share of programs after their last product, and how unevenly groups of warps compute.
    """
    products = own[own["kind"] == records.PRODUCT].groupby(["program", "warp"])
    first, last, steps = products["start"].min(), products["end"].max(), products.size()
    lanes = pd.MultiIndex.from_frame(own[["program", "warp"]])
    begin, end = (pd.Series(limit.reindex(lanes).to_numpy(), index=own.index) for limit in (first, last))
    loop = own[(own["start"] >= begin) & (own["end"] <= end)]
    took = loop["end"] - loop["start"]
    found: dict[str, float] = {}
    if len(loop) and steps.median() >= _STEPS:
        loads = loop["awaits"].str.startswith("load") | (loop["name"] == "load")
        tiles = loads | loop["awaits"].str.contains("TMA load|asynchronous copy", regex=True)
        found["lane_tile_wait_share"] = took[tiles].sum() / took.sum()
        found["lane_load_wait_share"] = took[loads].sum() / took.sum()
        by_line = took[tiles].groupby(loop.loc[tiles, "line"]).sum()
        if len(by_line) and by_line.max() > 0:
            found["lane_tile_wait_line"] = by_line.idxmax()
    programs = own.groupby("program")
    spans, ends = programs["end"].max() - programs["start"].min(), last.groupby("program").max()
    if steps.median() >= _STEPS:
        found["lane_epilogue_share"] = ((programs["end"].max() - ends) / spans).median()
    computing = own[
        pd.Series(np.isin(own["warp"].to_numpy(), products["start"].first().index.get_level_values("warp")), own.index)
    ]
    busy = computing[(computing["kind"] != records.WAIT) | (computing["name"] == _PRODUCT_WAIT)]
    by_group = (busy["end"] - busy["start"]).groupby([busy["program"], busy["group"]]).sum().groupby("group").mean()
    if len(by_group) > 1:
        counts = computing.drop_duplicates(["group", "warp"]).groupby("group").size()
        each = by_group / counts
        found["lane_imbalance"] = each.max() / each.mean()
    suppliers = own[~pd.Series(lanes.isin(first.index), own.index)]
    waits = (suppliers["kind"] == records.WAIT) & suppliers["awaits"].str.startswith(_FREE)
    if waits.any():
        time = suppliers["end"] - suppliers["start"]
        found["lane_free_wait_share"] = time[waits].sum() / time.sum()
    return found
