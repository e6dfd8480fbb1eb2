"""Compiles a recording's launches again, from the code that it measured, and compares them with today's.

Its GPU functions may have other texts today, as one that was renamed has, or one with a new flag that is off. Launches are the
same where the compiled code (PTX) is, and grid, threads, shared memory and run-time arguments are equal. Both sides are compiled
here, each in a process of its own. Imports neither torch nor triton.
"""

from __future__ import annotations

import asyncio
import dataclasses
import json
import sys
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from tilescope.jobs import ptxas, revisions
from tilescope.jobs.job import OnEvent
from tilescope.runs import gpu_code, recorded_tree, staleness, store
from tilescope.runs.todays_code import packages_of
from tilescope.table.case import Case

#: What of a launch has to be equal.
_COMPARED = ("grid", "ptx", "options", "arguments")
#: A case's launches, as ``compiled_launches`` gives them; None where they are not known.
Compiled = list[dict[str, Any]] | None
_MODULE = "tilescope.collectors.compiled_launches"
#: The longest line of an answer, in bytes.
_LONGEST = 64 << 20


class Wanted(NamedTuple):
    """A case of a recording: its architecture, the commit with its code, and the package (a folder) that is of there and here."""

    target: str
    commit: str
    package: Path
    case: Case


class Question(NamedTuple):
    """A case to be compiled if it launches these functions with these grids, in order. None is not compared."""

    case: Case
    functions: Sequence[str] | None = None
    grids: Sequence[Sequence[int]] | None = None


def tree_of(run: store.LoadedRun, kernel: str) -> tuple[str, Path] | None:
    """The commit with the code that a run measured of a kernel of a package, and the package's folder; None if not known.

    Where code was not committed, the run must have kept everything that the kernel's GPU functions use.
    """
    try:
        sides = staleness.sides(run, kernel)
    except staleness.UNREADABLE:
        return None
    packages = packages_of(Path(sides.path)) if sides else []
    if not sides or not packages:
        return None
    if run.run.git_revision.endswith("+"):
        launched = set(run.table.loc[run.table["kernel"] == kernel, "function"]) & gpu_code.functions(sides.recorded)
        if not launched <= gpu_code.kept_whole(sides.recorded):
            return None
    commit = recorded_tree.commit(run.run.git_revision, sides.recorded.texts, packages[-1])
    return (commit, packages[-1]) if commit else None


async def same_cases(
    recorded: Mapping[Wanted, Sequence[str]], on_event: OnEvent = lambda event: None
) -> dict[Wanted, list[dict[str, Any]]]:
    """The cases whose launches are the same today, with these as the recorded code makes them.

    ``recorded`` has the functions that the recordings saw launched, in order. Each distinct launch is compiled once.
    """
    same: dict[Wanted, list[dict[str, Any]]] = {}
    with tempfile.TemporaryDirectory(prefix="tilescope-recompiled-") as scratch:
        for (target, package), commits in _by_commit(recorded).items():
            ask = _Asking(target, Path(scratch), on_event)
            grids = _grids(await ask(package, _questions(commits), compiled=False))
            before: dict[Wanted, list[dict[str, Any]]] = {}
            for commit, every in commits.items():
                asked = [Question(one.case, recorded[one], grids[one.case]) for one in every if one.case in grids]
                there = await ask(package, asked, commit=commit)
                before |= {one: made for one in every if (made := there.get(one.case))}
            now = await ask(package, [Question(case, None, grids[case]) for case in {one.case for one in before}])
            same |= {one: was for one, was in before.items() if equal(was, now.get(one.case))}
    return same


