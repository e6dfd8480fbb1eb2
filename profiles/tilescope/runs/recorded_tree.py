"""Finds the commit whose code a recording measured, and takes the package of its kernels out of git.

A recording keeps the texts of files that launch something, and the revision. That is enough to import the kernels as they were,
where a commit has every text. Imports neither torch nor triton.
"""

from __future__ import annotations

import functools
import io
import subprocess
import tarfile
from collections.abc import Mapping
from hashlib import sha1
from pathlib import Path

from tilescope.runs import provenance

#: The most commits after a revision with uncommitted changes that are searched for these.
_MOST_COMMITS = 200


def commit(revision: str, texts: Mapping[str, str], package: Path) -> str:
    """The commit that has all ``texts``, by base name, in the package in the folder ``package``; empty where none is known.

    It is the ``revision`` (``git_revision``) that the run recorded or, where that had uncommitted changes, the first one since.
    """
    first = revision.rstrip("+")
    if not first or not texts:
        return ""
    wanted = frozenset((name, _digest(text)) for name, text in texts.items())
    commits = [first, *(_since(first, package) if provenance.changed_since(revision) else ())]
    return next((one for one in commits if wanted <= _blobs(one, package)), "")


def take_out(commit: str, package: Path, folder: Path) -> Path:
    """Writes the package as it was at the commit into ``folder``, and returns where it is. Raises OSError where git cannot."""
    packed = _git(package.parent, "archive", commit, package.name)
    if packed is None:
        raise OSError(f"git has no {package.name} of {commit}")
    with tarfile.open(fileobj=io.BytesIO(packed)) as files:
        files.extractall(folder, filter="data")
    return folder / package.name


def _digest(text: str) -> str:
    """Git's name of a file with this text."""
    content = text.encode()
    return sha1(b"blob %d\0" % len(content) + content, usedforsecurity=False).hexdigest()


@functools.lru_cache(maxsize=64)
def _since(first: str, package: Path) -> tuple[str, ...]:
    """The commits after ``first`` up to the present one, the oldest first."""
    said = _git(package, "rev-list", "--reverse", "--ancestry-path", f"{first}..HEAD")
    return tuple((said or b"").decode().split()[:_MOST_COMMITS])


@functools.lru_cache(maxsize=1024)
def _blobs(commit: str, package: Path) -> frozenset[tuple[str, str]]:
    """The package's files at a commit: base name and digest."""
    said = (_git(package, "ls-tree", "-r", commit, ".") or b"").decode()
    rows = (line.partition("\t") for line in said.splitlines())
    return frozenset((Path(name).name, about.split()[2]) for about, _, name in rows)


def _git(folder: Path, *arguments: str) -> bytes | None:
    """Git's output, or None where git fails or is not installed."""
    try:
        done = subprocess.run(["git", "-C", str(folder), *arguments], capture_output=True, timeout=60, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout if done.returncode == 0 else None
