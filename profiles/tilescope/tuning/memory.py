"""What was timed once is known: a database of timings that processes share, and a file of winners that people commit.

One row is one config of one problem: the kernel's source digest, its shape class, the device, the versions. Pure; imports
neither torch nor triton.
"""

from __future__ import annotations

import contextlib
import json
import os
import sqlite3
import statistics
import time
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from tilescope.files import atomic_writing, bounded_reading, json_shape, user_cache

_TABLE = """CREATE TABLE IF NOT EXISTS timings (
    kernel TEXT, digest TEXT, shape TEXT, device TEXT, uuid TEXT, versions TEXT, config TEXT,
    samples TEXT NOT NULL, reason TEXT NOT NULL, at TEXT NOT NULL, facts TEXT NOT NULL DEFAULT '{}',
    PRIMARY KEY (digest, shape, device, uuid, versions, config))"""
_COLUMNS = "kernel, digest, shape, device, uuid, versions, config, samples, reason, at, facts"
_VALUES = ",".join("?" * len(_COLUMNS.split(",")))
#: Seconds to wait for another process that writes.
_PATIENCE = 10.0
_FORMAT = 1
#: The fact by which the config is remembered whose time stands for another's: it launches the same code alike.
LIKE = "like"
#: Facts that are measured, and so hold for what is launched alike.
_MEASURED = ("checked", "counted", "sm_clock")


@dataclass(frozen=True)
class Problem:
    """What a config is the best for.

    ``digest`` of the kernel's source with all that it calls, ``shape`` the class of shapes (the values of an autotuner's key),
    ``device`` the GPU's name and ``uuid`` which one it is, ``versions`` of what compiles and launches.
    """

    kernel: str
    digest: str
    shape: str
    device: str
    uuid: str
    versions: str


@dataclass(frozen=True)
class Timing:
    """One config's ``samples`` in seconds, or the ``reason`` why it has none or was dropped; ``at`` when (UTC).

    ``facts`` is what else was found out of it: what its kernels need, how right its result is.
    """

    samples: tuple[float, ...]
    reason: str
    at: str
    facts: Mapping[str, Any] = field(default_factory=dict)

    @property
    def median(self) -> float | None:
        """Seconds; None where it was not timed."""
        return statistics.median(self.samples) if self.samples else None


@dataclass(frozen=True)
class Winner:
    """The best config known of a problem: its ``config`` as text, ``median`` in seconds, over how many ``configs`` that were timed.

    ``launches`` are the launches that it makes, where they are known: ``function``, ``digest`` of its source, and ``arguments``
    by name, those of the config among them.
    """

    problem: Problem
    config: str
    median: float
    configs: int
    at: str
    launches: Sequence[Mapping[str, Any]] = ()


def as_data(problem: Problem) -> dict[str, str]:
    """The problem as JSON data; ``Problem(**data)`` reverses it."""
    return asdict(problem)


def usable(known: Mapping[str, Timing], configs: Collection[str]) -> dict[str, Timing]:
    """The timings of these configs, but for one that was taken over from a config that is not among them."""
    return {n: timing for n, timing in known.items() if n in configs and str(timing.facts.get(LIKE, n)) in configs}


def shared(timings: Mapping[str, Timing]) -> dict[str, Timing]:
    """The timings; one that was not timed because it is like another gets the samples and measurements of that one."""
    found = dict(timings)
    for name, timing in timings.items():
        like = timings.get(str(timing.facts.get(LIKE, "")))
        if like:
            measured = {fact: like.facts[fact] for fact in _MEASURED if fact in like.facts}
            found[name] = replace(timing, samples=like.samples, facts={**timing.facts, **measured})
    return found


class WinnersError(ValueError):
    """A file of winners that cannot be read. One line."""


def default_path() -> Path:
    """``$TILESCOPE_TUNING``, else ``tuning.sqlite3`` in the folder of what is kept (``user_cache.folder``)."""
    chosen = os.environ.get("TILESCOPE_TUNING")
    return Path(chosen).expanduser().absolute() if chosen else user_cache.folder() / "tuning.sqlite3"


