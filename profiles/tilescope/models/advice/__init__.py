"""Advice: why a kernel is slow, the values that show it, the potential speedup, and the remedy.

Pure: frame -> findings. A rule is a function in RULES that takes a ``Subject`` and yields ``Finding``s. It yields none where its
counters are absent. With compiler and interpreter alone the findings are predictions. A case with a fault (``faults``) has the
finding on that and no others. A case with impossible measurements has findings on these (``impossible.RULES``) and no others.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping

import pandas as pd

from tilescope.models import faults, impossible, summary
from tilescope.models.advice import calls, compute, memory, occupancy, waits
from tilescope.models.advice.distance import distance
from tilescope.models.advice.finding import DISTANCE, NVIDIA, OURS, WARNING, WORTH, Bound, Evidence, Finding, rank
from tilescope.models.advice.subject import Subject, evidence, launches, two_passes
from tilescope.runs.store import LoadedRun
from tilescope.table import kernel_faults
from tilescope.table.case_table import CaseValues, gather, problem_of
from tilescope.table.run import Device, Failure
from tilescope.table.schema import NAMED, named

__all__ = ["DISTANCE", "NVIDIA", "OURS", "RULES", "Bound", "Evidence", "Finding", "findings", "of_run", "rank"]

Rule = Callable[[Subject], Iterator[Finding]]

#: Every rule, by subject.
RULES: tuple[Rule, ...] = (
    memory.extra_bytes, memory.repeated_requests, memory.uncoalesced, memory.narrow_loads, memory.spills, memory.at_the_roof,
    occupancy.low_occupancy, occupancy.register_pressure, occupancy.partial_waves,
    compute.no_tensor_cores, compute.at_the_rate, compute.serialized_products, compute.bank_conflicts,
    calls.launch_bound, calls.late_cpu, waits.longest_stall, waits.lanes, calls.quicker_config,
)  # fmt: skip

#: Rules on the call as a whole. Only these apply where launches are so short that their code does not matter.
_OF_CALLS: tuple[Rule, ...] = (calls.launch_bound, calls.late_cpu, calls.quicker_config)

#: The least share of a case's time of a launch that rules look at.
_SHARE = 0.1


def of_run(loaded: LoadedRun, table: pd.DataFrame, rows: pd.DataFrame | None = None) -> list[Finding]:
    """``findings`` about the cases of ``table``, which is the run's or a part of it."""
    run = loaded.run
    return findings(table, run.device, run.kernels, loaded.table, run.failures, warnings=run.warnings, rows=rows)


def findings(
    table: pd.DataFrame,
    device: Device,
    kernels: Mapping[str, Mapping[str, object]] | None = None,
    beside: pd.DataFrame | None = None,
    failures: Iterable[Failure] = (),
    *,
    warnings: Iterable[Failure] = (),
    rows: pd.DataFrame | None = None,
) -> list[Finding]:
    """Findings of all rules about every case of the table: faults, then impossible measurements, then by potential speedup.

    Each other measured case has one finding about its distance from the roof (``DISTANCE``, the last), or one about being at its
    roof. ``kernels`` is ``Run.kernels``. A sweep's configs are compared with each other, so the table needs all of a problem.
    ``beside`` has all rows of these kernels if the table has only some, because other implementations show whether a computation
    needs two passes. ``failures`` are the run's: a failed case without any row has its finding too. So are
    ``warnings`` of what the code probably does not mean to do. ``rows`` are ``summary.summarise``'s of the table, where they are known.
    """
    swept: dict[tuple[str, ...], list[CaseValues]] = {}
    for case in gather(table):
        if case.key["config"]:
            swept.setdefault((*problem_of(case), case.key["impl"]), []).append(case)
    twice = two_passes(gather(table if beside is None else beside))
    headlines = (summary.summarise(table, device, kernels) if rows is None else rows).to_dict("records")
    known, doubts = faults.Faults(failures), faults.Faults(warnings)
    found = list(_without_rows(failures, table if beside is None else beside))
    for case, row in zip(gather(table), headlines, strict=True):
        if fault := known.of(case):
            found.append(_of_fault(case.key, fault))
            continue
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
        of_case = [one for one in made if one.bound is None or one.bound.timed or one.bound.ratio >= WORTH]
        found += [*warned(subject, doubts.told(case)), *of_case, *distance(subject, of_case)]
    return sorted(found, key=rank)


def _without_rows(failures: Iterable[Failure], table: pd.DataFrame) -> Iterator[Finding]:
    told = list(faults.of_failures(failures))
    seen = set(named(table)) if told else set()
    for key, fault in told:
        if tuple(key[name] for name in NAMED) not in seen:
            yield _of_fault(key, fault)


def _of_fault(key: Mapping[str, str], fault: faults.Fault) -> Finding:
    kernel, impl, direction, workload, config = (key[name] for name in NAMED)
    proof = tuple(evidence(name, known) for name, known in fault.proof)
    return Finding(
        fault.rule, fault.title, fault.remedy, kernel, impl, direction, workload, config, proof, explanation=fault.why
    )


def warned(subject: Subject, warnings: Iterable[Failure]) -> Iterator[Finding]:
    """A finding for each of the case's warnings. It has no bound: the result may be another than meant."""
    for message in dict.fromkeys(warning.message for warning in warnings):
        told = kernel_faults.read(message)
        title = f"{told.function}, line {told.line}: {told.what}" if told else message
        remedy = told.remedy if told else "decide whether that is meant"
        yield subject.finding(WARNING, title, f"{remedy[:1].upper()}{remedy[1:]}.", [])


def cannot_be(subject: Subject) -> Iterator[Finding]:
    """A finding, without a bound, for each reason why the case's measurements are impossible."""
    for reason in impossible.reasons(subject.case, subject.device, str(subject.row["pipe"])):
        values = [evidence(name, known) for name, known in reason.proof]
        yield subject.finding(reason.rule, f"Impossible: {reason.said}", reason.remedy, values)
