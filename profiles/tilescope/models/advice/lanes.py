"""Rules on lanes: what a program's warps wait for. Pure."""

from __future__ import annotations

from collections.abc import Iterator

from tilescope.models import bound
from tilescope.models.advice.finding import Evidence, Finding
from tilescope.models.advice.subject import LaunchValues, Subject

#: The least share of time that makes a finding.
SHARE = 0.25
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


def waits(subject: Subject) -> Iterator[Finding]:
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
