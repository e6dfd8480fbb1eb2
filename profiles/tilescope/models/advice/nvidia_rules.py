"""NVIDIA's own advice: the rules of Nsight Compute's details page, read and turned into findings beside ours.

The table of a run holds numbers only, so the rules of a case are an artefact, one JSON file a case, which
``collectors/ncu_rules.py`` writes. Pure but for reading and writing those files.
"""

from __future__ import annotations

import dataclasses
import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from tilescope.collectors.ncu import ncu_csv
from tilescope.files import bounded_reading, json_shape
from tilescope.models.advice.finding import NVIDIA, Bound, Finding
from tilescope.table.case import Case

#: Kinds of rule that ask for a change; ``INF`` only explains.
_ASKING = ("OPT", "WRN")
#: An estimate for the whole launch; a ``local`` one is for the part that the rule looks at.
GLOBAL = "global"


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


def read(text: str) -> list[NcuRule]:
    """The rules of a details page (``--page details --csv``), in ncu's order. Raises NcuFormatError without one."""
    table = ncu_csv.read_details(text).fillna("")
    rules = []
    for row in table[table["Rule Name"] != ""].to_dict("records"):
        percent = ncu_csv.number(row["Estimated Speedup"])
        rules.append(
            NcuRule(
                launch=int(row["ID"]),
                function=row["Kernel Name"],
                section=row["Section Name"],
                name=row["Rule Name"],
                kind=row["Rule Type"],
                text=row["Rule Description"],
                speedup=None if percent is None else percent / 100,
                scope=row["Estimated Speedup Type"],
            )
        )
    return rules


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


def of_run(folder: Path) -> list[Finding]:
    """What NVIDIA's rules found in a run, those with most to win first; empty where they were not collected."""
    found = []
    paths = sorted((folder / "artefacts" / "ncu_rules").glob("*.json"))
    for path in (path for path in paths if bounded_reading.is_inside(path, folder)):
        case, rules = load(path)
        found += list(findings(case, rules))
    return sorted(found, key=lambda f: -f.bound.ratio if f.bound else 0.0)


def findings(case: Case, rules: list[NcuRule]) -> Iterator[Finding]:
    """Rules that ask for a change, as findings. The bound is ncu's: 1 / (1 - share of the run time it would save)."""
    for rule in rules:
        if rule.kind not in _ASKING:
            continue
        bound, part = None, ""
        if rule.speedup is not None and rule.scope == GLOBAL and rule.speedup < 1:
            bound = Bound(1 / (1 - rule.speedup), f"ncu estimates {rule.speedup * 100:.3g} % of the launch's run time")
        elif rule.speedup is not None:
            part = f" (ncu estimates {rule.speedup * 100:.3g} % of this part alone)"
        yield Finding(
            rule=rule.name,
            title=_words(rule.name) + part,
            remedy=rule.text,
            kernel=case.name,
            direction=case.direction,
            workload=case.workload,
            impl=case.impl,
            config=case.config,
            evidence=(),
            bound=bound,
            launch=rule.launch,
            function=rule.function,
            origin=NVIDIA,
        )


def _words(name: str) -> str:
    """``MemoryL2Compression`` to ``Memory L2 compression``, ``SOLBottleneck`` to ``SOL bottleneck``."""
    parts = re.findall(r"[A-Z0-9]+(?=[A-Z][a-z]|$)|[A-Z]?[a-z]+|[A-Z0-9]+", name)
    return " ".join(part if not place or part.isupper() else part.lower() for place, part in enumerate(parts))
