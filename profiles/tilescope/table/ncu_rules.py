"""What NVIDIA's rules said of a case: one JSON file, for a rule is text and the table has none."""

from __future__ import annotations

import dataclasses
import json
from dataclasses import dataclass
from pathlib import Path

from tilescope.files import bounded_reading, json_shape
from tilescope.table.case import Case


@dataclass(frozen=True)
class NcuRule:
    """What one rule says about one launch.

    ``launch`` is ncu's number for it, ``kind`` ncu's: ``OPT`` (an optimisation), ``WRN`` or ``INF``. ``speedup`` is the
    share of the run time (0 to 1) that ncu estimates could be saved, of the launch where ``scope`` is ``global`` and of
    the part concerned where it is ``local``; None where ncu estimates nothing.
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
    """The artefact of one case. Launches are numbered from 0 within it."""
    numbers = {launch: place for place, launch in enumerate(dict.fromkeys(rule.launch for rule in rules))}
    own = [dataclasses.asdict(dataclasses.replace(rule, launch=numbers[rule.launch])) for rule in rules]
    path.write_text(json.dumps({"case": case.to_json(), "rules": own}), encoding="utf-8")


def load(path: Path) -> tuple[Case, list[NcuRule]]:
    """The case of an artefact and its rules. Raises ValueError when it is damaged."""
    try:
        data = bounded_reading.data_of(path)
        case: Case = json_shape.fit(data["case"], Case, "case")
        rules: list[NcuRule] = json_shape.fit(data["rules"], list[NcuRule], "rules")
        return case, rules
    except (LookupError, TypeError, ValueError) as error:
        raise ValueError(f"{path.name} is no file of ncu's rules: collect them again") from error
