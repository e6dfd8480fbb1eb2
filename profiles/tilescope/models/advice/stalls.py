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
#: Remedies by what a warp waits for (``bound.WAITS``).
_REMEDIES = {
    "long_scoreboard": (
        "Have more loads in flight: more num_stages in a loop that loads, more warps (num_warps, or a smaller BLOCK "
        "that lets more blocks fit), or all loads of an iteration before the first use."
    ),
    "short_scoreboard": (
        "Exchange less between threads: fewer tl.trans, tl.sum across warps and layout changes, and cheaper functions "
        "(tl.exp2 for tl.exp, with log2(e) folded into a factor)."
    ),
    "barrier": (
        "Make the block smaller: fewer num_warps, so that a reduction stays in one warp, or combine several reductions "
        "into one."
    ),
    "lg_throttle": "Issue fewer and wider loads: 16 bytes a thread, and none of what is loaded already.",
    "mio_throttle": "Issue fewer shared-memory instructions: larger tiles, wider accesses, fewer reductions.",
    "math_pipe_throttle": "Do less arithmetic: hoist what does not change out of the loop, and use tl.dot for products.",
    "gmma": "Larger tiles, or more num_stages, keep the tensor cores fed.",
    "wait": "Give each thread more independent work: a larger BLOCK a warp, or an unrolled loop (tl.static_range).",
    "not_selected": (
        "Instruction issue is the limit, and more warps do not help: execute fewer instructions a byte (wider "
        "accesses, what does not change hoisted out of the loop, a cheaper formula)."
    ),
    "drain": "Store less at the end of a program, or make fewer, longer programs.",
    "membar": "Use fewer atomics and fences: relaxed ones (sem='relaxed'), or partial sums.",
    "no_instruction": "Make the code shorter: unroll less (tl.range for tl.static_range), smaller tiles.",
    "imc_miss": "Very short programs wait for their arguments: more work a program.",
    "branch_resolving": "Replace branches by masks (tl.where), or decide with tl.constexpr.",
    "sleeping": "Spin less: a lock or a flag makes warps wait for another program.",
}  # fmt: skip
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
    known = sorted(_REMEDIES.keys() & found.keys(), key=lambda reason: (-found[reason], reason))
    return {reason: found[reason] / cycles for reason in known} if cycles else {}


def _stalled(subject: Subject, launch: LaunchValues, reason: str, share: float) -> Finding:
    remedy = _REMEDIES[reason]
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
        f"Warps stall {share * 100:.0f} % of their cycles on {stall_name(reason)}: {bound.WAITS[reason]}",
        remedy,
        [launch.get(f"stall_{reason}", *COUNTERS), launch.get("achieved_occupancy", *COUNTERS)],
        bound_of,
        launch=launch,
    )
