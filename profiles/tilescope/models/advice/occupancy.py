"""Rules on the use of SMs: low occupancy, and grids that leave SMs idle. Pure."""

from __future__ import annotations

import math
from collections.abc import Iterator

from tilescope.hardware import occupancy as model
from tilescope.models.advice.finding import Evidence, Finding
from tilescope.models.advice.subject import LaunchValues, Subject
from tilescope.table.sources import COUNTERS
from tilescope.table.units import several

#: Occupancy up to which too little memory latency is hidden.
_LOW = 0.5
#: Share of a roof from which more warps would not help.
_ENOUGH = 0.8
#: Busy share of a grid's waves from which it is no problem.
_FULL = 0.85
_LIMITS = ("registers", "shared_memory", "warps", "blocks", "barriers")


def low_occupancy(subject: Subject) -> Iterator[Finding]:
    """Low occupancy, limited by anything but registers. Bound: warps resident after the change / before.

    By Little's law, memory requests in flight and thus throughput grow at most with the resident warps.
    """
    for launch, limiters, ratio in _low(subject):
        if "registers" not in limiters:
            otherwise = "Ask for less of it in a block: a smaller BLOCK, or fewer num_stages.", 1 / ratio
            remedy, factor = _change(limiters[0], launch, subject.device.target) or otherwise
            yield _held(subject, (launch, limiters, ratio), "low-occupancy", remedy, factor)


def register_pressure(subject: Subject) -> Iterator[Finding]:
    """Low occupancy, limited by registers. Bound: warps resident after the change / before.

    A kernel that spills yields nothing here, because fewer registers would make it worse.
    """
    for launch, limiters, ratio in _low(subject):
        if "registers" in limiters and not _spills(launch):
            said, factor = _change("registers", launch, subject.device.target) or ("", 1 / ratio)
            remedy = (
                f"{said}A thread holds fewer values with a smaller BLOCK or tile, or the same one over more num_warps; "
                "maxnreg at the launch forces the count down, at the price of spills."
            )
            yield _held(subject, (launch, ["registers"], ratio), "register-pressure", remedy, factor)


def _held(
    subject: Subject, low: tuple[LaunchValues, list[str], float], rule: str, remedy: str, factor: float
) -> Finding:
    """The finding of a launch with few resident warps: its limiters, the first of which the remedy is about, and its occupancy."""
    launch, limiters, ratio = low
    limiter, limit = limiters[0], " and ".join(limiters).replace("_", " ").replace("blocks", "block slots").capitalize()
    own = {"registers": "registers", "shared_memory": "shared_memory"}.get(limiter, "block_threads")
    names = ("theoretical_occupancy", f"occupancy_limit_{limiter}", own, "achieved_occupancy")
    return subject.finding(
        rule,
        f"{limit} hold occupancy at {ratio * 100:.0f} %",
        remedy,
        [launch.get(name) for name in names],
        subject.bound(factor, "resident warps after / before", launch, hides=True),
        launch=launch,
    )


def partial_waves(subject: Subject) -> Iterator[Finding]:
    """SMs that idle while the last blocks run. Bound: waves rounded up / waves.

    A wave is one block in every slot of the chip. Below one wave the bound is the busiest SM's blocks over the average.
    """
    if subject.saturation >= _ENOUGH:
        return
    for launch in subject.launches:
        grid, slots, chip = launch.get("grid_blocks"), _least(launch), subject.device.multiprocessors
        if not (grid and slots and chip) or slots.value <= 0 or grid.value <= 0:
            continue
        each = grid.value / chip
        waves = each / slots.value
        busy = waves / math.ceil(waves) if waves > 1 else each / math.ceil(each)
        if busy >= _FULL:
            continue
        if each < 1:
            title = f"{several(grid.value, 'block leaves', 'blocks leave')} {chip - grid.value:,.0f} of {chip} SMs idle"
            remedy = (
                "Make more programs: a smaller BLOCK, or several programs for one row or tile (split-K, or partial sums "
                "that a second kernel adds)."
            )
        else:
            blocks = f"{waves:.2f} waves of blocks" if waves > 1 else f"{grid.value:,.0f} blocks for {chip} SMs"
            title = f"{blocks}: the SMs are busy {busy * 100:.0f} % of the time"
            remedy = (
                "Even the last wave out: a BLOCK that gives a whole number of waves, or a persistent kernel, whose "
                "grid is the SMs times the blocks that fit and whose programs loop over the work."
            )
        formula = "waves rounded up / waves" if waves > 1 else "most blocks of an SM / average"
        bound = subject.bound(1 / busy, formula, launch, hides=True)
        yield subject.finding(
            "partial-waves", title, remedy, [grid, slots, launch.get("waves", *COUNTERS)], bound, launch=launch
        )


