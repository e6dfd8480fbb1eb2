"""Advice: why a kernel is slow, the values that show it, the potential speedup, and the remedy.

Pure: frame -> findings. A rule is a function in RULES that takes a ``Subject`` and yields ``Finding``s. It yields none where its
counters are absent. With compiler and interpreter alone the findings are predictions. A case with impossible measurements has
findings on these (``impossible.RULES``) and no others. A case with wrong results has the finding on that first.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

import pandas as pd

from tilescope.models import summary
from tilescope.models.advice import compute, configs, latency, memory, occupancy, stalls
from tilescope.models.advice.distance import distance
from tilescope.models.advice.finding import DISTANCE, NVIDIA, OURS, WRONG, Bound, Evidence, Finding, rank
from tilescope.models.advice.measurement import cannot_be, wrong_result
from tilescope.models.advice.passes import two_passes
from tilescope.models.advice.subject import Subject, launches
from tilescope.table.case_table import CaseValues, gather, problem_of
from tilescope.table.run import Device

__all__ = ["DISTANCE", "NVIDIA", "OURS", "RULES", "WRONG", "Bound", "Evidence", "Finding", "findings", "rank"]

Rule = Callable[[Subject], Iterator[Finding]]

#: Every rule, by subject.
RULES: tuple[Rule, ...] = (
    memory.extra_bytes, memory.repeated_requests, memory.uncoalesced, memory.narrow_loads, memory.spills, memory.at_the_roof,
    occupancy.low_occupancy, occupancy.register_pressure, occupancy.partial_waves,
    compute.no_tensor_cores, compute.at_the_rate, compute.serialized_products, compute.bank_conflicts,
    latency.launch_bound, latency.late_cpu, stalls.longest_stall, configs.quicker_config,
)  # fmt: skip

#: Rules on the call as a whole. Only these apply where launches are so short that their code does not matter.
_OF_CALLS: tuple[Rule, ...] = (latency.launch_bound, latency.late_cpu, configs.quicker_config)

#: The least potential speedup of a finding, unless its remedy was timed.
_WORTH = 1.05
#: The least share of a case's time of a launch that rules look at.
_SHARE = 0.1


def findings(
    table: pd.DataFrame,
    device: Device,
    kernels: Mapping[str, Mapping[str, object]] | None = None,
    beside: pd.DataFrame | None = None,
) -> list[Finding]:
    """Findings of all rules about every case of the table: impossible measurements first, then by potential speedup.

    Each other measured case has one finding about its distance from the roof (``DISTANCE``, the last), or one about being at its
    roof. ``kernels`` is ``Run.kernels``. A sweep's configs are compared with each other, so the table needs all of a problem.
    ``beside`` has all rows of these kernels if the table has only some, because other implementations show whether a computation
    needs two passes.
    """
    swept: dict[tuple[str, ...], list[CaseValues]] = {}
    for case in gather(table):
        if case.key["config"]:
            swept.setdefault((*problem_of(case), case.key["impl"]), []).append(case)
    twice = two_passes(gather(table if beside is None else beside))
    headlines = summary.summarise(table, device, kernels).to_dict("records")
    found: list[Finding] = []
    for case, row in zip(gather(table), headlines, strict=True):
        worth = tuple(
            launch for launch in launches(case) if launch.triton and (launch.share is None or launch.share >= _SHARE)
        )
        others = tuple(swept.get((*problem_of(case), case.key["impl"]), ()))
        passes = (case.key["kernel"], case.key["pass"]) in twice
        subject = Subject(case, {str(name): value for name, value in row.items()}, device, worth, others, passes)
        if wrong := list(cannot_be(subject)):
            found += wrong
            continue
        rules = _OF_CALLS if subject.launch_bound else RULES
        made = [finding for rule in rules for finding in rule(subject)]
        of_case = [one for one in made if one.bound is None or one.bound.timed or one.bound.ratio >= _WORTH]
        found += [*wrong_result(subject), *of_case, *distance(subject, of_case)]
    return sorted(found, key=rank)
