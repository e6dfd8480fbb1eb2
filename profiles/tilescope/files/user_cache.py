"""What was found once and may be found again: small files in a person's cache folder, by a digest of all that decides them.

One that is missing, damaged or of another form is not there: callers find the value again. Imports neither torch nor triton.
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

#: Names the folder.
VARIABLE = "TILESCOPE_CACHE"
#: Files of one kind that are kept, and bytes of one that are read.
_KEPT, _LONGEST = 64, 32 << 20


def folder() -> Path:
    """Where such files go: ``$TILESCOPE_CACHE``, else ``$XDG_CACHE_HOME/tilescope``, else ``~/.cache/tilescope``."""
    if chosen := os.environ.get(VARIABLE):
        return Path(chosen).expanduser().absolute()
    cache = os.environ.get("XDG_CACHE_HOME")
    return (Path(cache) if cache else Path.home() / ".cache") / "tilescope"


def digest(parts: Iterable[Any]) -> str:
    """A digest of these values, of kinds that JSON can write: the name of what they decide."""
    return hashlib.sha256(json.dumps(list(parts), sort_keys=True).encode()).hexdigest()[:32]


def digest_of_code(root: Path) -> str:
    """Digest of every Python file in a package's folder, or of one file. Raises OSError where one cannot be read."""
    found = hashlib.sha256()
    for path in sorted(root.rglob("*.py")) if root.is_dir() else [root]:
        name, text = str(path.relative_to(root)).encode(), path.read_bytes()
        found.update(b"%d %b %d " % (len(name), name, len(text)) + text)
    return found.hexdigest()


def read(kind: str, key: str) -> Any:
    """The value written under that key; None where there is none."""
    with contextlib.suppress(OSError, ValueError, RecursionError):
        path = folder() / kind / f"{key}.json"
        if path.stat().st_size <= _LONGEST:
            said, _, text = path.read_bytes().partition(b"\n")
            if said.decode() == hashlib.sha256(text).hexdigest():
                return json.loads(text)
    return None


def write(kind: str, key: str, value: Any) -> None:
    """Keeps a value that JSON can write, in place of the oldest if there are many. Never raises."""
    with contextlib.suppress(OSError, ValueError):
        place = folder() / kind
        place.mkdir(parents=True, exist_ok=True)
        text = json.dumps(value).encode()
        # Each writer has a file of its own until it is whole.
        number, scratch = tempfile.mkstemp(dir=place, prefix=".", suffix=".part")
        try:
            with os.fdopen(number, "wb") as file:
                file.write(hashlib.sha256(text).hexdigest().encode() + b"\n" + text)
            Path(scratch).replace(place / f"{key}.json")
        except BaseException:
            Path(scratch).unlink(missing_ok=True)
            raise
        _forget(place)


def _forget(place: Path) -> None:
    written = sorted(((path.stat().st_mtime, path) for path in place.iterdir()), reverse=True)
    for _, path in written[_KEPT:]:
        path.unlink(missing_ok=True)
