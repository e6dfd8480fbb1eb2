"""The rule on warp stalls. Pure.

Reasons have ncu's names (Nsight Compute, Kernel Profiling Guide, "Warp Stall Reasons").
"""

from __future__ import annotations

from collections.abc import Iterator

from tilescope.models import bound
from tilescope.models.advice import compute
from tilescope.models.advice.finding import Finding
from tilescope.models.advice.subject import LaunchValues, Subject
from tilescope.table.metrics import METRICS, stall_name
from tilescope.table.sources import COUNTERS

#: The least share of a warp's cycles of a reason that makes a finding.
SHARE = 0.25
#: Stalls that bank conflicts cause, and the least ratio of the conflicts' share of the cycles to the stall's for that.
_SHARED_MEMORY, _CAUSED = ("short_scoreboard", "mio_throttle"), 0.5
#: The remedy for barriers on tensor cores: all warps of a block compute tl.dot's tiles together, so fewer of them do not help.
_PRODUCTS = (
    "The warps of a block meet after each tile: have the next tile loaded by then (more num_stages, or warps "
    "specialized in loading), and keep what lies between two tl.dot short. Try other tiles and num_warps in a sweep."
)
_REASONS = tuple(name.removeprefix("stall_") for name in METRICS if name.startswith("stall_"))


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
