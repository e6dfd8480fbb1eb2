"""Finds, lists and opens runs. ``reader`` reads a run's folder, ``writer`` writes one.

A run is a folder. ``run.json`` is its description, ``table.parquet`` its table, and ``artefacts/<collector>/`` holds the
collectors' artefacts. ``lines.parquet`` has values of source lines, ``sources.json.gz`` the texts of those files at the time,
and ``configs.parquet`` the config of each Triton launch.

While a run is being written, its folder is called ``.partial-<id>``. Its rows are in ``parts/`` (``line-parts/``,
``config-parts/``), one file for each finished case, so that nothing is lost if the process dies. ``progress.jsonl`` is its
journal, which an interrupted run keeps. At the end the folder is renamed. Imports neither torch nor triton.
"""

from __future__ import annotations

import contextlib
import dataclasses
import difflib
import os
import re
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from datetime import UTC, datetime
from pathlib import Path

import pandas as pd

from tilescope.files import bounded_reading
from tilescope.runs import device_roofs, journal, labels, summaries
from tilescope.runs.places import StoreError, check_writable, runs_dir
from tilescope.runs.reader import LINES, LoadedRun, is_step, read_run, read_table, source_bytes, source_file, text_of
from tilescope.runs.summaries import Summary
from tilescope.runs.writer import MODEL, PARTIAL, RunWriter, gathered, is_being_written, parts, recover
from tilescope.table import launch_configs, schema
from tilescope.table.run import Run
from tilescope.table.sources import SOURCES

__all__ = [
    "LATEST", "LINES", "MODEL", "PARTIAL", "LoadedRun", "RunWriter", "StoreError", "Summary", "check_writable", "find",
    "find_half_written", "find_interrupted", "list_runs", "new_id", "open_partial", "open_run", "read_run", "recorded_dir",
    "recover", "runs_dir", "source_bytes", "source_file", "text_of",
]  # fmt: skip

#: The name for the newest run.
LATEST = "latest"
_ID = re.compile(r"\d{8}-\d{6}-[0-9a-f]{4,}")
#: Parts of a second in an id, a lock for new ids, and the last one of this process.
_PARTS, _NEW = 1 << 16, threading.Lock()
_last = 0


def recorded_dir() -> Path:
    """The recordings that come with Tilescope: beside the package in a checkout, inside it in a wheel."""
    package = Path(__file__).resolve().parents[1]
    checkout = package.parent / "recorded"
    return checkout if checkout.is_dir() else package / "recorded"


def new_id() -> str:
    """A new run id that sorts by time: ``20261120-221530-3fa9`` (UTC). Its end is the fraction of the second."""
    global _last  # noqa: PLW0603 - one for the process
    with _NEW:
        _last = max(int(time.time() * _PARTS), _last + 1)
        return f"{datetime.fromtimestamp(_last // _PARTS, UTC):%Y%m%d-%H%M%S}-{_last % _PARTS:04x}"


def open_run(path: Path | str) -> LoadedRun:
    """Opens the run in the folder ``path``. Raises StoreError, which says what is wrong and what to do."""
    folder = Path(path)
    run, table = _read(folder)
    loaded = LoadedRun(device_roofs.settled(run, recorded_dir()), table, folder)
    table, said = launch_configs.without_guesses(table, loaded.configs)
    if not said and not loaded.damage:
        return loaded
    notes = (*loaded.run.notes, *said, *filter(None, [loaded.damage]))
    return dataclasses.replace(loaded, run=dataclasses.replace(loaded.run, notes=notes), table=table)


def _read(folder: Path) -> tuple[Run, pd.DataFrame]:
    """Reads a run's description and its table. Raises StoreError as ``open_run``."""
    if not folder.is_dir():
        raise StoreError(f"no run at {folder}: 'tilescope show' lists the runs there are")
    if folder.name.startswith(PARTIAL):
        raise StoreError(half_written(folder))
    return read_run(folder), read_table(folder / "table.parquet", folder)


def open_partial(folder: Path) -> tuple[LoadedRun, list[str]]:
    """Opens the finished cases of a half-written run, which is not changed. Returns them with messages of one line each.

    Raises StoreError where the description cannot be read.
    """
    run = dataclasses.replace(read_run(folder), complete=False)
    table, lost = gathered(folder)
    said = [half_written(folder), *(f"part {part.name} is damaged, and what it held is lost" for part in lost)]
    return LoadedRun(run, table, folder), said


def address(folder: Path) -> str:
    """What ``find`` finds a run by: its id, or its folder where that lies elsewhere than runs do."""
    return folder.name if folder.parent.absolute() == runs_dir().absolute() else str(folder)


def find(text: str, folders: Iterable[Path] | None = None) -> Path:
    """The folder of the run that ``text`` names: a path, an id, the unique start of one, or ``latest``.

    ``latest`` is the user's newest run, finished or not, or the newest recording where there is none. Raises StoreError where
    no run fits or several do.
    """
    if os.sep in text or text in (".", ".."):
        if not _is_folder(text):
            raise StoreError(f"no run at {text}: 'tilescope show' lists the runs there are")
        return Path(text)
    known = {path.name.removeprefix(PARTIAL): path for path in reversed(list(_folders(folders)))}
    if text in known:
        return known[text]
    if _is_folder(text) and (Path(text) / "run.json").is_file():
        return Path(text)
    if text == LATEST:
        newest = _newest(folders)
        if not newest:
            raise StoreError("there are no runs yet: make one with 'tilescope profile softmax'")
        return newest[0]
    starts = [name for name in known if text and name.startswith(text)]
    if len(starts) == 1:
        return known[starts[0]]
    if starts:
        raise StoreError(f"{text!r} fits {len(starts)} runs ({', '.join(sorted(starts)[:4])}): give more of the id")
    close = difflib.get_close_matches(text, known, n=1)
    hint = f"did you mean {close[0]!r}?" if close else "'tilescope show' lists the runs there are"
    raise StoreError(f"no run {text!r}: {hint}")