class Memory:
    """The timings in the database at ``path``, which is made where it is missing. Processes and threads may share one file."""

    def __init__(self, path: Path | None = None) -> None:
        self.path = path or default_path()

    def known(self, problem: Problem) -> dict[str, Timing]:
        """What is known of a problem, by config, of exactly this device."""
        query = "SELECT config, samples, reason, at, facts FROM timings WHERE digest=? AND shape=? AND device=? AND uuid=? AND versions=?"
        key = (problem.digest, problem.shape, problem.device, problem.uuid, problem.versions)
        with self._open() as database:
            rows = database.execute(query, key).fetchall()
        return {
            config: Timing(tuple(json.loads(samples)), reason, at, json.loads(facts))
            for config, samples, reason, at, facts in rows
        }

    def keep(
        self,
        problem: Problem,
        timings: Mapping[str, tuple[Sequence[float], str]],
        facts: Mapping[str, Mapping[str, Any]] | None = None,
    ) -> None:
        """Notes samples, reason and facts of each config, in place of what was known of it."""
        at = datetime.now(UTC).isoformat(timespec="seconds")
        rows = [
            (
                *asdict(problem).values(),
                config,
                json.dumps(list(samples)),
                reason,
                at,
                json.dumps((facts or {}).get(config, {})),
            )
            for config, (samples, reason) in timings.items()
        ]
        with self._open() as database:
            database.executemany(f"INSERT OR REPLACE INTO timings ({_COLUMNS}) VALUES ({_VALUES})", rows)  # noqa: S608 - constants

    def take(self, problem: Problem, timings: Mapping[str, Timing]) -> None:
        """Takes over timings of another memory, each unless this one has a later timing of that config."""
        key = asdict(problem).values()
        self._take(
            (*key, config, json.dumps(known.samples), known.reason, known.at, json.dumps(known.facts))
            for config, known in timings.items()
        )

    def merge(self, other: Path) -> int:
        """Takes over the timings in the database at ``other`` that this one lacks or has of an earlier time; returns how many.

        Raises WinnersError where there is no such database. The other one is only read.
        """
        if not other.is_file():
            raise WinnersError(f"no tuning database at {other}")
        try:
            with contextlib.closing(sqlite3.connect(f"{other.absolute().as_uri()}?mode=ro", uri=True)) as database:
                facts = "facts" in {row[1] for row in database.execute("PRAGMA table_info(timings)")}
                columns = _COLUMNS if facts else _COLUMNS.replace("facts", "'{}'")
                rows = database.execute(f"SELECT {columns} FROM timings").fetchall()  # noqa: S608 - constants
        except sqlite3.Error as error:
            raise WinnersError(f"{other} is no tuning database: {bounded_reading.one_line(error)}") from error
        return self._take(rows)

    def _take(self, rows: Iterable[Sequence[str]]) -> int:
        query = (
            f"INSERT INTO timings ({_COLUMNS}) VALUES ({_VALUES}) "  # noqa: S608 - constants
            "ON CONFLICT DO UPDATE SET samples=excluded.samples, reason=excluded.reason, at=excluded.at, "
            "facts=excluded.facts "
            "WHERE excluded.at > timings.at"
        )
        with self._open() as database:
            return database.executemany(query, rows).rowcount

    def winners(self, kernels: Sequence[str] = ()) -> list[Winner]:
        """The best of each problem, of all kernels or those named. Times of different devices are never set against each other."""
        with self._open() as database:
            rows = database.execute(f"SELECT {_COLUMNS} FROM timings WHERE samples != '[]' ORDER BY at").fetchall()  # noqa: S608 - constants
        found: dict[Problem, list[tuple[float, str, str]]] = {}
        for *key, config, samples, _, at, _facts in rows:
            problem = Problem(*key)
            if not kernels or problem.kernel in kernels:
                found.setdefault(problem, []).append((statistics.median(json.loads(samples)), config, at))
        best = {problem: (*min(times), len(times)) for problem, times in found.items()}
        return [Winner(problem, config, median, count, at) for problem, (median, config, at, count) in best.items()]

    @contextlib.contextmanager
    def _open(self) -> Iterator[sqlite3.Connection]:
        self.path.parent.mkdir(parents=True, exist_ok=True)
        database = sqlite3.connect(self.path, timeout=_PATIENCE)
        try:
            _use_wal(database)
            # A power failure may cost the last timings, which are made again; waiting for the disk costs every search.
            database.execute("PRAGMA synchronous=NORMAL")
            with database:
                database.execute(_TABLE)
                if "facts" not in {row[1] for row in database.execute("PRAGMA table_info(timings)")}:
                    database.execute("ALTER TABLE timings ADD COLUMN facts TEXT NOT NULL DEFAULT '{}'")
                yield database
        finally:
            database.close()


