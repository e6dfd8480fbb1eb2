"""NVIDIA's rules, from the details page of the Nsight Compute CLI, as a JSON file for each case.

Not part of ``auto``: the rules' sections take two to three times the passes of ``ncu``'s counters. The worker and its ranges are
those of the ``ncu`` collector. Rules are text, so the table gets no rows.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import pandas as pd

from tilescope.collectors.ncu import counters, ncu_csv
from tilescope.collectors.ncu.counters import capture, environment, explain, unavailable  # noqa: F401 - as in ``ncu``
from tilescope.files import bounded_reading, json_shape
from tilescope.table import schema
from tilescope.table.case import Case

SUFFIX = ".json"

#: Sections whose metrics the rules read (Nsight Compute, Profiling Guide, "Sections and Rules").
SECTIONS = (
    "SpeedOfLight", "SpeedOfLight_RooflineChart", "ComputeWorkloadAnalysis", "MemoryWorkloadAnalysis",
    "MemoryWorkloadAnalysis_Chart", "MemoryWorkloadAnalysis_Tables", "SchedulerStats", "WarpStateStats",
    "InstructionStats", "LaunchStats", "Occupancy", "SourceCounters",
)  # fmt: skip


def command(argv: Sequence[str], folder: Path) -> list[str]:
    """The worker's command line under ncu. Clocks, caches and ranges as in ``ncu``. Raises NcuError where there is no ncu."""
    asked = (part for section in SECTIONS for part in ("--section", section))
    return counters.wrapped(argv, folder, "details", *asked, "--apply-rules", "yes")


def finish(folder: Path, cases: Sequence[Case]) -> None:
    """Divides ncu's log into a JSON file for each case, and removes the log.

    A case without launches gets no artefact; one without findings gets an empty list. Raises NcuError, with the cure, where nothing
    was profiled.
    """
    text = counters.take_log(folder)
    try:
        details = ncu_csv.read_details(text)
    except ncu_csv.NcuFormatError as error:
        if cases:
            raise counters.NcuError(counters.explain(text) or "ncu printed neither rules nor a reason") from error
        return
    rules = read(text)
    for case, own in launches(details, cases).items():
        write_case(folder / (case.slug + SUFFIX), case, [rule for rule in rules if rule.launch in own])


def read(text: str) -> list[NcuRule]:
    """The rules of a details page (``--page details --csv``), in ncu's order. Raises NcuFormatError for another text."""
    rules = []
    for row in ncu_csv.read_details(text):
        if not row.get("Rule Name"):
            continue
        percent = ncu_csv.number(row.get("Estimated Speedup", ""))
        rules.append(
            NcuRule(
                launch=int(row["ID"]),
                function=row["Kernel Name"],
                section=row["Section Name"],
                name=row["Rule Name"],
                kind=row.get("Rule Type", ""),
                text=row.get("Rule Description", ""),
                speedup=None if percent is None else percent / 100,
                scope=row.get("Estimated Speedup Type", ""),
            )
        )
    return rules


def launches(details: Sequence[Mapping[str, str]], cases: Sequence[Case]) -> dict[Case, set[int]]:
    """ncu's numbers of each case's launches, from a details page."""
    found = counters.rows_of(details, cases)
    return {case: {int(details[place]["ID"]) for place in own} for case, own in found.items()}


@bounded_reading.parser
def parse(artefact: Path, case: Case) -> pd.DataFrame:
    """No rows, as rules are text. Reads the artefact all the same. Raises ValueError for a damaged one."""
    load_case(artefact)
    return schema.frame([])


@dataclass(frozen=True)
class NcuRule:
    """One rule's finding for one launch.

    ``launch`` is ncu's number of the launch. ``kind`` is ``OPT`` (an optimisation), ``WRN`` or ``INF``. ``speedup`` is the
    share of the run time (0 to 1) that ncu estimates could be saved: of the launch if ``scope`` is ``global``, of the part
    concerned if it is ``local``. None without an estimate.
    """

    launch: int
    function: str
    section: str
    name: str
    kind: str
    text: str
    speedup: float | None = None
    scope: str = ""


def write_case(path: Path, case: Case, rules: list[NcuRule]) -> None:
    """Writes the artefact of one case. Its launches are numbered from 0."""
    numbers = {launch: place for place, launch in enumerate(dict.fromkeys(rule.launch for rule in rules))}
    own = [dataclasses.asdict(dataclasses.replace(rule, launch=numbers[rule.launch])) for rule in rules]
    path.write_text(json.dumps({"case": case.to_json(), "rules": own}), encoding="utf-8")


def load_case(path: Path) -> tuple[Case, list[NcuRule]]:
    """Reads the case and the rules of an artefact. Raises ValueError for a damaged one."""
    try:
        data = bounded_reading.data_of(path)
        return json_shape.fit(data["case"], Case, "case"), json_shape.fit(data["rules"], list[NcuRule], "rules")
    except (LookupError, TypeError, ValueError) as error:
        raise ValueError(f"{path.name} is no file of ncu's rules: collect them again") from error
