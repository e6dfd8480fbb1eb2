"""Problems of recordings whose launches are known to be the same today, although code has changed, or to be others, although the
code that was kept has not.

``same_launches.jsonl`` has a line for each kernel of a recording, written by ``tilescope claims --keep``. A line is valid as
long as the digest of the kernel's code is the one in the line. Without a valid line nothing is known.
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
#: How launches are compared: by texts of GPU functions (1, or no number), or also by what they are compiled to (2). An older line
#: says what is the same, but not what has changed.
_METHOD = 2


class Problem(NamedTuple):
    """A kernel's workload in one direction, which its implementations solve."""

    kernel: str
    direction: str
    workload: str


def known(run: str, files: Mapping[str, str]) -> set[Problem]:
    """The problems of a run with unchanged launches. ``run`` is its id; ``files`` maps kernels to their declaring files."""
    return _of_lines(run, files, "problems")


def others(run: str, files: Mapping[str, str]) -> set[Problem]:
    """The problems of a run that are launched otherwise today, by code that the run did not keep. Arguments as of ``known``."""
    return _of_lines(run, files, "others")


def _of_lines(run: str, files: Mapping[str, str], field: str) -> set[Problem]:
    lines, digest = _lines(), functools.cache(code)
    return {
        Problem(kernel, direction, workload)
        for kernel, file in files.items()
        if (line := lines.get((run, kernel))) and line.get(field) and line["code"] == digest(file)
        for direction, workload in line[field]
    }


def is_kept(run: str, kernel: str, digest: str) -> bool:
    """Whether there is a line, perhaps of no problems, for the kernel's code of that digest, and made as lines are today."""
    line = _lines().get((run, kernel))
    return line is not None and line["code"] == digest and line.get("method") == _METHOD


def keep(
    found: Mapping[tuple[str, str, str], Iterable[Problem]],
    others: Mapping[tuple[str, str, str], Iterable[Problem]] | None = None,
) -> None:
    """Rewrites the file. Both arguments map run id, kernel and digest of its code to problems: the same ones, and others."""
    changed = others or {}
    lines = [
        {
            "run": run,
            "kernel": kernel,
            "code": digest,
            "method": _METHOD,
            "problems": _sorted(found.get((run, kernel, digest), ())),
            **({"others": _sorted(told)} if (told := changed.get((run, kernel, digest))) else {}),
        }
        for run, kernel, digest in sorted({*found, *changed})
    ]
    FILE.write_text("".join(json.dumps(line, separators=(",", ":")) + "\n" for line in lines), encoding="utf-8")


def _sorted(problems: Iterable[Problem]) -> list[list[str]]:
    return sorted([one.direction, one.workload] for one in problems)


def text(run: str) -> str:
    """All lines of a run, by its id, as JSON."""
    return json.dumps([line for (of_run, _), line in sorted(_lines().items()) if of_run == run])


def files(file: str) -> set[str]:
    """Names of the files that a kernel's file uses, itself included; empty where it does not exist here."""
    path = store.source_file(file)
    return {Path(name).name for name in gpu_code.files(Today(path.absolute()), str(path.absolute()))} if path else set()


def code(file: str) -> str:
    """Digest of the present code that a kernel's file defines and uses; empty where it cannot be read."""
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
