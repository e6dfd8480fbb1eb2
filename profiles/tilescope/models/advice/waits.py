"""Rules on what warps wait for: stalls by ncu's names, and losses by the records of lanes. Pure."""

from __future__ import annotations

from collections.abc import Iterator

from tilescope.models import bound
from tilescope.models.advice import compute
from tilescope.models.advice.finding import Evidence, Finding
from tilescope.models.advice.subject import LaunchValues, Subject
from tilescope.table.metrics import METRICS, stall_name
from tilescope.table.sources import COUNTERS

#: The least share of a warp's cycles, or of time, that makes a finding.
SHARE = 0.25
#: Stalls that bank conflicts cause, and the least ratio of the conflicts' share of the cycles to the stall's for that.
_SHARED_MEMORY, _CAUSED = ("short_scoreboard", "mio_throttle"), 0.5
#: The remedy for barriers on tensor cores: all warps of a block compute tl.dot's tiles together, so fewer of them do not help.
_PRODUCTS = (
    "The warps of a block meet after each tile: have the next tile loaded by then (more num_stages, or warps "
    "specialized in loading), and keep what lies between two tl.dot short. Try other tiles and num_warps in a sweep."
)
_REASONS = tuple(name.removeprefix("stall_") for name in METRICS if name.startswith("stall_"))
#: With products in flight for this share of the time, waits of single warps cost little.
_BUSY = 0.75
_NO_BARRIER = "Take barriers out of the loop: tl's own operations need no tl.debug_barrier, and Triton does not pipeline a loop that has one."
#: Losses by their metrics: the rule, a title with the share, and a remedy.
_LOSSES = {
    "lane_epilogue_share": (
        "epilogue-alone",
        "The epilogue is not overlapped: {} of a program comes after its last product, and no other program runs on its SM",
        "Store whole rows, so that neighbouring threads write neighbouring elements; let two programs fit on an SM, or make programs "
        "persistent with their stores under the next tile's products.",
    ),
    "lane_barrier_share": ("block-barriers", "Warps spend {} of their time at barriers of the block", _NO_BARRIER),
    "lane_conversion_share": (
        "layout-conversions", "Warps spend {} of their time in layout conversions",
        "Convert less: load and store in the order in which the values are computed with, and move tl.trans and reshapes out of the loop.",
    ),
    "lane_tail_share": (
        "long-tail", "The launch ends unevenly: the SMs idle {} of it after their last program, while others still run",
        "Start the longest programs first; give every SM the same number of programs (a tile size that fills whole waves), or make "
        "programs persistent.",
    ),
}  # fmt: skip
#: The least ratio between the busiest group of warps and the mean.
_UNEVEN = 1.2


def longest_stall(subject: Subject) -> Iterator[Finding]:
    """The longest stall of warps, where no roof is reached. Bound: 1 / (1 - its share of a warp's cycles).

    A stall that bank conflicts cause has their bound, and ranks after them.
    """
    if not subject.measured or not subject.row["bound"] or subject.saturation >= bound.AT_ROOF:
        return
    for launch in subject.launches:
        reason, share = next(iter(shares(launch).items()), ("", 0.0))
        if share >= SHARE:
            yield _stalled(subject, launch, reason, share)


def shares(launch: LaunchValues) -> dict[str, float]:
    """The share of each reason in a warp's cycles, the largest first; empty where none were counted."""
    found = {reason: value.value for reason in _REASONS if (value := launch.get(f"stall_{reason}", *COUNTERS))}
    cycles = sum(found.values())
    known = sorted(
        {reason for reason, (_, remedy) in bound.WAITS.items() if remedy} & found.keys(),
        key=lambda reason: (-found[reason], reason),
    )
    return {reason: found[reason] / cycles for reason in known} if cycles else {}


def _stalled(subject: Subject, launch: LaunchValues, reason: str, share: float) -> Finding:
    what, remedy = bound.WAITS[reason]
    if reason == "barrier" and launch.uses_tensor_cores:
        remedy = _PRODUCTS
    # Warps that were ready but not selected do not make a launch longer.
    bounded = share < 1 and reason != "not_selected"
    bound_of = subject.bound(1 / (1 - share), "1 / (1 - share of the stall)", launch, hides=True) if bounded else None
    lost = compute.conflicts(subject, launch) if reason in _SHARED_MEMORY else 0.0
    if bound_of and lost >= _CAUSED * share:
        of_cause = subject.bound(1 / (1 - lost), "that of the bank conflicts, which cause it", launch)
        bound_of = min(bound_of, of_cause, key=lambda one: one.ratio)
    return subject.finding(
        "longest-stall",
        f"Warps stall {share * 100:.0f} % of their cycles on {stall_name(reason)}: {what}",
        remedy,
        [launch.get(f"stall_{reason}", *COUNTERS), launch.get("achieved_occupancy", *COUNTERS)],
        bound_of,
        launch=launch,
    )


