"""Findings of NVIDIA's rules for a case, kept as JSON because the table holds no text."""

from __future__ import annotations

import dataclasses
import json
from dataclasses import dataclass
from pathlib import Path

from tilescope.files import bounded_reading, json_shape
from tilescope.table.case import Case


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


def write(path: Path, case: Case, rules: list[NcuRule]) -> None:
    """Writes the artefact of one case. Its launches are numbered from 0."""
    numbers = {launch: place for place, launch in enumerate(dict.fromkeys(rule.launch for rule in rules))}
    own = [dataclasses.asdict(dataclasses.replace(rule, launch=numbers[rule.launch])) for rule in rules]
    path.write_text(json.dumps({"case": case.to_json(), "rules": own}), encoding="utf-8")


def load(path: Path) -> tuple[Case, list[NcuRule]]:
    """Reads the case and the rules of an artefact. Raises ValueError for a damaged one."""
    try:
        data = bounded_reading.data_of(path)
        return json_shape.fit(data["case"], Case, "case"), json_shape.fit(data["rules"], list[NcuRule], "rules")
    except (LookupError, TypeError, ValueError) as error:
        raise ValueError(f"{path.name} is no file of ncu's rules: collect them again") from error
