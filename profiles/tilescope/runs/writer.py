"""Runs being written: rows in parts, a part a finished case, put together and renamed at the end.

A part that is damaged costs what it held and no more: the run says so, and the case is outstanding again.
Imports neither torch nor triton.
"""

from __future__ import annotations

import contextlib
import dataclasses
import errno
import fcntl
import gzip
import hashlib
import json
import os
import re
import secrets
import shutil
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import IO, Any

import pandas as pd

from tilescope.files import atomic_writing, bounded_reading, names
from tilescope.runs import journal, parquet
from tilescope.runs.reader import CONFIGS, LINES, LoadedRun, StoreError, read_frame, read_run
from tilescope.table import launch_configs, line_values, schema
from tilescope.table.case import Case
from tilescope.table.run import Failure, Run

PARTIAL = ".partial-"
_TABLE = "table.parquet"
#: Folders of parts, by the file that they are put together to.
_PARTS = {_TABLE: "parts", LINES: "line-parts", CONFIGS: "config-parts"}
#: What their rows are compared with.
_OF = {_TABLE: schema, LINES: line_values, CONFIGS: launch_configs}
#: What stands between a part's number, the collector and the case that it is of.
_AT = "@"
#: Owner of the rows that no collector made.
MODEL = "model"


def check_writable(folder: Path) -> None:
    """Raises StoreError unless runs can be written into ``folder``, which is made if it is missing."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        probe = folder / f".write-{secrets.token_hex(4)}"
        probe.touch()
        probe.unlink()
    except OSError as error:
        reason = error.strerror or str(error)
        raise StoreError(
            f"cannot write runs to {folder} ({reason}): set TILESCOPE_RUNS to a folder you may write to"
        ) from error


class RunWriter:
    """Writes one run. Every method leaves the disk in a state that ``recover`` can finish.

    Raises StoreError when the folder cannot be written.
    """

    def __init__(self, folder: Path, run: Run) -> None:
        try:
            names.file_name(run.id, "a run's id")
        except ValueError as error:
            raise StoreError(error) from error
        check_writable(folder)
        self.run = dataclasses.replace(run, complete=False)
        self.final = folder / run.id
        self.folder = folder / f"{PARTIAL}{run.id}"
        #: What the parts hold, by the file that they are put together to, and how many there are of each.
        self._frames: dict[str, list[pd.DataFrame]] = {name: [] for name in _PARTS}
        self._parts = dict.fromkeys(_PARTS, 0)
        self._sources: dict[str, dict[str, str]] = {}
        with self._explained():
            (self.folder / "parts").mkdir(parents=True)
            self._lock = lock(self.folder)
        self._describe()

    @classmethod
    def reopen(cls, folder: Path) -> RunWriter:
        """A writer that goes on with a run that is not complete, whether its writer died or was stopped.

        The cases in damaged parts are outstanding again, and noted. Raises StoreError when the run is whole, still
        being written, or cannot be read.
        """
        writer = cls.__new__(cls)
        writer.final = folder.with_name(folder.name.removeprefix(PARTIAL))
        writer.folder = folder.with_name(f"{PARTIAL}{writer.final.name}")
        writer._lock = _claim(folder)
        try:
            # Not before it is claimed: another process may be about to finish it.
            writer.run = read_run(folder)
            if writer.run.complete:
                (folder / ".lock").unlink(missing_ok=True)
                raise StoreError(f"{writer.run.id} is whole: there is nothing to go on with")
            with writer._explained():
                if folder == writer.final:
                    _unseal(folder, writer.folder)
            writer._parts = {
                name: max((_number(part) for part in parts(writer.folder, of)), default=0)
                for name, of in _PARTS.items()
            }
            kept = LoadedRun(writer.run, schema.frame([]), writer.folder).sources
            writer._sources = {kernel: dict(files) for kernel, files in kept.items()}
            writer._frames, lost = _read(writer.folder)
            if unknown := [part.name for part in lost if not _owner(part, writer.folder)]:
                raise StoreError(
                    f"part {unknown[0]} of {writer.run.id} is damaged and does not say what it held: keep the rest with "
                    f"'tilescope recover {writer.run.id}'"
                )
            with writer._explained():
                said = _forget(writer.folder, lost)
            if said:
                writer.update(notes=(*writer.run.notes, *said))
        except BaseException:
            writer._lock.close()
            raise
        return writer

    @property
    def rows(self) -> pd.DataFrame:
        """The rows written so far, but for those in parts that were damaged when the run was reopened."""
        return _joined(self._frames[_TABLE])

    def append(self, frame: pd.DataFrame, collector: str = "", case: Case | None = None) -> None:
        """Adds rows of the schema (their ``run_id`` is set here); they are on disk when this returns. ``collector`` and
        ``case`` say what is to be done again should the part be lost; ``MODEL`` of no case is what every run has.

        Raises SchemaError when the rows do not follow the schema.
        """
        run_id = pd.Series(self.run.id, index=frame.index, dtype="str")
        self._append(_TABLE, frame.assign(run_id=run_id), collector, case)

    def append_lines(self, kernel: str, frame: pd.DataFrame, sources: Mapping[str, str]) -> None:
        """Adds values of source lines and the text of the files that they speak of, by name.

        Raises SchemaError when the rows are not ``tilescope.table.line_values``'s.
        """
        self._append(LINES, frame)
        self.keep_sources({kernel: sources})

    def append_configs(self, frame: pd.DataFrame) -> None:
        """Adds configs of launches. Raises SchemaError when the rows are not ``tilescope.table.launch_configs``'s."""
        self._append(CONFIGS, frame)

    def _append(self, name: str, frame: pd.DataFrame, collector: str = "", case: Case | None = None) -> None:
        if frame.empty:
            return
        rows = _OF[name].validate(frame)
        self._parts[name] += 1
        with self._explained():
            folder = self.folder / _PARTS[name]
            folder.mkdir(exist_ok=True)
            parquet.write(rows, folder / _part(self._parts[name], collector, case))
        self._frames[name].append(rows)

    def keep_sources(self, kernels: Mapping[str, Mapping[str, str]]) -> None:
        """Keeps the text of each kernel's files, by name; of one that is kept already the first text stays."""
        new = {
            kernel: {**sources, **self._sources.get(kernel, {})}
            for kernel, sources in kernels.items()
            if sources.items() - self._sources.get(kernel, {}).items()
        }
        if new:
            self._sources |= new
            with self._explained():
                _write_sources(self._sources, self.folder / "sources.json.gz")

    def plan(self, cases: Iterable[Case]) -> None:
        """Notes the run's cases, so that it can go on when it is interrupted."""
        with self._explained():
            journal.begin(self.folder, cases)

    def settle(self, settled: journal.Settled) -> None:
        """Notes that a case needs no more of a collector."""
        with self._explained():
            journal.settle(self.folder, settled)

    def artefact_folder(self, collector: str) -> Path:
        """Where ``collector`` writes; made if it is missing."""
        try:
            folder = self.folder / "artefacts" / names.file_name(collector, "a collector's name")
        except ValueError as error:
            raise StoreError(error) from error
        with self._explained():
            folder.mkdir(parents=True, exist_ok=True)
        return folder

    def artefact_path(self, collector: str, case: Case, suffix: str) -> Path:
        """Where ``collector`` writes what it has to say about ``case``."""
        return self.artefact_folder(collector) / f"{case.slug}{suffix}"

    def fail(self, failure: Failure) -> None:
        """Notes a case that gave no result."""
        self.update(failures=(*self.run.failures, failure))

    def note(self, text: str) -> None:
        """Adds a remark about the whole run."""
        self.update(notes=(*self.run.notes, text))

    def update(self, **fields: Any) -> None:
        """Changes fields of the run's description, on disk too."""
        self.run = dataclasses.replace(self.run, **fields)
        self._describe()

    def finish(self, complete: bool = True, **fields: Any) -> Path:
        """Puts the table together, renames the folder to its final name and returns it: all of it is on disk then.

        ``fields`` of the run's description are changed as by ``update``.
        """
        self.update(complete=complete, **fields)
        with self._explained():
            final = _seal(self.folder, self.final, self._frames, complete)
        self._lock.close()
        return final

    def discard(self) -> None:
        """Removes the folder: for a run that holds nothing yet."""
        shutil.rmtree(self.folder, ignore_errors=True)
        self._lock.close()

    def _describe(self) -> None:
        with self._explained():
            _write_json(self.run.to_json(), self.folder / "run.json")

    @contextlib.contextmanager
    def _explained(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise StoreError(f"cannot write {self.folder} ({error.strerror}): its finished cases stay there") from error


def recover(folder: Path) -> Path:
    """Finishes a half-written run with the cases it has, marked incomplete, and returns its final folder.

    Raises StoreError when the run is still being written, or holds nothing that can be read.
    """
    with contextlib.ExitStack() as stack:
        stack.enter_context(_claim(folder))
        run = read_run(folder)
        try:
            found, lost = _read(folder)
            run = dataclasses.replace(run, complete=False, notes=(*run.notes, *_forget(folder, lost)))
            _write_json(run.to_json(), folder / "run.json")
            return _seal(folder, folder.with_name(folder.name.removeprefix(PARTIAL)), found, complete=False)
        except OSError as error:
            raise StoreError(f"cannot write {folder} ({error.strerror})") from error


def parts(folder: Path, kind: str = "parts") -> list[Path]:
    """The parts of a run that is being written, in order."""
    return sorted((folder / kind).glob("[0-9]*.parquet"))


def gathered(folder: Path) -> tuple[pd.DataFrame, list[Path]]:
    """The parts of a run that is being written, as one table, and those of them that are damaged."""
    found, lost = _read(folder)
    return _joined(found[_TABLE]), lost


def _read(folder: Path) -> tuple[dict[str, list[pd.DataFrame]], list[Path]]:
    """What the parts of a run hold, by the file that they are put together to, and the table's that are damaged.

    Those that stand beside the table come with the rows of their case, which is settled: what is damaged is left out.
    """
    found: dict[str, list[pd.DataFrame]] = {name: [] for name in _PARTS}
    lost = []
    for name, frames in found.items():
        for part in parts(folder, _PARTS[name]):
            try:
                frames.append(read_frame(part, _OF[name].validate, _OF[name].COLUMNS, folder))
            except (StoreError, FileNotFoundError):
                lost += [part] if name == _TABLE else []
    return found, lost


def _joined(found: list[pd.DataFrame]) -> pd.DataFrame:
    return pd.concat(found, ignore_index=True) if found else schema.frame([])


def _part(number: int, collector: str = "", case: Case | None = None) -> str:
    owner = [collector, case.slug if case else ""] if collector else []
    return _AT.join([f"{number:06d}", *owner]) + ".parquet"


def _number(part: Path) -> int:
    found = re.match(r"\d{1,9}", part.name)
    return int(found[0]) if found else 0


def _owner(part: Path, folder: Path) -> tuple[str, Case | None] | None:
    """The collector and the case whose rows a part holds; None where its name does not say so."""
    _, *owner = part.stem.split(_AT)
    if len(owner) != 2:
        return None
    if owner[0] == MODEL:
        return MODEL, None
    known = journal.read(folder)
    case = next((case for case in known.cases if case.slug == owner[1]), None) if known else None
    return (owner[0], case) if case else None


def _forget(folder: Path, lost: Iterable[Path]) -> list[str]:
    """Puts damaged parts aside, notes that what they held is to be done again, and says so, a line each."""
    said = []
    for part in lost:
        if owner := _owner(part, folder):
            collector, case = owner
            if case:
                journal.settle(folder, journal.Settled(collector, case.id, journal.LOST))
            held = f"{collector} {case.id if case else ''}".strip() + ", which is outstanding again"
        else:
            held = "finished cases, which are lost"
        said.append(f"part {part.name} is damaged: it held {held}")
        part.replace(part.with_suffix(".damaged"))
    return said


def _seal(folder: Path, final: Path, frames: Mapping[str, list[pd.DataFrame]], complete: bool) -> Path:
    """The table of all parts, then the rename that makes the run visible; only then may the parts go, which are on the disk."""
    for name, found in frames.items():
        if found or name == _TABLE:
            parquet.put(_joined(found), folder / name)
    if complete:
        (folder / journal.FILE).unlink(missing_ok=True)
    atomic_writing.rename(folder, final, synced=_PARTS.values())
    for parts_of in _PARTS.values():
        shutil.rmtree(final / parts_of, ignore_errors=True)
    (final / ".lock").unlink(missing_ok=True)
    return final


def _unseal(final: Path, folder: Path) -> None:
    """The reverse: what was put together is one part. At every moment one of both folders is whole."""
    for name, parts_of in _PARTS.items():
        if bounded_reading.is_inside(final / name, final):
            (final / parts_of).mkdir(exist_ok=True)
            shutil.copy2(final / name, final / parts_of / _part(1))
    atomic_writing.rename(final, folder)
    for name in _PARTS:
        (folder / name).unlink(missing_ok=True)


def _write_sources(kernels: Mapping[str, Mapping[str, str]], path: Path) -> None:
    """Each text once: the kernels of a family share their file."""
    digests = {text: hashlib.sha256(text.encode()).hexdigest() for files in kernels.values() for text in files.values()}
    data = {
        "kernels": {kernel: {name: digests[text] for name, text in files.items()} for kernel, files in kernels.items()},
        "texts": {digest: text for text, digest in digests.items()},
    }
    packed = gzip.compress(json.dumps(data).encode(), mtime=0)
    atomic_writing.replace(path, lambda to: to.write_bytes(packed))


def _write_json(data: dict[str, Any], path: Path) -> None:
    text = json.dumps(data, indent=1, ensure_ascii=False) + "\n"
    atomic_writing.replace(path, lambda to: to.write_bytes(text.encode(errors="backslashreplace")))


def lock(folder: Path) -> IO[str]:
    """A lock that holds as long as the writer lives; the system releases it when the process dies. Raises
    BlockingIOError where another process holds it.
    """
    # A link or a pipe of that name is none of ours.
    handle = os.fdopen(
        os.open(folder / ".lock", os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, 0o666), "w"
    )
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        handle.close()
        raise
    return handle


def _claim(folder: Path) -> IO[str]:
    try:
        return lock(folder)
    except BlockingIOError as error:
        raise StoreError(f"{folder.name.removeprefix(PARTIAL)} is still being written: wait for its job") from error
    except OSError as error:
        reason = ".lock is a link" if error.errno == errno.ELOOP else error.strerror
        raise StoreError(f"cannot write {folder} ({reason})") from error


def is_being_written(folder: Path) -> bool:
    """Whether a process holds the run."""
    try:
        lock(folder).close()
    except OSError as error:
        return isinstance(error, BlockingIOError)
    return False
