"""JSON documents of the commands, for other programs: each follows a JSON Schema in ``schemas/``. Pure.

A document names its ``schema``, that schema's ``version``, and the version of Tilescope. Within a version fields may be added;
to remove one or change its meaning takes a new version. Values are in base SI units; an unknown value is null, never 0.
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

#: Each schema's current version.
VERSIONS = {"advice": 1, "comparison": 1, "gate": 1, "run": 1, "runs": 1}
#: Fields of a case in ``advice``, from ``summary.summarise``.
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
    """The document as JSON text. Raises ValueError for NaN and infinity."""
    return json.dumps(document, allow_nan=False)


def advice(loaded: LoadedRun, table: pd.DataFrame, findings: Iterable[Finding]) -> dict[str, Any]:
    """The document ``advice``: findings about the cases of ``table`` (the run's, or part of it), and these cases."""
    run = loaded.run
    rows = summary.summarise(table, run.device, run.kernels, loaded.configs)
    wrong = {id(case) for case, _ in impossible.of_table(table, run.device, run.kernels)}
    cases = [
        {**{name: _plain(row[name]) for name in _OF_CASE}, "impossible": id(case) in wrong}
        for case, row in zip(gather(table), rows.to_dict("records"), strict=True)
    ]
    return document("advice", run=about(loaded), cases=cases, findings=[finding.to_json() for finding in findings])


def comparison(base: compare.Side, others: Sequence[compare.Side], found: Sequence[pd.DataFrame]) -> dict[str, Any]:
    """The document ``comparison`` of a baseline with others; ``found`` has the frame of ``compare.compare`` for each."""
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
    """The document ``gate``: a gate's verdict and its checks."""
    checks = []
    for check in found.checks:
        fields = dataclasses.asdict(check)
        named = dict(zip(KEY, fields.pop("key"), strict=True))
        checks.append({**named, **{name: _plain(value) for name, value in fields.items()}})
    limits = {name: _plain(value) for name, value in dataclasses.asdict(found.limits).items()}
    sides = {"base": about(found.base), "head": about(found.head)}
    return document("gate", **sides, verdict=found.verdict, limits=limits, notes=list(found.notes), checks=checks)


def run(loaded: LoadedRun) -> dict[str, Any]:
    """The document ``run``: a run's description and its whole table."""
    rows = json.loads(loaded.table.to_json(orient="records"))
    return document("run", run=loaded.run.to_json(), folder=str(loaded.folder), table=rows)


def runs(listed: Iterable[Summary]) -> dict[str, Any]:
    """The document ``runs``: the list of runs."""
    return document("runs", runs=[{**vars(line), "path": str(line.path)} for line in listed])


def document(name: str, **content: Any) -> dict[str, Any]:
    """A document of the schema ``name`` with this content."""
    return {"schema": name, "version": VERSIONS[name], "tilescope": VERSION, **content}


def about(loaded: LoadedRun) -> dict[str, Any]:
    """The identification of a run in a document."""
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
    """The value, or None for NaN and infinity, which JSON does not have."""
    return None if isinstance(value, float) and not math.isfinite(value) else value
