"""The memory of tuning: a database of timings that processes share, and a file of winners that people commit.

A row is one config of one problem: the key under which a sweep is remembered (code, sizes, device, versions). Imports neither torch nor triton.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import re
import sqlite3
import statistics
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import Any

from tilescope.files import atomic_writing, bounded_reading, installed, json_shape, user_cache
from tilescope.hardware import device
from tilescope.table.case import Case

_TABLE = """CREATE TABLE IF NOT EXISTS timings (
    kernel TEXT, digest TEXT, shape TEXT, device TEXT, uuid TEXT, versions TEXT, config TEXT,
    samples TEXT NOT NULL, reason TEXT NOT NULL, at TEXT NOT NULL, facts TEXT NOT NULL DEFAULT '{}',
    PRIMARY KEY (digest, shape, device, uuid, versions, config))"""
_COLUMNS = "kernel, digest, shape, device, uuid, versions, config, samples, reason, at, facts"
_VALUES = ",".join("?" * len(_COLUMNS.split(",")))
#: Seconds to wait for another process that writes.
_PATIENCE = 10.0
_FORMAT = 1
#: The fact that names another config with the same launches of the same code, which was timed instead.
LIKE = "like"
#: The fact that has a config's times without a rest between its calls.
SUSTAINED = "sustained"
#: Facts that are measured, which configs with the same launches share.
_MEASURED = ("checked", "counted", "sm_clock", SUSTAINED)
#: The name of an implementation's own choice among its configs.
DEFAULT = "default"


@dataclass(frozen=True)
class Problem:
    """The problem that configs compete for.

    ``digest`` is of the kernel's source with all that it calls, ``shape`` the class of shapes (the values of an autotuner's
    key), ``device`` the GPU's name, ``uuid`` the single GPU, ``versions`` those of the compiler and the target.
    """

    kernel: str
    digest: str
    shape: str
    device: str
    uuid: str
    versions: str


@dataclass(frozen=True)
class Timing:
    """One config's ``samples`` in seconds, the ``reason`` why it has none or was dropped, and the time ``at`` (UTC, ISO).

    ``facts`` are its other findings as JSON data: its kernels' resources, the error of its result.
    """

    samples: tuple[float, ...]
    reason: str
    at: str
    facts: Mapping[str, Any] = field(default_factory=dict)

    @property
    def median(self) -> float | None:
        """The median in seconds; None where it was not timed."""
        return statistics.median(self.samples) if self.samples else None


@dataclass(frozen=True)
class Winner:
    """The best known config of a problem: ``config`` as text, ``median`` in seconds, and how many ``configs`` were timed.

    ``launches`` are its launches where they are known: ``function``, ``digest`` of its source, and ``arguments`` by name with
    the config's.
    """

    problem: Problem
    config: str
    median: float
    configs: int
    at: str
    launches: Sequence[Mapping[str, Any]] = ()


def usable(known: Mapping[str, Timing], configs: Collection[str]) -> dict[str, Timing]:
    """The timings of these configs, without those that were taken over from a config that is not among them."""
    return {n: timing for n, timing in known.items() if n in configs and str(timing.facts.get(LIKE, n)) in configs}


def shared(timings: Mapping[str, Timing]) -> dict[str, Timing]:
    """The timings, where a config that is like another has the samples and measurements of that one."""
    found = dict(timings)
    for name, timing in timings.items():
        like = timings.get(str(timing.facts.get(LIKE, "")))
        if like:
            measured = {fact: like.facts[fact] for fact in _MEASURED if fact in like.facts}
            found[name] = replace(timing, samples=like.samples, facts={**timing.facts, **measured})
    return found


class WinnersError(ValueError):
    """A file of winners or a database that cannot be read. The message is one line."""


def default_path() -> Path:
    """``$TILESCOPE_TUNING``, or ``tuning.sqlite3`` in ``user_cache.folder`` where it is not set."""
    chosen = os.environ.get("TILESCOPE_TUNING")
    return Path(chosen).expanduser().absolute() if chosen else user_cache.folder() / "tuning.sqlite3"


class Memory:
    """The timings in the database at ``path``, created where it is missing. Processes and threads may share one file."""

    def __init__(self, path: Path | None = None) -> None:
        self.path = path or default_path()

    def known(self, problem: Problem) -> dict[str, Timing]:
        """The problem's timings by config, on exactly this device. Raises WinnersError where the database cannot be read."""
        query = "SELECT config, samples, reason, at, facts FROM timings WHERE digest=? AND shape=? AND device=? AND uuid=? AND versions=?"
        key = (problem.digest, problem.shape, problem.device, problem.uuid, problem.versions)
        with self._open() as database:
            rows = database.execute(query, key).fetchall()
        return {
            config: Timing(tuple(json.loads(samples)), reason, at, json.loads(facts))
            for config, samples, reason, at, facts in rows
        }

    def keep(self, problem: Problem, timings: Mapping[str, Timing]) -> None:
        """Stores the timing of each config in place of its former one. Raises WinnersError where it cannot."""
        rows = [_row(problem, config, timing) for config, timing in timings.items()]
        with self._open() as database:
            database.executemany(f"INSERT OR REPLACE INTO timings ({_COLUMNS}) VALUES ({_VALUES})", rows)  # noqa: S608 - constants

    def take(self, problem: Problem, timings: Mapping[str, Timing]) -> None:
        """Stores timings of another memory, except where this one has a timing of that config as late or later."""
        self._take(_row(problem, config, timing) for config, timing in timings.items())

    def merge(self, other: Path) -> int:
        """Stores the timings of the database at ``other`` that are missing or older here; returns how many.

        Raises WinnersError where there is no such database. The other one is only read.
        """
        if not other.is_file():
            raise WinnersError(f"no tuning database at {other}")
        try:
            with contextlib.closing(sqlite3.connect(f"{other.absolute().as_uri()}?mode=ro", uri=True)) as database:
                rows = database.execute(f"SELECT {_COLUMNS} FROM timings").fetchall()  # noqa: S608 - constants
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
        """The best config of each problem, of all kernels or those named. Times of different devices are never compared."""
        with self._open() as database:
            rows = database.execute(f"SELECT {_COLUMNS} FROM timings WHERE samples != '[]' ORDER BY at").fetchall()  # noqa: S608 - constants
        found: dict[Problem, list[tuple[float, float, str, str]]] = {}
        for *key, config, samples, _, at, facts in rows:
            problem = Problem(*key)
            if not kernels or problem.kernel in kernels:
                without_rest = json.loads(facts).get(SUSTAINED) or [math.inf]
                times = statistics.median(without_rest), statistics.median(json.loads(samples))
                found.setdefault(problem, []).append((*times, config, at))
        best = {problem: (*min(times)[1:], len(times)) for problem, times in found.items()}
        return [Winner(problem, config, median, count, at) for problem, (median, config, at, count) in best.items()]

    @contextlib.contextmanager
    def _open(self) -> Iterator[sqlite3.Connection]:
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            with contextlib.closing(sqlite3.connect(self.path, timeout=_PATIENCE)) as database:
                # A power failure may lose the last timings, which can be made again; a sync would slow every search.
                database.execute("PRAGMA synchronous=NORMAL")
                with database:
                    database.execute(_TABLE)
                    yield database
        except (OSError, sqlite3.Error) as error:
            why = bounded_reading.one_line(error)
            raise WinnersError(
                f"{self.path} cannot remember timings ({why}): set TILESCOPE_TUNING to another file"
            ) from error