async def other_cases(
    recorded: Mapping[Wanted, Sequence[str]], on_event: OnEvent = lambda event: None
) -> dict[Wanted, list[dict[str, Any]]]:
    """The cases that are known to be launched otherwise today, with their launches as the recorded code makes them.

    ``recorded`` is as for ``same_cases``. Only where functions, grids or constants differ is anything compiled.
    """
    other: dict[Wanted, list[dict[str, Any]]] = {}
    with tempfile.TemporaryDirectory(prefix="tilescope-recompiled-") as scratch:
        for (target, package), commits in _by_commit(recorded).items():
            ask = _Asking(target, Path(scratch), on_event)
            caught = await ask(package, _questions(commits), compiled=False)
            before: dict[Wanted, list[dict[str, Any]]] = {}
            for commit, every in commits.items():
                asked = [Question(one.case, recorded[one]) for one in every if caught.get(one.case)]
                there = await ask(package, asked, commit=commit, compiled=False)
                unlike = [one for one in asked if there.get(one.case) not in (None, caught[one.case])]
                compiled = await ask(package, unlike, commit=commit)
                before |= {one: made for one in every if (made := compiled.get(one.case))}
            now = await ask(package, [Question(case) for case in dict.fromkeys(one.case for one in before)])
            other |= {one: was for one, was in before.items() if now.get(one.case) and not equal(was, now[one.case])}
    return other


def equal(was: Compiled, now: Compiled) -> bool:
    """Whether two lists of launches are known and have the GPU do the same."""
    return bool(was and now) and _compared(was) == _compared(now)


def _compared(launches: Compiled) -> list[list[Any]]:
    return [[launch[name] for name in _COMPARED] for launch in launches or ()]


def _by_commit(wanted: Iterable[Wanted]) -> dict[tuple[str, Path], dict[str, list[Wanted]]]:
    """The cases by commit, of each target and package."""
    found: dict[tuple[str, Path], dict[str, list[Wanted]]] = {}
    for one in wanted:
        found.setdefault((one.target, one.package), {}).setdefault(one.commit, []).append(one)
    return found


def _questions(commits: Mapping[str, Iterable[Wanted]]) -> list[Question]:
    """One about each case."""
    return [Question(case) for case in dict.fromkeys(one.case for every in commits.values() for one in every)]


def _grids(found: Mapping[Case, Compiled]) -> dict[Case, list[Any]]:
    return {case: [launch["grid"] for launch in made] for case, made in found.items() if made}


class _Asking:
    """Asks processes for launches.

    Each commit, and today's code, has a cache of Triton's of its own in the folder ``scratch``: in one cache kernels that differ only
    in a constant of another module (``module.NAME``) would be taken for the same.
    """

    def __init__(self, target: str, scratch: Path, on_event: OnEvent) -> None:
        self.target, self.scratch, self.on_event = target, scratch, on_event

    async def __call__(
        self, package: Path, questions: Iterable[Question], commit: str = "", *, compiled: bool = True
    ) -> dict[Case, Compiled]:
        """Answers by case, as the package is here or was at ``commit``; fewer where the process dies."""
        asked = list(questions)
        if not asked:
            return {}
        try:
            tree = recorded_tree.take_out(commit, package, self.scratch / commit) if commit else package
        except OSError:
            return {}
        request = self.scratch / "request.json"
        cases = [[dataclasses.astuple(one.case), one.functions, one.grids] for one in asked]
        said = {"package": str(tree), "target": self.target, "compile": compiled, "cases": cases}
        request.write_text(json.dumps(said), encoding="utf-8")
        found = await self._answers(tree, request, asked, commit)
        return dict(zip((one.case for one in asked), found, strict=False))

    async def _answers(self, tree: Path, request: Path, asked: list[Question], commit: str) -> list[Compiled]:
        when = f"at {commit[:8]}" if commit else "today"
        cache = {"TRITON_CACHE_DIR": str(self.scratch / "triton" / (commit or "today"))}
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-m", _MODULE, str(request), limit=_LONGEST,
            env={**revisions.environment(tree), **ptxas.environment(), **cache},
            stdin=asyncio.subprocess.DEVNULL, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.DEVNULL,
        )  # fmt: skip
        found: list[Compiled] = []
        try:
            assert process.stdout is not None  # noqa: S101 - it is a pipe
            for index, question in enumerate(asked):
                about = {"index": index, "of": len(asked), "case": question.case.id, "doing": f"comparing, {when},"}
                self.on_event({"event": "case", "collector": "compiler", **about})
                line = await process.stdout.readline()
                if not line:
                    break
                found.append(json.loads(line))
            await process.wait()
        finally:
            if process.returncode is None:
                process.kill()
                await process.wait()
        return found
