"""Claims of the recordings, stored beside them, because computing them takes seconds.

``tilescope claims --keep`` writes ``claims.jsonl``, one line a recording; ``tilescope record`` ends with it. A line is
valid while the recording's files are unchanged. Whether a row has changed since is computed when it is read.
"""

from __future__ import annotations

import functools
import json
import operator
from hashlib import sha256
from pathlib import Path
from typing import Any

import pandas as pd

from tilescope.models import claims, claims_text
from tilescope.runs import changes, device_roofs, store

#: The file beside the recordings.
_FILE = "claims.jsonl"
#: Files of a recording that claims are computed from.
_READ = ("run.json", "table.parquet")


def kept(folder: Path) -> tuple[list[dict[str, Any]], str] | None:
    """The stored ``claims.of_run`` and ``claims_text.provenance`` of the recording in ``folder``; None where no line is valid.

    The caller must not change the rows.
    """
    line = _valid(folder)
    if line is None:
        return None
    columns = line["rows"]
    rows = [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]
    changed = {name: changes.changed_since(line["files"][name], digests) for name, digests in line["digests"].items()}
    rows = [{**row, "changed": not changed[row["kernel"]].isdisjoint(row["functions"])} for row in rows]
    return rows, line["provenance"]


def every() -> tuple[pd.DataFrame, str]:
    """``claims.best`` of all recordings, stored or computed, and their devices, dates and versions."""
    rows: list[dict[str, Any]] = []
    measured: list[str] = []
    for folder in folders():
        found = kept(folder)
        if found is None:
            loaded = store.open_run(folder)
            found = claims.of_run(loaded), claims_text.provenance([loaded])
        rows += found[0]
        measured += found[1].splitlines()
    return claims.best(rows), claims_text.by_device(measured)


def folders() -> list[Path]:
    return [run.path for run in reversed(store.list_runs([store.recorded_dir()])) if not run.error]


def keep() -> list[str]:
    """Stores the roofs and the claims of all recordings, computing those without a valid line. Returns the ids of those computed."""
    device_roofs.keep(store.recorded_dir())
    lines, computed = [], []
    for folder in sorted(folders()):
        line = _valid(folder)
        if line is None:
            line = _line(store.open_run(folder))
            computed.append(folder.name)
        lines.append(json.dumps(line, separators=(",", ":"), default=operator.methodcaller("item")))  # NumPy's scalars
    (store.recorded_dir() / _FILE).write_text("\n".join([*lines, ""]), encoding="utf-8")
    return computed


def digest(folder: Path) -> str:
    """The digest of the recording's files, and of the roofs."""
    found = sha256()
    for path in (*(folder / name for name in _READ), folder.parent / device_roofs.FILE):
        content = path.read_bytes() if path.is_file() else b""
        found.update(f"{path.name} {len(content)}\n".encode() + content)
    return found.hexdigest()


def _valid(folder: Path) -> dict[str, Any] | None:
    file = folder.parent / _FILE
    line = _lines(file, file.stat().st_mtime if file.is_file() else 0.0).get(folder.name)
    return line if line and line["digest"] == digest(folder) else None


def _line(loaded: store.LoadedRun) -> dict[str, Any]:
    rows = claims.of_run(loaded)
    kernels = dict.fromkeys(row["kernel"] for row in rows)
    columns = {name: [row[name] for row in rows] for name in (rows[0] if rows else {}) if name != "changed"}
    return {
        "run": loaded.folder.name, "digest": digest(loaded.folder), "provenance": claims_text.provenance([loaded]),
        "files": {kernel: str(loaded.run.kernels[kernel].get("file", "")) for kernel in kernels},
        "digests": {kernel: dict(changes.recorded(loaded, kernel)) for kernel in kernels}, "rows": columns,
    }  # fmt: skip


@functools.lru_cache(maxsize=2)
def _lines(file: Path, stamp: float) -> dict[str, dict[str, Any]]:
    if not stamp:
        return {}
    found = (json.loads(line) for line in file.read_text(encoding="utf-8").splitlines() if line)
    return {line["run"]: line for line in found}
