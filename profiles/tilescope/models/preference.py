"""The preferred source of a launch's resources, for the terminal, the app, reports and notebooks. Pure.

Measured values come before predicted ones. A case's resources are all from one source, because registers of one with the
occupancy of another would describe no real launch.
"""

from __future__ import annotations

from dataclasses import dataclass

from tilescope.hardware import occupancy
from tilescope.table.case_table import CaseValues

#: Sources of a launch's resources, the most direct one first.
RESOURCES = ("ncu", "torch_profiler", "chrome_trace", "compiler", "tritonparse")

#: Metrics that limit the blocks on a multiprocessor, and each limit's common name.
LIMITERS = {
    "occupancy_limit_registers": "registers",
    "occupancy_limit_shared_memory": "shared memory",
    "occupancy_limit_warps": "warps",
    "occupancy_limit_blocks": "block slots",
    "occupancy_limit_barriers": "barriers",
}

#: Metrics by which a source is chosen, the most important first.
_TELLING = ("registers", "theoretical_occupancy", *LIMITERS, "shared_memory")


@dataclass(frozen=True)
class Resources:
    """One launch's use of a multiprocessor; None for an unknown value.

    All values are from ``source``, which numbers the launch ``launch``, except ``spill_bytes``, which is the compiler's if it
    compiled the code that ran. ``blocks`` is the least of the limits, ``limiter`` its name.
    """

    source: str
    launch: int
    registers: float | None
    shared_memory: float | None
    spill_bytes: float | None
    theoretical_occupancy: float | None
    limiter: str
    blocks: float | None


def source_of(case: CaseValues) -> str | None:
    """The preferred source of the case's resources; None where no source has them."""
    return next((by for metric in _TELLING for by in RESOURCES if case.values.get((metric, by))), None)


def main_resources(case: CaseValues, target: str = "") -> Resources | None:
    """The resources of the longest launch, which represents the case.

    torch.profiler gives no occupancy; where ``target`` (``sm_90``) is given, it is computed from registers, shared memory and threads.
    """
    source = source_of(case)
    if source is None:
        return None
    told = {n for metric in _TELLING for n in case.values.get((metric, source), ()) if n is not None}
    if not told:
        return None
    longest = case.main_launch(source)
    launch = longest if longest in told else min(told)

    def value(metric: str) -> float | None:
        return case.values.get((metric, source), {}).get(launch)

    registers, shared_memory, ratio, threads = map(
        value, ("registers", "shared_memory", "theoretical_occupancy", "block_threads")
    )
    known = {text: limit for metric, text in LIMITERS.items() if (limit := value(metric)) is not None}
    if ratio is None and registers is not None and threads and target.rstrip("af") in occupancy.LIMITS:
        held = occupancy.blocks(target, int(registers), int(shared_memory or 0), int(threads))
        ratio = held.ratio
        known = {LIMITERS[f"occupancy_limit_{name}"]: float(count) for name, count in held.limits.items()}
    blocks = min(known.values(), default=None)
    limiter = ", ".join(text for text, limit in known.items() if limit == blocks)
    spilled = _spills(case, source, launch, registers)
    return Resources(source, launch, registers, shared_memory, spilled, ratio, limiter, blocks)


def _spills(case: CaseValues, source: str, launch: int, registers: float | None) -> float | None:
    """Bytes that the launch's code spills, from the compiler; None where the compiler compiled other code.

    The compiler's launch is the one at the same place among launches of its function. If its registers differ, an autotuner ran
    another config than the compiler compiled.
    """
    place = launch if source == "compiler" else _compiled(case, source, launch)
    if place is None:
        return None
    compiled, *spilled = (
        case.at(metric, place, "compiler") for metric in ("registers", "spill_bytes_stored", "spill_bytes_loaded")
    )
    if compiled is None or compiled.value != registers or None in spilled:
        return None
    return sum(known.value for known in spilled if known)


def _compiled(case: CaseValues, source: str, launch: int) -> int | None:
    """The compiler's number of the launch with this number in another source."""
    ours, theirs = case.functions.get(source, {}), case.functions.get("compiler", {})
    if len(ours) == len(theirs):
        return launch
    name = ours.get(launch, "")
    place = sum(n < launch and ours[n] == name for n in ours)
    alike = sorted(n for n, function in theirs.items() if function == name)
    return alike[place] if place < len(alike) else None