def export(winners: Sequence[Winner], path: Path) -> None:
    """Writes winners into a JSON file, sorted, so that a commit of it shows what changed. The single GPU's UUID stays out.

    Of GPUs of one name the winner over most configs counts, then the newest: their times are not set against each other.
    """
    of_kind: dict[Problem, Winner] = {}
    for winner in sorted(winners, key=lambda winner: (winner.configs, winner.at)):
        of_kind[replace(winner.problem, uuid="")] = winner
    rows = [asdict(replace(winner, problem=problem)) for problem, winner in of_kind.items()]
    rows.sort(key=lambda row: (*map(str, row["problem"].values()), row["median"]))
    text = json.dumps({"format": _FORMAT, "winners": rows}, indent=1) + "\n"
    atomic_writing.replace(path, lambda to: to.write_text(text, encoding="utf-8"))


def load(path: Path) -> list[Winner]:
    """The winners that ``export`` wrote. Raises WinnersError for a file that is missing or not one."""
    try:
        data: Any = bounded_reading.data_of(path)
        if data["format"] != _FORMAT:
            raise ValueError(f"its format is {data['format']}, not {_FORMAT}")
        found: list[Winner] = json_shape.fit(data["winners"], list[Winner], "winners")
        return found
    except FileNotFoundError:
        raise WinnersError(f"no winners at {path}: write them with tilescope.tuning.memory.export") from None
    except (ValueError, LookupError, TypeError) as error:
        raise WinnersError(f"{path} is no file of winners: {bounded_reading.one_line(error)}") from error


def chosen(winners: Sequence[Winner], problem: Problem) -> str:
    """The config that was exported for the problem on a GPU of this name; empty where none was, or for other source or versions."""
    wanted = replace(problem, uuid="")
    same = [winner for winner in winners if replace(winner.problem, uuid="") == wanted]
    return min(same, key=lambda winner: winner.median).config if same else ""


def launched(winners: Sequence[Winner], problem: Problem, arguments: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """The arguments of launches that exported winners make of the problem's function, as far as these ``arguments`` go.

    Of the same source, device and versions; the quickest first.
    """
    found = [
        (winner.median, launch["arguments"])
        for winner in winners
        if (winner.problem.device, winner.problem.versions) == (problem.device, problem.versions)
        for launch in winner.launches
        if (launch["function"], launch["digest"]) == (problem.kernel, problem.digest)
        if all(launch["arguments"].get(name) == value for name, value in arguments.items())
    ]
    return [launch for _, launch in sorted(found, key=lambda pair: pair[0])]


def _use_wal(database: sqlite3.Connection) -> None:
    """Lets readers go on while one process writes. Raises OperationalError where others hold the file for longer than _PATIENCE.

    The file keeps the mode, so one process changes it once. SQLite does not wait for others there, whatever the connection's timeout
    is: two processes that make one database would each refuse the other.
    """
    end = time.monotonic() + _PATIENCE
    while True:
        try:
            database.execute("PRAGMA journal_mode=WAL")
        except sqlite3.OperationalError as error:
            if error.sqlite_errorcode & 0xFF != sqlite3.SQLITE_BUSY or time.monotonic() > end:
                raise
            time.sleep(0.02)
        else:
            return
