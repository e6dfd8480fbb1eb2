"""Runs on disk: one folder a run, written beside its final name and renamed when whole.

``run.json`` says what was run, ``table.parquet`` holds the table, ``artefacts/<collector>/`` what the collectors wrote.
Where a collector knows single source lines there are ``lines.parquet`` with their values and ``sources.json.gz`` with the
text of the files as they were. While a run is being written it is called ``.partial-<id>`` and its rows lie in ``parts/``
(``line-parts/``), one file a finished case, so that nothing is lost with the process. ``progress.jsonl`` says what is done;
a run that was interrupted keeps it, to go on by. Imports neither torch nor triton.
"""

from __future__ import annotations

import contextlib
import dataclasses
import difflib
import fcntl
import functools
import gzip
import hashlib
import importlib.util
import json
import os
import re
import secrets
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import IO, Any

import pandas as pd

from tilescope import lines, progress, reached, schema
from tilescope.case import Case
from tilescope.schema import Failure, Run, SchemaError

PARTIAL = ".partial-"
LINES = "lines.parquet"
_ID = re.compile(r"\d{8}-\d{6}-[0-9a-f]{4,}")


class StoreError(ValueError):
    """A run that cannot be read or written. The message is one line that says what to do."""


@dataclass(frozen=True)
class LoadedRun:
    """A run read back: its description, its table and the folder it lies in."""

    run: Run
    table: pd.DataFrame
    folder: Path

    @functools.cached_property
    def lines(self) -> pd.DataFrame:
        """Values of source lines, as ``tilescope.lines`` describes them; empty where the run has none.

        Read when it is asked for first. Raises StoreError for a damaged file.
        """
        path = self.folder / LINES
        return _read_frame(path, lines.validate, lines.COLUMNS) if path.is_file() else lines.frame([])

    @functools.cached_property
    def sources(self) -> Mapping[str, Mapping[str, str]]:
        """The text of every kernel's source files by name, as they were when the run was made; empty where none were kept.

        Raises StoreError for a damaged file.
        """
        path = self.folder / "sources.json.gz"
        try:
            data = json.loads(gzip.decompress(path.read_bytes()))
            return {
                kernel: {name: data["texts"][digest] for name, digest in files.items()}
                for kernel, files in data["kernels"].items()
            }
        except FileNotFoundError:
            return {}
        except (OSError, EOFError, ValueError, LookupError, AttributeError) as error:
            raise StoreError(f"{path} cannot be read ({_line(error)}): the run is damaged, record it again") from error

    def source_text(self, kernel: str, file: str) -> str | None:
        """The text of ``file``, by name, as this run measured it; None when it was not kept and is not here unchanged."""
        kept = self.sources.get(kernel, {}).get(file)
        facts = self.run.kernels.get(kernel, {})
        path = source_file(str(facts.get("file", "")))
        if kept is not None or path is None or path.name != file:
            return kept
        return text_of(path, str(facts.get("sha256", "")))


@dataclass(frozen=True)
class Summary:
    """One line of a list of runs. ``error`` is empty, or says why the run cannot be opened and what to do."""

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


def runs_dir() -> Path:
    """Where runs go: ``$TILESCOPE_RUNS``, else ``$XDG_DATA_HOME/tilescope/runs``, else below ``~/.local/share``."""
    if chosen := os.environ.get("TILESCOPE_RUNS"):
        return Path(chosen).expanduser().absolute()
    data = os.environ.get("XDG_DATA_HOME")
    return (Path(data) if data else Path.home() / ".local" / "share") / "tilescope" / "runs"


def recorded_dir() -> Path:
    """The recordings that come with Tilescope: beside the package in a checkout, inside it in a wheel."""
    package = Path(__file__).resolve().parent
    checkout = package.parent / "recorded"
    return checkout if checkout.is_dir() else package / "recorded"


