"""Estimated bytes and operations of launches of which only a sample of programs was interpreted. Pure."""

from __future__ import annotations

from typing import NamedTuple

from tilescope.table.case_table import CaseValues, value_of

_SOURCE = "interpreter"


class Sampled(NamedTuple):
    """Estimated bytes and operations; ``counted`` of the ``programs`` were interpreted, NaN where a run does not record it."""

    read: float
    written: float
    flops: float
    counted: float
    programs: float


def of_launch(case: CaseValues, launch: int) -> Sampled | None:
    """The launch's estimate; None where all of its programs were interpreted, or none."""
    names = ("sampled_bytes_read", "sampled_bytes_written", "sampled_flops", "sampled_programs", "programs")
    found = [case.at(name, launch, _SOURCE) for name in names]
    return Sampled(*map(value_of, found)) if all(found[:3]) else None


def of_case(case: CaseValues) -> Sampled | None:
    """The sum over launches, with exact values where they are known; None where no launch is sampled, or one is unknown."""
    parts: list[Sampled] = []
    any_sampled = False
    for launch in case.launches(_SOURCE):
        found = of_launch(case, launch)
        any_sampled = any_sampled or found is not None
        exact = [case.at(f"requested_{name}", launch, _SOURCE) for name in ("bytes_read", "bytes_written", "flops")]
        known = [value.value for value in exact if value]
        if found is None and len(known) < len(exact):
            return None
        parts.append(found or Sampled(known[0], known[1], known[2], 0.0, 0.0))
    return Sampled(*(sum(values) for values in zip(*parts, strict=True))) if any_sampled else None
