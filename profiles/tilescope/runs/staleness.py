"""Finds kernels of a run whose code has changed since it was measured."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from hashlib import sha256
from pathlib import Path
from typing import Any, NamedTuple

from tilescope.files import names
from tilescope.runs import gpu_code, same_code, same_launches, store
from tilescope.runs.definitions import Recorded
from tilescope.runs.same_launches import Problem
from tilescope.runs.todays_code import Today

#: Errors of reading recorded or present code.
UNREADABLE = (OSError, ValueError, SyntaxError, RecursionError, MemoryError, LookupError)


class Sides(NamedTuple):
    """A kernel's recorded code and today's. ``root`` and ``path`` are the files that declare the kernel in each."""

    recorded: Recorded
    root: str
    today: Today
    path: str


def stale_kernels(run: store.LoadedRun) -> list[str]:
    """Names of the run's kernels whose code has changed: by what was kept of it, or as is known otherwise (``same_launches``)."""
    found = {*stale_by_text(run), *(problem.kernel for problem in _launched_otherwise(run))}
    return [name for name in run.run.kernels if name in found]


def stale_by_text(run: store.LoadedRun) -> list[str]:
    """Names of the run's kernels whose code has changed, by what was kept of it.

    The code is everything that the declaring file defines, and everything it uses in the other files that the run kept.
    Comments and docstrings are ignored, and code may move within its package (see ``same_code``). If the run kept no texts,
    the bytes of the declaring file are compared.
    """
    found: dict[Any, bool] = {}
    stale = []
    for name, facts in run.run.kernels.items():
        # Kernels of one file share its texts.
        key = (str(facts.get("file", "")), str(facts.get("sha256", "")), frozenset(_kept(run, name).items()))
        if key not in found:
            found[key] = _may_have_changed(run, name)
        if found[key]:
            stale.append(name)
    return stale


def stale_problems(run: store.LoadedRun, stale: Iterable[str] | None = None) -> tuple[set[Problem], set[Problem]]:
    """The problems of ``stale_kernels`` in two sets: those whose GPU code may have changed, and those known to launch the same
    GPU code, where only the CPU's code has changed or GPU code is compiled to what it was.
    """
    stale = set(stale_kernels(run) if stale is None else stale)
    columns = run.table[["kernel", "pass", "workload"]].drop_duplicates()
    others = {problem for problem in _launched_otherwise(run) if problem.kernel in stale}
    # Of these kernels the code that was kept is unchanged, and so are the other problems.
    stale -= {problem.kernel for problem in others}
    problems = {Problem(*row) for row in columns.itertuples(index=False) if row[0] in stale}
    same = problems & same_launches.known(
        run.run.id, {name: str(run.run.kernels[name].get("file", "")) for name in stale}
    )
    return problems - same | others, same


def _launched_otherwise(run: store.LoadedRun) -> set[Problem]:
    return same_launches.others(
        run.run.id, {name: str(facts.get("file", "")) for name, facts in run.run.kernels.items()}
    )


def stale_on_gpu(run: store.LoadedRun, stale: Iterable[str] | None = None) -> list[str]:
    """Those of ``stale_kernels`` whose GPU code may have changed. GPU times of the others are still valid."""
    stale = stale_kernels(run) if stale is None else stale
    changed = {problem.kernel for problem in stale_problems(run, stale)[0]} if stale else set()
    of_table = set(run.table["kernel"].unique())
    return [name for name in stale if name in changed or name not in of_table]


def sides(run: store.LoadedRun, kernel: str) -> Sides | None:
    """The kernel's recorded code and today's; None where its file does not exist here.

    Raises LookupError where the run did not keep the file, and the errors of ``UNREADABLE``.
    """
    facts = run.run.kernels[kernel]
    path = store.source_file(str(facts.get("file", "")))
    if path is None:
        return None
    measured, kept = str(facts.get("sha256", "")), _kept(run, kernel)
    content = store.source_bytes(path)
    unchanged = sha256(content).hexdigest() == measured
    root = content.decode() if unchanged else kept.get(path.name, "")
    if sha256(root.encode()).hexdigest() != measured:
        raise LookupError(f"{kernel}: its file was not kept")
    texts = {path.name: root, **own(kept)}
    today = Today(path.absolute())
    return Sides(Recorded(texts, today), path.name, today, str(path.absolute()))


def texts_on_gpu(run: store.LoadedRun, kernel: str) -> dict[str, str]:
    """Today's texts, by name, of the files that hold the GPU functions that a kernel launched, and what these use.

    Empty where the kernel's code has changed. A run itself keeps only files that launch something. Without the others, such as one of
    constants, nobody could tell later whether the GPU functions are the same.
    """
    try:
        found = sides(run, kernel)
        if found is None or not same_code.same(*found):
            return {}
        launched = set(run.table.loc[run.table["kernel"] == kernel, "function"])
        files = gpu_code.files_of(found.today, found.path, launched)
        return {Path(file).name: found.today.text(file) for file in sorted(files)}
    except UNREADABLE:
        return {}


def own(kept: Mapping[str, str]) -> dict[str, str]:
    """The texts of a kernel's own files. Files of other libraries, which a run keeps too, are named by a path."""
    return {name: text for name, text in kept.items() if names.is_source(name)}


def _may_have_changed(run: store.LoadedRun, kernel: str) -> bool:
    """Whether the code has changed, or cannot be read."""
    try:
        found = sides(run, kernel)
        if found is None:
            return False
        texts, today = found.recorded.texts, found.today
        here = {name: today.named(name) for name in texts}
        # Comparing texts is quicker than parsing them.
        same_texts = today.text(found.path) == texts[found.root] and all(
            there and today.text(there) == texts[name] for name, there in here.items()
        )
        return not (same_texts or same_code.same(*found))
    except UNREADABLE:
        return True


def _kept(run: store.LoadedRun, kernel: str) -> Mapping[str, str]:
    try:
        return run.sources.get(kernel, {})
    except store.StoreError:  # damaged, as whoever opens the texts is told
        return {}