def find_interrupted(text: str) -> Path:
    """As ``find``, but ``latest`` is the user's newest run that was interrupted and has a journal."""
    return _latest_that(_is_interrupted, "was interrupted, so there is none to go on with", text)


def find_half_written(text: str) -> Path:
    """As ``find``, but ``latest`` is the user's newest run whose writer died."""
    return _latest_that(_is_half_written, "is half-written, so there is none to recover", text)


def _latest_that(wanted: Callable[[Path], bool], none: str, text: str) -> Path:
    if text != LATEST:
        return find(text)
    for path in _newest(None):
        if not _is_recorded(path) and wanted(path):
            return path
    raise StoreError(f"no run in {runs_dir()} {none}: 'tilescope show' lists the runs there are")


def _newest(folders: Iterable[Path] | None) -> list[Path]:
    """Runs, newest first: the user's own, then recordings."""

    def age(path: Path) -> tuple[bool, bool, str]:
        name = path.name.removeprefix(PARTIAL)
        return not _is_recorded(path), _ID.match(name) is not None, name

    return sorted(_folders(folders), key=age, reverse=True)


def _is_recorded(path: Path) -> bool:
    return path.parent == recorded_dir()


def _is_half_written(path: Path) -> bool:
    return path.name.startswith(PARTIAL) and not is_being_written(path)


def _is_interrupted(path: Path) -> bool:
    if not journal.kept(path):
        return False
    if path.name.startswith(PARTIAL):
        return _is_half_written(path)
    try:
        run = read_run(path)
        return not run.complete or any(one.limited for one in run.skipped)
    except StoreError:
        return False


def list_runs(folders: Iterable[Path] | None = None) -> list[Summary]:
    """Every run in the folders, by default the user's and the recordings, newest first. Never raises.

    A run that cannot be opened is listed with its ``error``.
    """
    paths = list(_folders(folders))
    # A run that is being written is not cached: its summary changes.
    known = summaries.of_runs([path for path in paths if not path.name.startswith(PARTIAL)], _summarise)
    found = [*known, *(_summarise(path) for path in paths if path.name.startswith(PARTIAL))]
    home = recorded_dir()
    found = [_labelled(summary, summary.path.parent == home) for summary in found]
    # The digits of a time and of an id sort alike: 20261120221530.
    return sorted(found, key=lambda one: (re.sub(r"\D", "", one.started or one.id)[:14], one.id), reverse=True)


def _labelled(summary: Summary, recorded: bool) -> Summary:
    """The summary with what its user says of the run; recordings have no labels."""
    said = labels.Labels() if recorded else labels.read(summary.path)
    title = said.name or summary.title
    return dataclasses.replace(summary, recorded=recorded, title=title, tags=said.tags, note=said.note)


def _is_folder(text: str) -> bool:
    with contextlib.suppress(OSError):  # a text that is too long for a path
        return Path(text).is_dir()
    return False


def _folders(folders: Iterable[Path] | None) -> Iterator[Path]:
    for folder in (runs_dir(), recorded_dir()) if folders is None else folders:
        with contextlib.suppress(OSError):
            yield from (path for path in sorted(folder.iterdir()) if _looks_like_run(path))


def _looks_like_run(path: Path) -> bool:
    name = path.name.removeprefix(PARTIAL)
    try:
        if not path.is_dir():
            return False
        return bool(_ID.fullmatch(name)) or (path / "run.json").is_file() or (path / "table.parquet").is_file()
    except OSError:
        return bool(_ID.fullmatch(name))


def _summarise(path: Path) -> Summary:
    name = bounded_reading.one_line(path.name.removeprefix(PARTIAL))
    try:
        if path.resolve().parent != path.parent.resolve():
            raise StoreError(f"{name} is a link out of the folder of runs: copy the run itself there")
        run, table = _read(path)
        if run.started:
            datetime.fromisoformat(run.started)  # what is no time must not reach the lists of runs
        sources, of_step = set(table["source"].unique()), is_step(path)
        return Summary(
            id=name,
            path=path,
            title=run.title,
            started=run.started,
            device=run.device.name,
            measured=run.device.measured,
            kernels=tuple(run.kernels),
            sources=tuple(source for source in SOURCES if source in sources),
            cases=0 if of_step else len(table[schema.CASE_COLUMNS].drop_duplicates()),
            failures=len(run.failures),
            complete=run.complete,
            triton=run.versions.get("triton", ""),
            of_step=of_step,
        )
    except StoreError as error:
        return Summary(id=name, path=path, error=str(error))
    except Exception as error:  # one run's error must not keep the others from being listed
        return Summary(
            id=name, path=path, error=f"{name} cannot be read ({bounded_reading.one_line(error)}): record it again"
        )


def half_written(folder: Path) -> str:
    """A message about a half-written run: it is still being written, or what to do with it."""
    name = folder.name.removeprefix(PARTIAL)
    if is_being_written(folder):
        return f"{name} is still being written: wait for its job"
    done = len(parts(folder))
    return (
        f"{name} is half-written, its writer died: go on with 'tilescope resume {name}', or keep what it has ({done} parts) "
        f"with 'tilescope recover {name}'"
    )