def export(winners: Sequence[Winner], path: Path) -> None:
    """Writes winners into a JSON file without UUIDs, sorted, so that a commit's diff shows what changed.

    Of several GPUs of one name the winner over most configs is taken, then the newest; their times are not compared.
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
        found = json_shape.fit(data["winners"], list[Winner], "winners")
        return found
    except FileNotFoundError:
        raise WinnersError(f"no winners at {path}: write them with tilescope.tuning.memory.export") from None
    except (ValueError, LookupError, TypeError) as error:
        raise WinnersError(f"{path} is no file of winners: {bounded_reading.one_line(error)}") from error


def chosen(winners: Sequence[Winner], problem: Problem) -> str:
    """The config exported for the problem on a GPU of this name, with the same source and versions; empty where there is none."""
    wanted = replace(problem, uuid="")
    same = [winner for winner in winners if replace(winner.problem, uuid="") == wanted]
    return min(same, key=lambda winner: winner.median).config if same else ""


def launched(winners: Sequence[Winner], problem: Problem, arguments: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """The arguments of exported winners' launches that call the problem's function with these ``arguments``.

    Source, device and versions are the problem's; the fastest comes first.
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


def _row(problem: Problem, config: str, timing: Timing) -> tuple[str, ...]:
    """The values of ``_COLUMNS``."""
    told = (json.dumps(timing.samples), timing.reason, timing.at, json.dumps(timing.facts))
    return (*asdict(problem).values(), config, *told)


def config_name(case: Case) -> str:
    return case.config or DEFAULT


def of_sweep(case: Case, digest: str, name: str, uuid: str, target: str) -> Problem:
    """The problem of the case's sweep on the GPU of this name and UUID; ``target`` is ``sm_90``."""
    return Problem(f"{case.kernel}/{case.impl}", digest, shape(case), name, uuid, versions(target))


def shape(case: Case) -> str:
    """The pass, dtype, seed and sizes of the workload as the text of a tuple."""
    sizes = tuple(int(size) for size in re.findall(r"\d+", case.workload.partition("-")[0]))
    seed = next((part for part in case.workload.split("-")[1:] if re.fullmatch(r"s\d+", part)), "")
    return str((case.direction, case.dtype, *([seed] if seed else []), *sizes))


def versions(target: str) -> str:
    """The versions of triton and torch, and the target, as one text."""
    known = device.installed()
    return ", ".join([*(f"{name} {known[name]}" for name in ("triton", "torch") if name in known), target])


@cache
def library_digest() -> str:
    """The digest of the kernel library's code; empty where it is not installed."""
    roots = installed.folders_of("tilescope_kernels")
    return user_cache.digest([user_cache.digest_of_code(root) for root in roots]) if roots else ""


def digest(case: Case, kernels: Iterable[str] = ()) -> str:
    """The digest of the code behind a case; empty where it is not known.

    A kernel of the catalog has the library's. A user's own file may import from anywhere, so it has one of ``kernels``: the
    digests of the Triton functions that its configs launch, which only a process with Triton can tell.
    """
    if ".py" not in case.kernel:
        return library_digest()
    found = sorted(kernels)
    return user_cache.digest([case.kernel, found]) if found else ""