def new_id() -> str:
    """A fresh run id that sorts by time: ``20261120-221530-3fa9`` (UTC)."""
    return f"{datetime.now(UTC):%Y%m%d-%H%M%S}-{secrets.token_hex(2)}"


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
        check_writable(folder)
        self.run = dataclasses.replace(run, complete=False)
        self.final = folder / run.id
        self.folder = folder / f"{PARTIAL}{run.id}"
        self._parts = 0
        self._sources: dict[str, dict[str, str]] = {}
        with self._explained():
            (self.folder / "parts").mkdir(parents=True)
            self._lock = _lock(self.folder)
        self._describe()

    @classmethod
    def reopen(cls, folder: Path) -> RunWriter:
        """A writer that goes on with a run that is not complete, whether its writer died or was told to stop.

        Raises StoreError when the run is whole, still being written, or cannot be read.
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
            writer._parts = max((int(part.stem) for part in (writer.folder / "parts").glob("*.parquet")), default=0)
            kept = LoadedRun(writer.run, schema.frame([]), writer.folder).sources
            writer._sources = {kernel: dict(files) for kernel, files in kept.items()}
        except BaseException:
            writer._lock.close()
            raise
        return writer

    @property
    def rows(self) -> pd.DataFrame:
        """What was written so far. Raises StoreError for a part that is damaged."""
        return _joined(self.folder)

    def append(self, frame: pd.DataFrame) -> None:
        """Adds rows of the schema (their ``run_id`` is set here); they are on disk when this returns.

        Raises SchemaError when the rows do not follow the schema.
        """
        if frame.empty:
            return
        rows = schema.validate(frame.assign(run_id=pd.Series(self.run.id, index=frame.index, dtype="str")))
        self._parts += 1
        with self._explained():
            _write_table(rows, self.folder / "parts" / f"{self._parts:06d}.parquet")

    def append_lines(self, kernel: str, frame: pd.DataFrame, sources: Mapping[str, str]) -> None:
        """Adds values of source lines and the text of the files that they speak of, by name.

        Raises SchemaError when the rows are not ``tilescope.lines``'s.
        """
        with self._explained():
            if not frame.empty:
                folder = self.folder / "line-parts"
                folder.mkdir(exist_ok=True)
                _write_table(lines.validate(frame), folder / f"{len(list(folder.iterdir())) + 1:06d}.parquet")
        self.keep_sources({kernel: sources})

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
        """Notes what the run is of, so that it can go on when it is interrupted."""
        with self._explained():
            progress.begin(self.folder, cases)

    def settle(self, settled: progress.Settled) -> None:
        """Notes that a case needs no more of a collector."""
        with self._explained():
            progress.settle(self.folder, settled)

    def artefact_folder(self, collector: str) -> Path:
        """Where ``collector`` writes; made if it is missing."""
        folder = self.folder / "artefacts" / collector
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

    def finish(self, complete: bool = True) -> Path:
        """Puts the table together, renames the folder to its final name and returns it."""
        self.update(complete=complete)
        with self._explained():
            final = _seal(self.folder, self.final)
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
        run = dataclasses.replace(read_run(folder), complete=False)
        _write_json(run.to_json(), folder / "run.json")
        return _seal(folder, folder.with_name(folder.name.removeprefix(PARTIAL)))


def read_run(folder: Path) -> Run:
    """What a run says of itself, be it whole or half-written. Raises StoreError as ``open_run`` does."""
    path = folder / "run.json"
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
        if not isinstance(data, dict):
            raise SchemaError("run.json holds no object")
        return Run.from_json(data)
    except FileNotFoundError as error:
        raise StoreError(f"{folder} is not a whole run: run.json is missing; record it again") from error
    except SchemaError as error:
        raise StoreError(f"{folder}: {error}") from error
    except (OSError, ValueError) as error:
        raise StoreError(f"{path} cannot be read ({_line(error)}): the run is damaged, record it again") from error


def open_run(path: Path | str) -> LoadedRun:
    """The run in the folder ``path``. Raises StoreError, saying what is wrong with it and what to do."""
    folder = Path(path)
    if not folder.is_dir():
        raise StoreError(f"no run at {folder}: 'tilescope show' lists the runs there are")
    if folder.name.startswith(PARTIAL):
        raise StoreError(_half_written(folder))
    run = read_run(folder)
    table = _read_table(folder / "table.parquet")
    return LoadedRun(reached.raised(run, table), table, folder)


def find(text: str, folders: Iterable[Path] | None = None) -> Path:
    """The folder of the run that ``text`` means: a path, an id, the unique start of one, or ``latest``.

    Raises StoreError when there is none or more than one.
    """
    if os.sep in text or text in (".", ".."):
        if not Path(text).is_dir():
            raise StoreError(f"no run at {text}: 'tilescope show' lists the runs there are")
        return Path(text)
    known = {path.name.removeprefix(PARTIAL): path for path in reversed(list(_folders(folders)))}
    if text in known:
        return known[text]
    if Path(text).is_dir() and (Path(text) / "run.json").is_file():
        return Path(text)
    if text == "latest":
        whole = [name for name, path in known.items() if not path.name.startswith(PARTIAL)]
        if not whole:
            raise StoreError("there are no runs yet: make one with 'tilescope profile softmax'")
        return known[max(whole, key=lambda name: (_ID.match(name) is not None, name))]
    starts = [name for name in known if text and name.startswith(text)]
    if len(starts) == 1:
        return known[starts[0]]
    if starts:
        raise StoreError(f"{text!r} fits {len(starts)} runs ({', '.join(sorted(starts)[:4])}): give more of the id")
    close = difflib.get_close_matches(text, known, n=1)
    hint = f"did you mean {close[0]!r}?" if close else "'tilescope show' lists the runs there are"
    raise StoreError(f"no run {text!r}: {hint}")


def list_runs(folders: Iterable[Path] | None = None) -> list[Summary]:
    """Every run in the folders (the person's own and the recorded ones), newest first. Never raises.

    A run that cannot be opened is listed with its ``error``.
    """
    found = [_summary(path) for path in _folders(folders)]
    return sorted(found, key=lambda summary: (_digits(summary.started or summary.id), summary.id), reverse=True)


def text_of(path: Path, sha256: str) -> str | None:
    """The file's text, or None where its bytes are no longer those of ``sha256``. Raises OSError when it cannot be read."""
    content = path.read_bytes()
    return content.decode() if hashlib.sha256(content).hexdigest() == sha256 else None


def source_file(file: str) -> Path | None:
    """Where a kernel's recorded ``file`` lies here: below the installed package, or at its own path."""
    # Recordings of before 2026-11-22 name a study's file without its package.
    for name in (file, f"tilescope_kernels/{file}"):
        package, _, rest = name.partition("/")
        if package and rest:
            spec = importlib.util.find_spec(package) if package.isidentifier() else None
            for root in (spec.submodule_search_locations or []) if spec else []:
                if (Path(root) / rest).is_file():
                    return Path(root) / rest
    return Path(file) if file and Path(file).is_file() else None


def _folders(folders: Iterable[Path] | None) -> Iterable[Path]:
    for folder in (runs_dir(), recorded_dir()) if folders is None else folders:
        with contextlib.suppress(OSError):
            yield from (p for p in sorted(folder.iterdir()) if p.is_dir() and _looks_like_run(p))


def _looks_like_run(path: Path) -> bool:
    name = path.name.removeprefix(PARTIAL)
    return bool(_ID.fullmatch(name)) or (path / "run.json").is_file() or (path / "table.parquet").is_file()


def _summary(path: Path) -> Summary:
    files = tuple(path / name for name in ("run.json", "table.parquet"))
    stamp = tuple(file.stat().st_mtime_ns if file.is_file() else 0 for file in files)
    # What is said of a run that is being written changes with its writer.
    known = _summarise(path) if path.name.startswith(PARTIAL) else _remembered(path, stamp)
    return dataclasses.replace(known, recorded=path.parent == recorded_dir())


@functools.lru_cache(maxsize=4096)
def _remembered(path: Path, stamp: tuple[int, ...]) -> Summary:
    """A list of runs is asked for often, and reading every table for it takes seconds when there are many."""
    return _summarise(path)


def _summarise(path: Path) -> Summary:
    name = path.name.removeprefix(PARTIAL)
    try:
        if path.resolve().parent != path.parent.resolve():
            raise StoreError(f"{path.name} is a link out of the folder of runs: copy the run itself there")
        loaded = open_run(path)
    except (StoreError, OSError) as error:
        return Summary(id=name, path=path, error=str(error))
    run, table = loaded.run, loaded.table
    sources = set(table["source"])
    return Summary(
        id=name,
        path=path,
        title=run.title,
        started=run.started,
        device=run.device.name,
        measured=run.device.measured,
        kernels=tuple(run.kernels),
        sources=tuple(source for source in schema.SOURCES if source in sources),
        cases=len(table[schema.CASE_COLUMNS].drop_duplicates()),
        failures=len(run.failures),
        complete=run.complete,
    )


def _read_table(path: Path) -> pd.DataFrame:
    try:
        return _read_frame(path, schema.validate, schema.COLUMNS)
    except FileNotFoundError as error:
        raise StoreError(f"{path.parent} is not a whole run: table.parquet is missing; record it again") from error


def _read_frame(
    path: Path, validate: Callable[[pd.DataFrame], pd.DataFrame], columns: Mapping[str, str]
) -> pd.DataFrame:
    try:
        table = pd.read_parquet(path)
        return validate(table.astype({c: t for c, t in columns.items() if c in table.columns}))
    except FileNotFoundError:
        raise
    except SchemaError as error:
        raise StoreError(f"{path}: {error}; record it again") from error
    except Exception as error:  # pyarrow raises many kinds for a damaged file
        raise StoreError(f"{path} cannot be read ({_line(error)}): the run is damaged, record it again") from error


def _seal(folder: Path, final: Path) -> Path:
    """Parts to one table, then the rename that makes the run visible; only then may the parts go."""
    _write_table(_joined(folder), folder / "table.parquet")
    if by_line := sorted((folder / "line-parts").glob("*.parquet")):
        found = [_read_frame(part, lines.validate, lines.COLUMNS) for part in by_line]
        _write_table(pd.concat(found, ignore_index=True), folder / LINES)
    if read_run(folder).complete:
        (folder / progress.FILE).unlink(missing_ok=True)
    folder.rename(final)
    for parts_of in ("parts", "line-parts"):
        shutil.rmtree(final / parts_of, ignore_errors=True)
    (final / ".lock").unlink(missing_ok=True)
    return final


def _unseal(final: Path, folder: Path) -> None:
    """The reverse: what was put together is one part. At every moment one of both folders is whole."""
    whole = {"parts": "table.parquet", "line-parts": LINES}
    for parts, name in whole.items():
        if (final / name).is_file():
            (final / parts).mkdir(exist_ok=True)
            shutil.copy2(final / name, final / parts / f"{1:06d}.parquet")
    final.rename(folder)
    for name in whole.values():
        (folder / name).unlink(missing_ok=True)


def _joined(folder: Path) -> pd.DataFrame:
    """The parts of a run that is being written, as one table."""
    parts = [_read_table(part) for part in sorted((folder / "parts").glob("*.parquet"))]
    return pd.concat(parts, ignore_index=True) if parts else schema.frame([])


def _write_table(table: pd.DataFrame, path: Path) -> None:
    scratch = path.with_suffix(".tmp")
    table.to_parquet(scratch, index=False, compression="zstd")
    scratch.replace(path)


def _write_sources(kernels: Mapping[str, Mapping[str, str]], path: Path) -> None:
    """Each text once: the kernels of a family share their file."""
    digests = {text: hashlib.sha256(text.encode()).hexdigest() for files in kernels.values() for text in files.values()}
    data = {
        "kernels": {kernel: {name: digests[text] for name, text in files.items()} for kernel, files in kernels.items()},
        "texts": {digest: text for text, digest in digests.items()},
    }
    scratch = path.with_suffix(".tmp")
    scratch.write_bytes(gzip.compress(json.dumps(data).encode(), mtime=0))
    scratch.replace(path)


def _write_json(data: dict[str, Any], path: Path) -> None:
    scratch = path.with_suffix(".tmp")
    scratch.write_text(json.dumps(data, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    scratch.replace(path)


def _lock(folder: Path) -> IO[str]:
    """Held as long as the writer lives; the system lets go of it when the process dies."""
    handle = (folder / ".lock").open("w")
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        handle.close()
        raise
    return handle


def _claim(folder: Path) -> IO[str]:
    try:
        return _lock(folder)
    except BlockingIOError as error:
        raise StoreError(f"{folder.name.removeprefix(PARTIAL)} is still being written: wait for its job") from error
    except OSError as error:
        raise StoreError(f"cannot write {folder} ({error.strerror})") from error


def _half_written(folder: Path) -> str:
    name = folder.name.removeprefix(PARTIAL)
    try:
        _lock(folder).close()
    except BlockingIOError:
        return f"{name} is still being written: wait for its job"
    except OSError:
        return f"{name} is half-written: its writer died"
    done = len(list((folder / "parts").glob("*.parquet")))
    return (
        f"{name} is half-written, its writer died: go on with 'tilescope resume {name}', or keep what it has ({done} parts) "
        f"with 'tilescope recover {name}'"
    )


def _digits(when: str) -> str:
    """``2026-11-20T22:15:30+00:00`` and an id of that moment sort alike."""
    return re.sub(r"\D", "", when)[:14]


def _line(error: BaseException) -> str:
    return " ".join(str(error).split())[:200] or type(error).__name__
