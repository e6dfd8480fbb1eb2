"""Summaries of runs for lists, cached in this process and in the user's cache folder.

A summary needs the whole table of its run: without the caches a list of the recordings takes a second. Imports neither torch
nor triton.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tilescope.files import bounded_reading, json_shape, user_cache
from tilescope.version import VERSION

#: Folders of this package whose code makes summaries: the cache key has a digest of them.
_DECIDING = ("files", "hardware", "runs", "table")
#: The kind of file in the cache folder.
_KIND = "run-summaries"


@dataclass(frozen=True)
class Summary:
    """A run in a list. A user's name for it is its ``title``. ``error`` says why the run cannot be opened and what to do; it is empty otherwise.

    ``triton`` is the version of Triton that compiled the kernels. A run ``of_step`` is of a model's step: it has neither kernels nor cases.
    """

    id: str
    path: Path
    title: str = ""
    started: str = ""
    device: str = ""
    measured: bool = False
    kernels: tuple[str, ...] = ()
    sources: tuple[str, ...] = ()
    cases: int = 0
    failures: int = 0
    complete: bool = True
    recorded: bool = False
    error: str = ""
    tags: tuple[str, ...] = ()
    note: str = ""
    triton: str = ""
    of_step: bool = False

    def in_one_line(self) -> tuple[str, str]:
        """The device, and the title or else the kernels with the tags, both as printable text."""
        one_line = bounded_reading.one_line
        device = self.device if self.measured or not self.device else f"predicted for {self.device}"
        tags = f" [{', '.join(self.tags)}]" if self.tags else ""
        return one_line(device), one_line((self.title or ", ".join(self.kernels)) + tags)


#: Modification times and sizes of the files that a summary depends on.
Stamp = tuple[tuple[int, int], ...]
#: Summaries that this process knows.
_known: dict[Path, tuple[Stamp, Summary]] = {}


def of_runs(paths: Iterable[Path], make: Callable[[Path], Summary]) -> list[Summary]:
    """The summary of each run: from a cache where the run's files are unchanged, otherwise by ``make``."""
    stamps = {path: stamp(path) for path in paths}
    missing = [path for path in stamps if path not in _known or _known[path][0] != stamps[path]]
    for place in {path.parent for path in missing}:
        kept, here = _read(place), [path for path in missing if path.parent == place]
        same = {path: kept[path] for path in here if path in kept and kept[path][0] == stamps[path]}
        made = {path: (stamps[path], make(path)) for path in here if path not in same}
        _known.update(same | made)
        if any(not summary.error for _, summary in made.values()):
            _write(place, kept | made)
    return [_known[path][1] for path in stamps]


def stamp(path: Path) -> Stamp:
    """The stamp of the run in a folder. A missing file counts as ``(0, 0)``."""
    return tuple(_state(path / name) for name in ("run.json", "table.parquet"))


def _state(file: Path) -> tuple[int, int]:
    try:
        found = file.stat()
    except OSError:
        return 0, 0
    return found.st_mtime_ns, found.st_size


@functools.cache
def _code() -> str:
    package = Path(__file__).resolve().parents[1]
    return user_cache.digest([VERSION, *(user_cache.digest_of_code(package / name) for name in _DECIDING)])


def _key(place: Path) -> str:
    return user_cache.digest([str(place.absolute()), _code()])


def _read(place: Path) -> dict[Path, tuple[Stamp, Summary]]:
    """Cached summaries of the runs in a folder; none where the cache is invalid."""
    found: dict[Path, tuple[Stamp, Summary]] = {}
    with contextlib.suppress(OSError, ValueError, TypeError, LookupError):
        for name, (when, said) in (user_cache.read(_KIND, _key(place)) or {}).items():
            summary = json_shape.fit({**said, "path": place / name}, Summary, name)
            found[place / name] = tuple((int(a), int(b)) for a, b in when), summary
    return found


def _write(place: Path, lines: dict[Path, tuple[Stamp, Summary]]) -> None:
    said: dict[str, Any] = {
        path.name: [when, {**dataclasses.asdict(summary), "path": ""}]
        for path, (when, summary) in lines.items()
        if not summary.error and path.is_dir()
    }
    user_cache.write(_KIND, _key(place), said)
