"""The answers that launchers got about an assumed GPU, as a run keeps them in its settings under ``assumed``."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from tilescope.files import bounded_reading, json_shape

#: Most answers in one note.
_MOST = 6


@bounded_reading.parser
def parse(artefact: Path) -> Mapping[str, Any]:
    """Reads the assumption from a collector's artefact, as ``Assumed.as_data`` made it; empty where no GPU was assumed."""
    told = bounded_reading.data_of(artefact).get("assumed", {})
    return json_shape.fit(told, dict[str, Any], "assumed")


def merged(known: Mapping[str, Any], found: Mapping[str, Any]) -> dict[str, Any]:
    """Merges two assumptions of one collector and target: all answers and all refused queries."""
    answers = {**known.get("answers", {}), **found.get("answers", {})}
    refused = dict.fromkeys([*known.get("refused", ()), *found.get("refused", ())])
    return {**found, "answers": dict(sorted(answers.items())), "refused": sorted(refused)}


def notes(settings: Mapping[str, Any]) -> Iterator[str]:
    """Yields a line for each group of collectors whose launchers got the same answers: the assumed GPU and the answers."""
    together: dict[str, list[str]] = {}
    for collector, assumed in settings.get("assumed", {}).items():
        answers = assumed.get("answers", {})
        told = [f"{_short(query)} {value}" for query, value in answers.items()]
        if told:
            more = [f"and {len(told) - _MOST} more"] if len(told) > _MOST else []
            said = ", ".join([*told[:_MOST], *more])
            line = f"assumed {assumed.get('name')} ({assumed.get('target')}) where launchers asked for the GPU: {said}"
            together.setdefault(line, []).append(collector)
    for line, collectors in together.items():
        yield f"{', '.join(collectors)} {line}"


def _short(query: str) -> str:
    """The last name in a query, ``multi_processor_count``; the whole command of a program."""
    names = re.findall(r"\w+", query)
    return query if query.startswith("nvidia-smi") or not names else str(names[-1])
