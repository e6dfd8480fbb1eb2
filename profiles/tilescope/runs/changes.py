"""Which of a run's kernels have changed since they were recorded, by the digests of the GPU functions that they launched.

A function without a digest counts as current. Imports neither torch nor triton.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Mapping
from hashlib import sha256
from pathlib import Path
from typing import Any, NamedTuple

from tilescope.files import user_cache
from tilescope.runs import function_digests, store
from tilescope.table.run import Run

#: How digests are computed: cached ones are of this method.
_METHOD = 1


class Problem(NamedTuple):
    """A kernel's workload in one direction, which its implementations solve."""

    kernel: str
    direction: str
    workload: str


def changed_kernels(loaded: store.LoadedRun) -> list[str]:
    found = {problem.kernel for problem in changed_problems(loaded)}
    return [name for name in loaded.run.kernels if name in found]


def changed_problems(loaded: store.LoadedRun) -> set[Problem]:
    changed = {name: changed_functions(loaded, name) for name in loaded.run.kernels}
    return {
        problem for problem, functions in launched(loaded).items() if functions & changed.get(problem.kernel, set())
    }


def launched(loaded: store.LoadedRun) -> dict[Problem, set[str]]:
    """The GPU functions with a digest that each of the run's problems launched."""
    found: dict[Problem, set[str]] = {}
    known = {name: recorded(loaded, name) for name in loaded.run.kernels}
    rows = loaded.table[["kernel", "pass", "workload", "function"]].drop_duplicates()
    for *problem, function in rows.itertuples(index=False, name=None):
        functions = found.setdefault(Problem(*problem), set())
        if function in known.get(problem[0], ()):
            functions.add(function)
    return found


def changed_functions(loaded: store.LoadedRun, kernel: str) -> set[str]:
    """The kernel's GPU functions whose code has changed, or is gone; none where its file does not exist here."""
    return changed_since(str(loaded.run.kernels[kernel].get("file", "")), recorded(loaded, kernel))


def changed_since(file: str, digests: Mapping[str, str]) -> set[str]:
    """Those of the functions with these ``digests`` that have changed. ``file`` declared their kernel."""
    path = store.source_file(file)
    if path is None:
        return set()
    now = today(path)
    return {name for name, digest in digests.items() if now.get(name) != digest}


def recorded(loaded: store.LoadedRun, kernel: str) -> Mapping[str, str]:
    """The digests of a kernel's GPU functions when it was recorded."""
    digests: Mapping[str, str] = loaded.run.kernels[kernel].get("functions", {})
    return digests


def today(path: Path) -> dict[str, str]:
    """The digests of the GPU functions that a file declares or imports; none where its code cannot be read."""
    try:
        return _digests(path)
    except function_digests.UNREADABLE:
        return {}


def _digests(path: Path) -> dict[str, str]:
    """``function_digests.of``, cached for a file in a package until a file of the package changes."""
    packages = list(itertools.takewhile(lambda folder: (folder / "__init__.py").is_file(), path.absolute().parents))
    if not packages:
        return function_digests.of(path)
    state = [str(packages[-1])]
    for file in sorted(packages[-1].rglob("*.py")):
        seen = file.stat()
        state.append(f"{file} {seen.st_mtime_ns} {seen.st_size}")
    key = user_cache.digest([_METHOD, *state])
    known = _kept(key)
    name = str(path.absolute())
    if name not in known:
        known[name] = function_digests.of(path)
        user_cache.write("functions", key, known)
    return known[name]


@functools.lru_cache(maxsize=1)
def _kept(key: str) -> dict[str, dict[str, str]]:
    found: dict[str, dict[str, str]] = user_cache.read("functions", key) or {}
    return found


def changed_files(run: Run) -> list[str]:
    """Names of the run's kernels whose declaring file, or any GPU function, has changed since the run began."""
    return [
        name
        for name, facts in run.kernels.items()
        if _file_changed(facts) or changed_since(str(facts.get("file", "")), facts.get("functions", {}))
    ]


def _file_changed(facts: Mapping[str, Any]) -> bool:
    path = store.source_file(str(facts.get("file", "")))
    try:
        return path is not None and sha256(store.source_bytes(path)).hexdigest() != facts.get("sha256")
    except OSError:
        return True
