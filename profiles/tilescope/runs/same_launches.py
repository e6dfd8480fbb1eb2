"""Problems of recordings that today's code hands to a GPU as it did then, although code of the CPU's has changed.

A line a recording's kernel in ``same_launches.jsonl``, written by ``tilescope claims --keep``. It counts as long as the kernel's
code is what it was when that was found out. Whoever has no line is not known to be the same.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from tilescope.runs import gpu_code, store
from tilescope.runs.todays_code import Today

FILE = Path(__file__).with_name("same_launches.jsonl")


class Problem(NamedTuple):
    """What implementations are compared on."""

    kernel: str
    direction: str
    workload: str


def known(run: str, files: Mapping[str, str]) -> set[Problem]:
    """The kept problems of a run, by its id, of the kernels in ``files``, which are by name the files that declare them."""
    lines, digest = _lines(), functools.cache(code)
    return {
        Problem(kernel, direction, workload)
        for kernel, file in files.items()
        if (line := lines.get((run, kernel))) and line["problems"] and line["code"] == digest(file)
        for direction, workload in line["problems"]
    }


def is_kept(run: str, kernel: str, digest: str) -> bool:
    """Whether there is an answer, be it that no problem is the same, for the kernel's code of that digest."""
    line = _lines().get((run, kernel))
    return line is not None and line["code"] == digest


def keep(found: Mapping[tuple[str, str, str], Iterable[Problem]]) -> None:
    """Writes the file anew: problems by the run's id, the kernel and the digest of its code."""
    lines = [
        {
            "run": run,
            "kernel": kernel,
            "code": digest,
            "problems": sorted([one.direction, one.workload] for one in problems),
        }
        for (run, kernel, digest), problems in sorted(found.items())
    ]
    FILE.write_text("".join(json.dumps(line, separators=(",", ":")) + "\n" for line in lines), encoding="utf-8")


def text(run: str) -> str:
    """All that is kept of a run, by its id."""
    return json.dumps([line for (of_run, _), line in sorted(_lines().items()) if of_run == run])


def files(file: str) -> set[str]:
    """Names of the files that a kernel's file reaches as they are now."""
    path = store.source_file(file)
    return {Path(name).name for name in gpu_code.files(Today(path.absolute()), str(path.absolute()))} if path else set()


def code(file: str) -> str:
    """Digest of the code, as it is now, that a kernel's file defines and reaches; empty where it is not to be read."""
    path = store.source_file(file)
    try:
        return gpu_code.digest(Today(path.absolute()), str(path.absolute())) if path else ""
    except (OSError, ValueError, SyntaxError, RecursionError, LookupError):
        return ""


def _lines() -> dict[tuple[str, str], dict[str, Any]]:
    """Lines by run and kernel."""
    return _read(FILE, FILE.stat().st_mtime) if FILE.is_file() else {}


@functools.lru_cache(maxsize=2)
def _read(file: Path, stamp: float) -> dict[tuple[str, str], dict[str, Any]]:
    found = map(json.loads, file.read_text(encoding="utf-8").splitlines())
    return {(line["run"], line["kernel"]): line for line in found}