def lanes(subject: Subject) -> Iterator[Finding]:
    """The warps' longest losses by their records, where no roof is reached. Bound: 1 / (1 - their share of the time).

    Without a time nobody knows whether a roof is reached: a product that memory limits waits for its tiles, too.
    """
    if not subject.measured or subject.saturation >= bound.AT_ROOF:
        return
    for launch in subject.launches:
        yield from _tiles(subject, launch)
        if (uneven := _value(launch, "lane_imbalance")) >= _UNEVEN:
            title = f"Warps are unbalanced: the busiest group of warps computes {uneven:.1f}× as long as the mean of the groups"
            cure = "Give each group of warps the same part of a tile."
            yield _found(subject, launch, "uneven-warps", title, cure, 1 - 1 / uneven, "lane_imbalance")
        for metric, (rule, title, remedy) in _LOSSES.items():
            share, resident = _value(launch, metric), _value(launch, "lane_programs_per_sm")
            # Another program on the multiprocessor hides an epilogue.
            if share >= SHARE and (resident == 1 or metric != "lane_epilogue_share"):
                alone = ["lane_programs_per_sm"] if metric == "lane_epilogue_share" else []
                yield _found(subject, launch, rule, title.format(f"{share * 100:.0f} %"), remedy, share, metric, *alone)


def _value(launch: LaunchValues, name: str) -> float:
    known = launch.get(name, "lanes")
    return known.value if known else 0.0


def _found(  # noqa: PLR0917 - the parts of a finding
    subject: Subject, launch: LaunchValues, rule: str, title: str, remedy: str, share: float, *metrics: str
) -> Finding:
    values: list[Evidence | None] = [launch.get(name, "lanes") for name in (*metrics, "lanes_slowdown")]
    bounded = subject.bound(1 / (1 - share), "1 / (1 - share of the time)", launch, hides=True) if share < 1 else None
    return subject.finding(rule, title, remedy, values, bounded, launch=launch)


def _tiles(subject: Subject, launch: LaunchValues) -> Iterator[Finding]:
    """Warps wait for the tiles of each step, while few products are in flight."""
    share, flying = _value(launch, "lane_tile_wait_share"), _value(launch, "lane_product_share")
    if share < SHARE or flying >= _BUSY:
        return
    if _value(launch, "lane_barrier_share") > 0 and _value(launch, "lane_load_wait_share") > share / 2:
        yield _found(
            subject, launch, "block-barriers",
            f"A barrier in the loop of products keeps its loads from running ahead: warps wait {share * 100:.0f} % of the loop for them",
            _NO_BARRIER, share, "lane_tile_wait_share", "lane_load_wait_share", "lane_barrier_share",
        )  # fmt: skip
        return
    line, free = _value(launch, "lane_tile_wait_line"), launch.get("lane_free_wait_share", "lanes")
    place = f" at line {line:.0f}" if line else ""
    metrics = ("lane_tile_wait_share", "lane_tile_wait_line", "lane_product_share")
    if free and free.value < SHARE:
        yield _found(
            subject, launch, "starved-products",
            f"Warps with products wait {share * 100:.0f} % of their loop for tiles{place}, and the warps that copy are never ahead",
            "Let the copies run ahead: issue the copies of a step before any other work of the warp that makes them, use larger tiles "
            "or fewer, larger copies, and more places in the ring.",
            share, *metrics, "lane_free_wait_share",
        )  # fmt: skip
        return
    yield _found(
        subject, launch, "shallow-pipeline",
        f"The pipeline is too shallow: warps wait {share * 100:.0f} % of the loop of products for its tiles{place}",
        "Have the tiles of later steps on their way: more num_stages (or places in the ring), with smaller tiles where shared memory "
        "is full.",
        share, *metrics,
    )  # fmt: skip
