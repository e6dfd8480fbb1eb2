"""The git revision of a kernel's source."""

from __future__ import annotations

import subprocess
from pathlib import Path


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
