"""Claims of the recordings, stored beside the code, because computing them takes seconds.

``tilescope claims --keep`` writes ``recorded_claims.jsonl``, one line a recording; ``make record`` ends with it. A line is valid
while the recording's files and its kernels' code are unchanged. A test compares the lines with today's models.
"""

from __future__ import annotations

import functools
import json
import operator
from collections.abc import Iterable
from hashlib import sha256
from pathlib import Path
from typing import Any

import pandas as pd

from tilescope.models import claims, claims_text
from tilescope.runs import same_launches, staleness, store
from tilescope.runs.todays_code import packages_of

FILE = Path(__file__).with_name("recorded_claims.jsonl")
#: Files of a recording that claims are computed from.
_READ = ("run.json", "table.parquet", "sources.json.gz")


def kept(folder: Path, file: Path = FILE) -> tuple[list[dict[str, Any]], str] | None:
    """The stored ``claims.of_run`` and ``claims_text.provenance`` of the recording in ``folder``; None where no line is valid.

    The caller must not change the rows.
    """
    line = _valid(folder, file)
    if line is None:
        return None
    columns = line["rows"]
    return [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)], line["provenance"]


def every() -> tuple[pd.DataFrame, str]:
    """``claims.best`` and ``claims_text.provenance`` of all recordings: as they are stored, else computed."""
    rows: list[dict[str, Any]] = []
    measured: dict[str, None] = {}
    for folder in folders():
        found = kept(folder)
        if found is None:
            loaded = store.open_run(folder)
            found = claims.of_run(loaded), claims_text.provenance([loaded])
        rows += found[0]
        measured |= dict.fromkeys(found[1].splitlines())
    return claims.best(rows), "\n".join(measured)


def folders() -> list[Path]:
    """The folders of the recordings that can be opened, oldest first."""
    return [run.path for run in reversed(store.list_runs([store.recorded_dir()])) if not run.error]


def keep(folders: Iterable[Path], file: Path = FILE) -> list[str]:
    """Writes the claims of these recordings, computing those without a valid line; returns the ids of those computed."""
    lines, computed = [], []
    for folder in sorted(folders):
        line = _valid(folder, file)
        if line is None:
            line = _line(store.open_run(folder))
            computed.append(folder.name)
        lines.append(json.dumps(line, separators=(",", ":"), default=operator.methodcaller("item")))  # NumPy's scalars
    file.write_text("\n".join([*lines, ""]), encoding="utf-8")
    return computed


def digest(folder: Path, declared: Iterable[str], texts: Iterable[str]) -> str:
    """The digest of everything that a recording's claims depend on: its files, its kernels' code today, and kept launches.

    ``declared`` are the files that declare its kernels; ``texts`` are the names of other files with their code.
    """
    found = sha256()
    for path in [*(folder / name for name in _READ), *_code(declared, set(texts))]:
        content = path.read_bytes() if path.is_file() else None
        found.update(f"{path.name} {None if content is None else len(content)}\n".encode() + (content or b""))
    found.update(same_launches.text(folder.name).encode())
    return found.hexdigest()


def _valid(folder: Path, file: Path) -> dict[str, Any] | None:
    line = _lines(file, file.stat().st_mtime if file.is_file() else 0.0).get(folder.name)
    return line if line and line["digest"] == digest(folder, line["declared"], line["texts"]) else None


def _code(declared: Iterable[str], texts: set[str]) -> list[Path]:
    """The declaring files, and files of their packages with one of these names."""
    found = {path for path in map(store.source_file, declared) if path}
    for top in {[path.parent, *packages_of(path)][-1] for path in found}:
        found |= {path for name, paths in _by_name(top).items() if name in texts for path in paths}
    return sorted(found)


@functools.cache
def _by_name(top: Path) -> dict[str, list[Path]]:
    found: dict[str, list[Path]] = {}
    for path in top.rglob("*.py"):
        found.setdefault(path.name, []).append(path)
    return found


def _line(loaded: store.LoadedRun) -> dict[str, Any]:
    rows = claims.of_run(loaded)
    declared = sorted({str(facts.get("file", "")) for facts in loaded.run.kernels.values()})
    declaring = {name: str(facts.get("file", "")) for name, facts in loaded.run.kernels.items()}
    told = staleness.stale_problems(loaded)[1] | same_launches.others(loaded.run.id, declaring)
    launching = {declaring[problem.kernel] for problem in told}
    kept = {name for files in loaded.sources.values() for name in staleness.own(files)}
    texts = sorted(kept.union(*map(same_launches.files, launching)))
    return {
        "run": loaded.folder.name, "digest": digest(loaded.folder, declared, texts), "declared": declared, "texts": texts,
        "provenance": claims_text.provenance([loaded]),
        "rows": {name: [row[name] for row in rows] for name in (rows[0] if rows else {})},
    }  # fmt: skip


@functools.lru_cache(maxsize=2)
def _lines(file: Path, stamp: float) -> dict[str, dict[str, Any]]:
    if not stamp:
        return {}
    found = (json.loads(line) for line in file.read_text(encoding="utf-8").splitlines() if line)
    return {line["run"]: line for line in found}