def _low(subject: Subject) -> Iterator[tuple[LaunchValues, list[str], float]]:
    """Launches with too few warps to hide latency, with their limiters and their occupancy."""
    if subject.saturation >= _ENOUGH or subject.row["bound"] in ("", "compute"):
        return
    for launch in subject.launches:
        ratio, slots, grid = launch.get("theoretical_occupancy"), _least(launch), launch.get("grid_blocks")
        tensor = launch.get("tensor_instructions", "compiler")
        if tensor and tensor.value:
            continue  # Tiles of tl.dot hide latency by asynchronous copies, not by many warps.
        if not (ratio and slots and grid) or ratio.value <= 0 or ratio.value > _LOW:
            continue
        if grid.value < slots.value * subject.device.multiprocessors:
            continue  # The grid does not fill the present slots: partial_waves reports it.
        limits = {name: launch.get(f"occupancy_limit_{name}", slots.source) for name in _LIMITS}
        yield launch, [n for n, limit in limits.items() if limit and limit.value == slots.value], ratio.value


def _spills(launch: LaunchValues) -> bool:
    names = ("spill_bytes_stored", "spill_bytes_loaded", "spill_stores", "spill_loads")
    return any(value.value > 0 for name in names if (value := launch.get(name)))


def _least(launch: LaunchValues) -> Evidence | None:
    for source in ("ncu", "compiler"):
        limits = [limit for name in _LIMITS if (limit := launch.get(f"occupancy_limit_{name}", source))]
        if limits:
            return min(limits, key=lambda limit: limit.value)
    return None


def _change(limiter: str, launch: LaunchValues, target: str) -> tuple[str, float] | None:
    """The smallest change that raises this limit, as a sentence, and the growth of resident warps as a ratio.

    None where the launch's resources are not known, nothing fits, or no such change helps.
    """
    found = [launch.get(name) for name in ("registers", "shared_memory", "block_threads")]
    registers, shared, threads = (int(value.value) if value else 0 for value in found)
    if not all(found) or target.rstrip("af") not in model.LIMITS:
        return None
    now = then = model.blocks(target, registers, shared, threads)
    if not now.blocks:
        return None
    if limiter == "registers":
        fewer = registers
        while then.blocks == now.blocks and fewer > 16:
            fewer -= 1
            then = model.blocks(target, fewer, shared, threads)
        said = f"With {fewer} registers a thread instead of {registers} {_fit(then, now)}. "
    elif limiter == "shared_memory":
        room = model.limits(target).shared_memory // (now.blocks + 1) // model.SHARED_STEP * model.SHARED_STEP
        less = room - model.SHARED_RESERVED
        then = model.blocks(target, registers, less, threads)
        said = (
            f"With {less:,} bytes of shared memory a block instead of {shared:,} {_fit(then, now)}: fewer num_stages, "
            "or a smaller BLOCK."
        )
    else:
        then = model.blocks(target, registers, shared, 2 * threads)
        warps = threads // model.WARP_THREADS
        said = (
            f"With num_warps={2 * warps} instead of {warps} (and the registers of a thread as they are) "
            f"{_fit(then, now)}."
        )
    return (said, then.ratio / now.ratio) if then.ratio > now.ratio else None


def _fit(then: model.Occupancy, now: model.Occupancy) -> str:
    return (
        f"an SM holds {several(then.blocks, 'block')} instead of {now.blocks} "
        f"({then.ratio * 100:.0f} % occupancy instead of {now.ratio * 100:.0f} %)"
    )
