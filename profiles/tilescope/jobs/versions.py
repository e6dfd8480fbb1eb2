"""Versions of the software that takes part in a run, and its git revision. Imports neither torch nor triton."""

from __future__ import annotations

import contextlib
import platform
import re
import subprocess
from functools import cache
from pathlib import Path

from tilescope.files import user_cache
from tilescope.hardware import device
from tilescope.version import VERSION


def versions() -> dict[str, str]:
    found = {"python": platform.python_version(), "tilescope": VERSION, **device.installed()}
    if driver := device.driver():
        found["driver"] = driver
    if ncu := device.find_ncu():
        version = re.search(r"Version\s+(\S+)", version_text(ncu))
        found["ncu"] = version[1] if version else "unknown"
    return found


def version_text(program: str) -> str:
    """The program's output for ``--version``; empty where it cannot be run. Cached until its file changes."""
    try:
        seen = Path(program).resolve().stat()
    except OSError:
        return ""
    return known_text(program, seen.st_mtime_ns, seen.st_size)


@cache
def known_text(program: str, changed: int, size: int) -> str:
    """``version_text`` of the program whose file was changed then and has this size; empty after 30 s."""
    key = user_cache.digest([program, changed, size])
    said = user_cache.read("versions", key)
    if isinstance(said, str):
        return said
    with contextlib.suppress(OSError, subprocess.TimeoutExpired):
        command = [program, "--version"]
        if said := subprocess.run(command, capture_output=True, text=True, timeout=30, check=False).stdout:
            user_cache.write("versions", key, said)
            return str(said)
    return ""


def git_revision(file: Path) -> str:
    """Revision of the repository that tracks ``file``, with ``+`` for uncommitted changes; empty where none does."""
    tracked = _git(file.parent, "ls-files", "--error-unmatch", file.name)
    revision = _git(file.parent, "rev-parse", "HEAD") if tracked else None
    if not revision:
        return ""
    return revision + ("+" if _git(file.parent, "status", "--porcelain", "--untracked-files=no") else "")


def _git(folder: Path, *arguments: str) -> str | None:
    """Git's output, or None where git fails or is not installed."""
    try:
        done = subprocess.run(
            ["git", "-C", str(folder), *arguments], capture_output=True, text=True, timeout=10, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.strip() if done.returncode == 0 else None
