"""Caches JSON values in small files of the user's cache folder, each named by a digest of what the value depends on.

A missing or damaged file counts as absent: callers compute the value again. Imports neither torch nor triton.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import tempfile
from collections.abc import Iterable
from pathlib import Path
from typing import Any

#: The environment variable that names the folder.
VARIABLE = "TILESCOPE_CACHE"
#: Most files of one kind, and most bytes of one.
MOST, _LONGEST = 64, 32 << 20


def folder() -> Path:
    """The cache folder: ``$TILESCOPE_CACHE``, else ``$XDG_CACHE_HOME/tilescope``, else ``~/.cache/tilescope``."""
    if chosen := os.environ.get(VARIABLE):
        return Path(chosen).expanduser().absolute()
    cache = os.environ.get("XDG_CACHE_HOME")
    return (Path(cache) if cache else Path.home() / ".cache") / "tilescope"


def digest(parts: Iterable[Any]) -> str:
    """A digest of values that JSON can encode."""
    return hashlib.sha256(json.dumps(list(parts), sort_keys=True).encode()).hexdigest()[:32]


def digest_of_code(root: Path) -> str:
    """A digest of one file, or of every Python file in a folder and below. Raises OSError for a file that cannot be read."""
    found = hashlib.sha256()
    for path in sorted(root.rglob("*.py")) if root.is_dir() else [root]:
        name, text = str(path.relative_to(root)).encode(), path.read_bytes()
        found.update(b"%d %b %d " % (len(name), name, len(text)) + text)
    return found.hexdigest()


def read(kind: str, key: str) -> Any:
    """The value cached under that key, or None."""
    with contextlib.suppress(OSError, ValueError, RecursionError):
        path = folder() / kind / f"{key}.json"
        if path.stat().st_size <= _LONGEST:
            said, _, text = path.read_bytes().partition(b"\n")
            if said.decode() == hashlib.sha256(text).hexdigest():
                return json.loads(text)
    return None


def write(kind: str, key: str, value: Any) -> None:
    """Caches a value that JSON can encode, and drops the oldest of its kind beyond the limit. A failure to write is ignored."""
    with contextlib.suppress(OSError, ValueError):
        place = folder() / kind
        place.mkdir(parents=True, exist_ok=True)
        text = json.dumps(value).encode()
        # Each writer has a file of its own, renamed when it is complete.
        number, scratch = tempfile.mkstemp(dir=place, prefix=".", suffix=".part")
        try:
            with os.fdopen(number, "wb") as file:
                file.write(hashlib.sha256(text).hexdigest().encode() + b"\n" + text)
            Path(scratch).replace(place / f"{key}.json")
        except BaseException:
            Path(scratch).unlink(missing_ok=True)
            raise
        for old in sorted(place.iterdir(), key=lambda path: path.stat().st_mtime, reverse=True)[MOST:]:
            old.unlink(missing_ok=True)
