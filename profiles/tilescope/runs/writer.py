"""Writes runs: rows in parts, one for each finished case, which are joined at the end before the folder is renamed.

A damaged part loses only its own rows: the run notes it, and the case is outstanding again. Imports neither torch nor triton.
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
import shutil
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import IO, Any, Self

import pandas as pd

from tilescope.files import atomic_writing, bounded_reading, json_shape, names
from tilescope.runs import journal, parquet
from tilescope.runs.places import StoreError, check_writable
from tilescope.runs.reader import CONFIGS, LINES, LoadedRun, read_frame, read_run
from tilescope.table import launch_configs, line_values, schema
from tilescope.table.case import Case
from tilescope.table.run import LONGEST_TITLE, Failure, Run

PARTIAL = ".partial-"
_TABLE = "table.parquet"
#: Folder of the parts of each file.
_PARTS = {_TABLE: "parts", LINES: "line-parts", CONFIGS: "config-parts"}
#: Module that validates the rows of each file.
_OF = {_TABLE: schema, LINES: line_values, CONFIGS: launch_configs}
#: Separates the number, the collector and the case in a part's name.
_AT = "@"
#: Most characters of the details of all failures together.
_MOST_DETAILS = 8 << 20
#: Owner of the rows without a collector.
MODEL = "model"


class RunWriter:
    """Writes one run. Every method leaves the disk in a state that ``recover`` can finish.

    Raises StoreError when the folder cannot be written.
    """

    def __init__(self, folder: Path, run: Run) -> None:
        try:
            names.file_name(run.id, "a run's id")
            # A run that could not be read is not begun.
            Run.from_json(_readable(run))
        except ValueError as error:
            raise StoreError(error) from error
        check_writable(folder)
        self.run = dataclasses.replace(run, complete=False)
        self.final = folder / run.id
        self.folder = folder / f"{PARTIAL}{run.id}"
        #: Frames of the parts of each file, and the number of parts.
        self._frames: dict[str, list[pd.DataFrame]] = {name: [] for name in _PARTS}
        self._parts = dict.fromkeys(_PARTS, 0)
        self._sources: dict[str, dict[str, str]] = {}
        with self._explained():
            (self.folder / "parts").mkdir(parents=True)
            self.lock_file = lock(self.folder)
        self._describe()

    @classmethod
    def reopen(cls, folder: Path, *, only_to_finish: bool = False) -> RunWriter:
        """A writer that continues a run whose writer died or was stopped, or of which a limit left cases out.

        Cases in damaged parts are outstanding again; the run's notes say so. Raises StoreError when the run is complete, still
        being written, or cannot be read; also where a part does not say what it held, unless the run is ``only_to_finish``.
        """
        writer = cls.__new__(cls)
        writer.final = folder.with_name(folder.name.removeprefix(PARTIAL))
        writer.folder = folder.with_name(f"{PARTIAL}{writer.final.name}")
        # Another process may have recovered it meanwhile.
        folder = next((place for place in (folder, writer.folder, writer.final) if place.is_dir()), folder)
        writer.lock_file = _claim(folder)
        try:
            # Only after it is claimed: another process may be about to finish it.
            writer.run = read_run(folder)
            if writer.run.complete and not _limited(writer.run) and not only_to_finish:
                (folder / ".lock").unlink(missing_ok=True)
                raise StoreError(f"{writer.run.id} is whole: there is nothing to go on with")
            writer.run = dataclasses.replace(writer.run, complete=False)
            with writer._explained():
                if folder == writer.final:
                    _unseal(folder, writer.folder)
            writer._parts = {
                name: max((_number(part) for part in parts(writer.folder, of)), default=0)
                for name, of in _PARTS.items()
            }
            kept = {} if only_to_finish else LoadedRun(writer.run, schema.frame([]), writer.folder).sources
            writer._sources = {kernel: dict(files) for kernel, files in kept.items()}
            writer._frames, lost = _read(writer.folder)
            unknown = [part.name for part in lost if not _owner(part, writer.folder)]
            if unknown and not only_to_finish:
                raise StoreError(
                    f"part {unknown[0]} of {writer.run.id} is damaged and does not say what it held: keep the rest with "
                    f"'tilescope recover {writer.run.id}'"
                )
            with writer._explained():
                said = _forget(writer.folder, lost)
            if said:
                writer.update(notes=(*writer.run.notes, *said))
        except BaseException:
            writer.lock_file.close()
            raise
        return writer

    @property
    def rows(self) -> pd.DataFrame:
        """The rows written so far, without those of parts that were damaged when the run was reopened."""
        return _joined(self._frames[_TABLE])

    def append(self, frame: pd.DataFrame, collector: str = "", case: Case | None = None) -> None:
        """Adds rows of the schema and sets their ``run_id``. They are in a file when this returns.

        ``collector`` and ``case`` say what has to be repeated if the part is lost; ``MODEL`` without a case marks rows that can
        be computed again. Raises SchemaError for invalid rows.
        """
        run_id = pd.Series(self.run.id, index=frame.index, dtype="str")
        self._append(_TABLE, frame.assign(run_id=run_id), collector, case)

    def append_lines(self, kernel: str, frame: pd.DataFrame, sources: Mapping[str, str]) -> None:
        """Adds values of source lines, and the texts of their files by name. Raises SchemaError for invalid rows."""
        self._append(LINES, frame)
        self.keep_sources({kernel: sources})

    def append_configs(self, frame: pd.DataFrame) -> None:
        """Adds configs of launches. Raises SchemaError for invalid rows."""
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
        """Keeps the texts of each kernel's files, by name. The first text of a file stays."""
        new = {
            kernel: {**sources, **self._sources.get(kernel, {})}
            for kernel, sources in kernels.items()
            if sources.items() - self._sources.get(kernel, {}).items()
        }
        if new:
            self._sources |= new
            with self._explained():
                write_sources(self._sources, self.folder / "sources.json.gz")

    def plan(self, cases: Iterable[Case]) -> None:
        """Notes the run's cases in the journal, so that an interrupted run can be resumed."""
        with self._explained():
            journal.begin(self.folder, cases)

    def settle(self, *settled: journal.Settled) -> None:
        """Notes in the journal that collectors are done with cases."""
        with self._explained():
            journal.settle(self.folder, *settled)

    def artefact_folder(self, collector: str) -> Path:
        """The folder of a collector's artefacts, created if it is missing. Raises StoreError for an invalid name."""
        try:
            folder = self.folder / "artefacts" / names.file_name(collector, "a collector's name")
        except ValueError as error:
            raise StoreError(error) from error
        with self._explained():
            folder.mkdir(parents=True, exist_ok=True)
        return folder

    def artefact_path(self, collector: str, case: Case, suffix: str) -> Path:
        return self.artefact_folder(collector) / f"{case.slug}{suffix}"

    def fail(self, failure: Failure) -> None:
        self.update(failures=(*self.run.failures, failure))

    def note(self, text: str) -> None:
        self.update(notes=(*self.run.notes, text))

    def update(self, **fields: Any) -> None:
        """Changes fields of the run's description, on disk too."""
        self.run = dataclasses.replace(self.run, **fields)
        self._describe()

    def finish(self, complete: bool = True, **fields: Any) -> Path:
        """Joins the parts, renames the folder to its final name and returns it. All of it is on the disk then.

        ``fields`` of the description are changed as by ``update``.
        """
        self.update(complete=complete, **fields)
        with self._explained():
            final = _seal(self.folder, self.final, self._frames, complete and not _limited(self.run))
        self.lock_file.close()
        return final

    def discard(self) -> None:
        shutil.rmtree(self.folder, ignore_errors=True)
        self.lock_file.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *error: object) -> None:
        """Discards the run after an error."""
        if kind:
            self.discard()

    def _describe(self) -> None:
        text = json.dumps(_readable(self.run), indent=1, ensure_ascii=False) + "\n"
        content = text.encode(errors="backslashreplace")
        with self._explained():
            atomic_writing.replace(self.folder / "run.json", lambda to: to.write_bytes(content))

    @contextlib.contextmanager
    def _explained(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise StoreError(f"cannot write {self.folder} ({error.strerror}): its finished cases stay there") from error


def recover(folder: Path) -> Path:
    """Finishes a half-written run with its finished cases, marked incomplete, and returns its final folder.

    Raises StoreError where the run is still being written or cannot be read.
    """
    writer = RunWriter.reopen(folder, only_to_finish=True)
    try:
        return writer.finish(complete=False)
    finally:
        writer.lock_file.close()


def parts(folder: Path, kind: str = "parts") -> list[Path]:
    """The parts of a run that is being written, in order."""
    return sorted((folder / kind).glob("[0-9]*.parquet"))


def gathered(folder: Path) -> tuple[pd.DataFrame, list[Path]]:
    """The table of a run that is being written, and its damaged parts."""
    found, lost = _read(folder)
    return _joined(found[_TABLE]), lost


def _read(folder: Path) -> tuple[dict[str, list[pd.DataFrame]], list[Path]]:
    """Reads the parts of each file, and returns them with the damaged parts of the table.

    Damaged parts of the other files are dropped: the cases that they belong to are settled.
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
    """The collector and the case of a part's rows; None where the part's name lacks them."""
    _, *owner = part.stem.split(_AT)
    if len(owner) != 2:
        return None
    if owner[0] == MODEL:
        return MODEL, None
    known = journal.read(folder)
    case = next((case for case in known.cases if case.slug == owner[1]), None) if known else None
    return (owner[0], case) if case else None


def _forget(folder: Path, lost: Iterable[Path]) -> list[str]:
    """Renames damaged parts, notes in the journal that their cases are outstanding, and returns a line about each."""
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


def _limited(run: Run) -> bool:
    """Whether a limit left out cases, which a resumed run takes up."""
    return any(one.limited for one in run.skipped)


def _seal(folder: Path, final: Path, frames: Mapping[str, list[pd.DataFrame]], done: bool) -> Path:
    """Joins the parts and renames the folder once the joined ones are on the disk. The parts are removed only then.

    The journal is removed where everything is ``done``.
    """
    for name, found in frames.items():
        if found or name == _TABLE:
            parquet.put(_joined(found), folder / name)
    if done:
        (folder / journal.FILE).unlink(missing_ok=True)
    atomic_writing.rename(folder, final, without=_PARTS.values())
    for parts_of in _PARTS.values():
        shutil.rmtree(final / parts_of, ignore_errors=True)
    (final / ".lock").unlink(missing_ok=True)
    return final


def _unseal(final: Path, folder: Path) -> None:
    """Reverses ``_seal``: each joined file becomes one part. At any moment one of the two folders is complete."""
    for name, parts_of in _PARTS.items():
        if bounded_reading.is_inside(final / name, final):
            (final / parts_of).mkdir(exist_ok=True)
            shutil.copy2(final / name, final / parts_of / _part(1))
    atomic_writing.rename(final, folder)
    for name in _PARTS:
        (folder / name).unlink(missing_ok=True)


def digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def write_sources(kernels: Mapping[str, Mapping[str, str]], path: Path, *, pooled: bool = False) -> None:
    """Writes each text once: kernels of a family share files. Texts that are ``pooled`` are left out."""
    digests = {text: digest(text) for files in kernels.values() for text in files.values()}
    data = {
        "kernels": {kernel: {name: digests[text] for name, text in files.items()} for kernel, files in kernels.items()},
        "texts": {} if pooled else {digest: text for text, digest in digests.items()},
    }
    packed = gzip.compress(json.dumps(data).encode(), mtime=0)
    atomic_writing.replace(path, lambda to: to.write_bytes(packed))


def _readable(run: Run) -> dict[str, Any]:
    """The description as it is written: without what ``read_run`` refuses, and with the first failures' details only."""
    left, failures = _MOST_DETAILS, []
    for failure in run.failures:
        left -= len(failure.detail)
        failures.append(failure if left >= 0 else dataclasses.replace(failure, detail=""))
    title = run.title if len(run.title) <= LONGEST_TITLE else f"{run.title[: LONGEST_TITLE - 1]}…"
    written = dataclasses.replace(run, title=title, failures=tuple(failures))
    found: dict[str, Any] = json_shape.storable(written.to_json())
    return found


def lock(folder: Path) -> IO[str]:
    """Locks the run. The system releases the lock when the process dies. Raises BlockingIOError where another process holds it,
    and OSError where the file cannot be opened.
    """
    # A link or a pipe of that name is not ours.
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
    try:
        lock(folder).close()
    except OSError as error:
        return isinstance(error, BlockingIOError)
    return False
