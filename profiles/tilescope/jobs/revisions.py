"""Runs of a git revision: checks its source out into a temporary folder and profiles it with the Tilescope that is here.

Both sides of a comparison are thus measured by the same Tilescope. Each is profiled in a process of its own, because a process
imports a kernel's file once.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from tilescope.files import bounded_reading
from tilescope.jobs import warm
from tilescope.runs import store

#: The working tree as it is, with what is not committed.
WORKING_TREE = "."
#: Where a checkout of Tilescope itself has its kernels.
_LIBRARY = Path("kernels", "tilescope_kernels")


class RevisionError(ValueError):
    """A revision that cannot be profiled. The message is one line."""


def is_revision(name: str) -> bool:
    """Whether ``name`` is a commit of the repository around the current folder, or its working tree."""
    try:
        _commit(name)
    except RevisionError:
        return False
    return True


def profile(name: str, kernels: Sequence[str], runs: Path, options: Mapping[str, str]) -> store.LoadedRun:
    """Profiles ``kernels`` as they are at the revision ``name`` into a new run below ``runs``.

    A kernel is ``path/to/file.py:SPEC`` relative to the current folder; in a repository of Tilescope itself also a name of the
    catalog. ``options`` are those of ``tilescope profile`` (``collect``, ``target``, ``workload``, ``impl``); empty ones are left
    out. The command's output goes to standard error.

    Raises RevisionError for an unknown revision, and where nothing could be profiled.
    """
    commit, top, below = _commit(name), Path(_git("rev-parse", "--show-toplevel")), _git("rev-parse", "--show-prefix")
    if not kernels:
        raise RevisionError(f"name the kernels to profile at {name}: --kernel path/to/file.py:SPEC")
    with _checked_out(commit, top) as tree:
        library = tree / _LIBRARY
        named = [kernel for kernel in kernels if ".py" not in kernel]
        if named and not library.is_dir():
            raise RevisionError(
                f"{', '.join(named)} is of the installed library, the same at every revision: name path/to/file.py:SPEC"
            )
        words = ["profile", *kernels, "--runs", str(runs), "--title", name]
        for option, value in options.items():
            words += [f"--{option}", value] if value else []
        place = tree / below
        if not place.is_dir():
            raise RevisionError(f"{name} has no folder {below}: run this where both revisions have one")
        try:
            return recorded(words, place, environment(*([library.parent] if library.is_dir() else [])), runs)
        except RevisionError as error:
            raise RevisionError(f"{name} could not be profiled: {error}") from error


def recorded(words: Sequence[str], place: Path, variables: Mapping[str, str], runs: Path) -> store.LoadedRun:
    """The run that ``tilescope`` with these ``words`` makes below ``runs``, in the folder ``place`` and that environment.

    Its output goes to standard error. Raises RevisionError with its last line where it makes none.
    """
    known = set(runs.iterdir()) if runs.is_dir() else set()
    command = [sys.executable, "-m", "tilescope", *words]
    last = "it said nothing"
    with subprocess.Popen(
        command, cwd=place, env=variables, stdout=sys.stderr, stderr=subprocess.PIPE, text=True
    ) as done:
        for line in done.stderr or ():
            print(line, end="", file=sys.stderr, flush=True)
            last = line.strip() or last
    made = sorted(set(runs.iterdir()) - known) if runs.is_dir() else []
    finished = [path for path in made if not path.name.startswith(store.PARTIAL) and (path / "run.json").is_file()]
    if done.returncode not in (0, 1) or not finished:
        raise RevisionError(bounded_reading.one_line(last.removeprefix("tilescope: ")))
    return store.open_run(finished[-1])


def environment(*folders: Path) -> dict[str, str]:
    """The environment of a process that imports the packages in ``folders`` before those here."""
    searched = [*os.environ.get("PYTHONPATH", "").split(os.pathsep), *sys.path]
    here = dict.fromkeys(str(Path(entry).absolute()) for entry in searched if entry and Path(entry).is_dir())
    # A fork server would keep modules of a folder that is removed afterwards.
    return {**os.environ, "PYTHONPATH": os.pathsep.join([*map(str, folders), *here]), warm.SWITCH: "0"}


@contextlib.contextmanager
def _checked_out(commit: str, top: Path) -> Iterator[Path]:
    """A temporary folder with the commit's files; the working tree itself where ``commit`` is empty."""
    if not commit:
        yield top
        return
    with tempfile.TemporaryDirectory(prefix="tilescope-revision-") as folder:
        tree = Path(folder) / top.name
        _git("-C", str(top), "worktree", "add", "--detach", str(tree), commit)
        try:
            yield tree
        finally:
            _git("-C", str(top), "worktree", "remove", "--force", str(tree))


def _commit(name: str) -> str:
    """The commit's digest; empty for the working tree. Raises RevisionError for an unknown name."""
    if name == WORKING_TREE:
        _git("rev-parse", "--show-toplevel")
        return ""
    return _git("rev-parse", "--verify", "--quiet", "--end-of-options", f"{name}^{{commit}}")


def _git(*arguments: str) -> str:
    try:
        done = subprocess.run(["git", *arguments], capture_output=True, text=True, check=False)
    except OSError as error:
        raise RevisionError("git is not installed") from error
    if done.returncode:
        said = (done.stderr.strip().splitlines() or [""])[-1]
        raise RevisionError(f"git {arguments[0]} failed: {bounded_reading.one_line(said)}")
    return done.stdout.strip()
