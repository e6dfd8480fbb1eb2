"""What commands print as JSON: documents whose form a JSON Schema of ``schemas/`` describes, for other programs to rely on.

Every document names its ``schema`` (a file of ``schemas/``) and that schema's ``version``, and the Tilescope that wrote it.
Within a version fields may be added; one that goes, or changes its meaning, is a new version. Values are in base SI units;
what is not known is null, never 0. Pure.
"""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Iterable, Mapping, Sequence
from importlib import resources
from typing import Any

import pandas as pd

from tilescope.models import compare, impossible, summary, verdicts
from tilescope.models.advice import Finding
from tilescope.models.gate import KEY, Gate
from tilescope.runs.store import LoadedRun, Summary
from tilescope.table.case_table import gather
from tilescope.version import VERSION

#: Each schema's version today.
VERSIONS = {"advice": 1, "comparison": 1, "gate": 1, "run": 1, "runs": 1}
#: What a document says of a case beside its findings, from ``summary.summarise``.
_OF_CASE = (
    "kernel", "impl", "pass", "workload", "config", "measured", "gpu_time", "gpu_time_low", "gpu_time_high",
    "time_source", "interval", "graph_time", "floor", "floor_fraction", "roof", "bound", "why",
)  # fmt: skip


def schema(name: str) -> Mapping[str, Any]:
    """The JSON Schema of that name (draft 2020-12), one of VERSIONS."""
    text = resources.files("tilescope.models").joinpath("schemas", f"{name}.json").read_text(encoding="utf-8")
    found: Mapping[str, Any] = json.loads(text)
    return found


def text(document: Mapping[str, Any]) -> str:
    """The document as JSON. Raises ValueError for a number that JSON does not have."""
    return json.dumps(document, allow_nan=False)


def advice(loaded: LoadedRun, table: pd.DataFrame, findings: Iterable[Finding]) -> dict[str, Any]:
    """Findings about the cases of ``table``, which is the run's or part of it, and what these cases are."""
    run = loaded.run
    rows = summary.summarise(table, run.device, run.kernels, loaded.configs)
    wrong = {id(case) for case, _ in impossible.of_table(table, run.device, run.kernels)}
    cases = [
        {**{name: _plain(row[name]) for name in _OF_CASE}, "impossible": id(case) in wrong}
        for case, row in zip(gather(table), rows.to_dict("records"), strict=True)
    ]
    return document("advice", run=about(loaded), cases=cases, findings=[finding.to_json() for finding in findings])


def comparison(base: compare.Side, others: Sequence[compare.Side], found: Sequence[pd.DataFrame]) -> dict[str, Any]:
    """``compare.compare`` of a baseline and others, a frame of ``found`` each."""
    compared = [
        {
            "other": _side(other),
            "sentence": verdicts.sentence(rows, other.name, base.name, of_base=False),
            "obstacles": compare.obstacles(base, other),
            "changes": compare.changes(base, other),
            "cases": records(rows),
        }
        for other, rows in zip(others, found, strict=True)
    ]
    return document("comparison", base=_side(base), comparisons=compared)


def gate(found: Gate) -> dict[str, Any]:
    """A gate's checks."""
    checks = []
    for check in found.checks:
        fields = dataclasses.asdict(check)
        named = dict(zip(KEY, fields.pop("key"), strict=True))
        checks.append({**named, **{name: _plain(value) for name, value in fields.items()}})
    limits = {name: _plain(value) for name, value in dataclasses.asdict(found.limits).items()}
    sides = {"base": about(found.base), "head": about(found.head)}
    return document("gate", **sides, verdict=found.verdict, limits=limits, notes=list(found.notes), checks=checks)


def run(loaded: LoadedRun) -> dict[str, Any]:
    """A run's description and its whole table."""
    rows = json.loads(loaded.table.to_json(orient="records"))
    return document("run", run=loaded.run.to_json(), folder=str(loaded.folder), table=rows)


def runs(listed: Iterable[Summary]) -> dict[str, Any]:
    """The runs that there are."""
    return document("runs", runs=[{**vars(line), "path": str(line.path)} for line in listed])


def document(name: str, **content: Any) -> dict[str, Any]:
    """A document of the schema ``name`` with that content."""
    return {"schema": name, "version": VERSIONS[name], "tilescope": VERSION, **content}


def about(loaded: LoadedRun) -> dict[str, Any]:
    """Which run a document speaks about."""
    run, device = loaded.run, loaded.run.device
    return {
        "id": run.id,
        "title": run.title,
        "started": run.started,
        "complete": run.complete,
        "git_revision": run.git_revision,
        "notes": list(run.notes),
        "failures": [{"case": f.case, "collector": f.collector, "message": f.message} for f in run.failures],
        "device": {"name": device.name, "target": device.target, "measured": device.measured},
    }


def records(rows: pd.DataFrame) -> list[dict[str, Any]]:
    """A frame's rows, with null for what is absent."""
    return [{str(name): _plain(value) for name, value in row.items()} for row in rows.to_dict("records")]


def _side(side: compare.Side) -> dict[str, Any]:
    return {"run": about(side.loaded), "impl": side.impl or None}


def _plain(value: Any) -> Any:
    """None for an absent value and for one without bounds: JSON has neither NaN nor infinity."""
    return None if isinstance(value, float) and not math.isfinite(value) else value
