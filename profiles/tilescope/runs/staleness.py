"""Whether the code that a run measured is still the code that is here."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from hashlib import sha256
from typing import Any, NamedTuple

from tilescope.files import names
from tilescope.runs import same_code, same_launches, store
from tilescope.runs.definitions import Recorded
from tilescope.runs.same_launches import Problem
from tilescope.runs.todays_code import Today

#: What keeps code from being read, then or now.
UNREADABLE = (OSError, ValueError, SyntaxError, RecursionError, MemoryError, LookupError)


class Sides(NamedTuple):
    """A kernel's code as a run kept it and as it is here: the files, and which of them declares the kernel."""

    recorded: Recorded
    root: str
    today: Today
    path: str


def stale_kernels(run: store.LoadedRun) -> list[str]:
    """Names of the run's kernels whose code is no longer what was measured.

    That is all that the file which declares the kernel defines, and what it reaches in the files that its launches are in,
    as far as the run kept them. Comments and docstrings are no code, and it does not matter which file of the package code
    is in. A run that kept no texts knows the declaring file's bytes alone.
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
    """Problems of ``stale_kernels``: those of which a GPU may run other code today, and those of which it is known to run
    the same, launched by other code of the CPU's.
    """
    stale = set(stale_kernels(run) if stale is None else stale)
    columns = run.table[["kernel", "pass", "workload"]].drop_duplicates()
    problems = {Problem(*row) for row in columns.itertuples(index=False) if row[0] in stale}
    same = problems & same_launches.known(
        run.run.id, {name: str(run.run.kernels[name].get("file", "")) for name in stale}
    )
    return problems - same, same


def stale_on_gpu(run: store.LoadedRun, stale: Iterable[str] | None = None) -> list[str]:
    """Those of ``stale_kernels`` of which a GPU may run other code today; of the rest times of the GPU stand."""
    stale = stale_kernels(run) if stale is None else stale
    changed = {problem.kernel for problem in stale_problems(run, stale)[0]} if stale else set()
    of_table = set(run.table["kernel"].unique())
    return [name for name in stale if name in changed or name not in of_table]


def sides(run: store.LoadedRun, kernel: str) -> Sides | None:
    """The kernel's code then and now; None where its file is not here. Raises LookupError where the run did not keep it."""
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


def own(kept: Mapping[str, str]) -> dict[str, str]:
    """The texts of a kernel's own files. Other libraries', which a run keeps too, are named by a path."""
    return {name: text for name, text in kept.items() if names.is_source(name)}


def _may_have_changed(run: store.LoadedRun, kernel: str) -> bool:
    """Code that cannot be read, then or now, is not known to be the same."""
    try:
        return _has_changed(run, kernel)
    except UNREADABLE:
        return True


def _has_changed(run: store.LoadedRun, kernel: str) -> bool:
    found = sides(run, kernel)
    if found is None:
        return False
    texts, today = found.recorded.texts, found.today
    here = {name: today.named(name) for name in texts}
    if today.text(found.path) == texts[found.root] and all(
        there and today.text(there) == texts[name] for name, there in here.items()
    ):
        return False  # To read code takes longer than to compare texts.
    return not same_code.same(*found)


def _kept(run: store.LoadedRun, kernel: str) -> Mapping[str, str]:
    try:
        return run.sources.get(kernel, {})
    except store.StoreError:  # damaged: whoever wants to read the texts is told
        return {}
