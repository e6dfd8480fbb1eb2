"""JSON documents of the commands, for other programs: values of the types in ``documents``. Pure."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Sequence
from typing import Any, TypeVar

import msgspec
import pandas as pd

from tilescope.models import code_change, compare, documents, headline, impossible, summary, verdicts, versions
from tilescope.models.advice import Finding
from tilescope.models.code_change import Launch
from tilescope.models.gate import Gate
from tilescope.models.step_changes import Changed, StepPair
from tilescope.models.upgrade import Upgrade
from tilescope.runs.store import LoadedRun, Summary
from tilescope.table.case_table import gather
from tilescope.table.suggest import unknown
from tilescope.version import VERSION

Kind = TypeVar("Kind", bound=documents.Document)

#: Characters that JSON may hold as they are and a terminal obeys: control characters, and those that turn the direction of writing.
_HIDDEN = re.compile("[\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069]")


def schema(name: str) -> dict[str, Any]:
    """The JSON Schema (draft 2020-12) of a document of ``documents.TYPES``. Every field is required."""
    kind = documents.TYPES[name]
    parts = msgspec.json.schema(kind)["$defs"]
    for part in parts.values():
        part["required"] = list(part["properties"])
    own = parts.pop(kind.__name__)
    version = own["properties"]["version"]["default"]
    draft = "https://json-schema.org/draft/2020-12/schema"
    return {"$schema": draft, "$id": f"tilescope/{name}/{version}", **own, "$defs": parts}


def schema_text(name: str) -> str:
    """The same as indented text. Raises ValueError for a name that no document has."""
    if name not in documents.TYPES:
        raise ValueError(unknown("schema", name, documents.TYPES))
    return json.dumps(schema(name), indent=1, ensure_ascii=False)


def text(document: documents.Document) -> str:
    """The document as JSON text, with escapes of what a terminal would not print as it is."""
    plain = msgspec.json.encode(document).decode()
    return _HIDDEN.sub(lambda found: json.dumps(found[0])[1:-1], plain)


def advice(loaded: LoadedRun, table: pd.DataFrame, findings: Iterable[Finding]) -> documents.Advice:
    """Findings about the cases of ``table`` (the run's, or part of it), and these cases; for a model's step its suggestions."""
    run = loaded.run
    rows = summary.of_run(loaded, table)
    cases = [
        {**row, "impossible": bool(impossible.reasons(case, run.device, row["pipe"]))}
        for case, row in zip(gather(table), rows.to_dict("records"), strict=True)
    ]
    told = {"findings": [finding.to_json() for finding in findings], "suggestions": headline.suggestions(loaded)}
    return _made(documents.Advice, run=about(loaded), cases=cases, **told)


def comparison(
    baseline: compare.Side,
    candidates: Sequence[compare.Side],
    found: Sequence[tuple[pd.DataFrame, StepPair | None]],
    *,
    code: bool = False,
) -> documents.Comparison:
    """A baseline compared with candidates; ``found`` has for each the frame of ``compare.compare`` and the two steps, where they are.

    ``code``: with the compiled code.
    """
    compared = [
        {
            "candidate": _side(candidate),
            "sentence": pair.sentence if pair else verdicts.sentence(rows, candidate.name, baseline.name),
            "obstacles": compare.obstacles(baseline, candidate),
            "doubts": compare.doubts(baseline.loaded, candidate.loaded, rows),
            "changes": compare.changes(baseline, candidate),
            "difference": list(versions.of_kernels(baseline.loaded, candidate.loaded, rows)),
            "cases": rows.to_dict("records"),
            "code": [_launch(one, worse=bool(one.worse)) for one in code_change.launches(baseline, candidate, rows)]
            if code
            else [],
            "step": pair and {**_ends("time", pair.seconds), "kernels": [_kernel(one) for one in pair.kernels]},
        }
        for candidate, (rows, pair) in zip(candidates, found, strict=True)
    ]
    return _made(documents.Comparison, baseline=_side(baseline), comparisons=compared)


def _ends(name: str, values: Sequence[Any]) -> dict[str, Any]:
    return {f"baseline_{name}": values[0], name: values[1]}


def _kernel(one: Changed) -> dict[str, Any]:
    place = {"operator": one.operator, "module": one.module, "pass": one.direction}
    return place | _ends("name", one.names) | _ends("launches", one.launches) | _ends("time", one.seconds)


def gate(found: Gate) -> documents.Gate:
    runs = {"baseline": about(found.baseline), "candidate": about(found.candidate)}
    return _made(documents.Gate, **{**vars(found), **runs, "verdict": found.verdict})


def upgrade(found: Upgrade, bisected: Iterable[tuple[str, str]] = ()) -> documents.Upgrade:
    sides = found.baseline, found.candidate
    return _made(
        documents.Upgrade,
        verdict=found.verdict,
        baseline=about(found.baseline.loaded),
        candidate=about(found.candidate.loaded),
        changes=compare.changes(*sides),
        obstacles=compare.obstacles(*sides),
        broken=[vars(failure) for failure in found.broken],
        alone=found.alone,
        configs=found.configs,
        launches=[_launch(one, worse=one in found.worse) for one in found.launches],
        bisected=[{"packages": packages, "said": said} for packages, said in bisected],
    )


def _launch(one: Launch, *, worse: bool) -> dict[str, Any]:
    of = one.candidate
    return {**one.row, "function": of.function, "file": of.file, "worse": worse, "moved": one.moved}


def run(loaded: LoadedRun) -> documents.ShownRun:
    first, folder = headline.headline(loaded), str(loaded.folder)
    # msgspec leaves out the fields that an older run.json lacks.
    described = loaded.run.to_json()
    return _made(documents.ShownRun, headline=first, run=described, folder=folder, table=_rows(loaded.table))


def records(frame: pd.DataFrame) -> str:
    """A frame's rows as JSON text, with every digit; ``DataFrame.to_json`` rounds to 10 decimals."""
    return msgspec.json.encode(_rows(frame), enc_hook=lambda value: value.item()).decode()


def _rows(frame: pd.DataFrame) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = frame.astype(object).where(frame.notna(), None).to_dict("records")
    return found


def runs(listed: Iterable[Summary]) -> documents.Runs:
    return _made(documents.Runs, runs=[{**vars(line), "path": str(line.path)} for line in listed])


def _made(kind: type[Kind], **content: Any) -> Kind:
    """The document of this content. JSON has no NaN and no infinity: both become null. Other fields than the type's are dropped."""
    data = {"schema": kind.__struct_config__.tag, "tilescope": VERSION, **content}
    return msgspec.json.decode(msgspec.json.encode(data, enc_hook=lambda value: value.item()), type=kind)


def about(loaded: LoadedRun) -> dict[str, Any]:
    return {**vars(loaded.run), "device": {**vars(loaded.run.device), "where": loaded.run.device.where}}


def _side(side: compare.Side) -> dict[str, Any]:
    return {"run": about(side.loaded), "impl": side.impl or None}
