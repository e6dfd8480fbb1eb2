"""The ledger of a job: settles its cases and writes their results into its run. Nothing else writes into the run.

A case is outstanding for a collector until it is settled by a result, a failure or a reason to skip it. Imports neither torch
nor triton.
"""

from __future__ import annotations

import asyncio
import contextlib
import shutil
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pandas as pd

from tilescope import collectors
from tilescope.jobs.job import Catalog, Job, OnEvent, WorkerError, declared_cost, is_foreign
from tilescope.runs import journal, store
from tilescope.table import assumptions, launch_configs, line_values, schema
from tilescope.table.case import Case
from tilescope.table.run import Failure, Skipped
from tilescope.table.sources import SOURCES

#: The start of a run's note on outstanding cases.
OUTSTANDING = "not complete: "


class Ledger:
    """The cases of one job by collector: outstanding ones, settled ones, and notes for the end."""

    def __init__(self, job: Job, writer: store.RunWriter, on_event: OnEvent) -> None:
        self.job, self.writer, self.on_event = job, writer, on_event
        self.collectors = {name: collectors.load(name) for name in job.collectors}
        # Collectors only keep the files that launch something.
        writer.keep_sources({Case(entry["kernel"], "", "", "").name: _declaring(entry) for entry in job.catalog})
        if not (writer.rows["source"] == store.MODEL).any():
            writer.append(declared_rows(job.cases, job.catalog), store.MODEL)
        self.of = len(job.cases) * len(job.collectors)
        self.index = 0
        self.outstanding = {(name, case.id) for name in job.collectors for case in job.cases}
        #: Collectors that gave a result.
        self.productive: set[str] = set()
        #: Skipped cases by collector, reason, and whether a limit left them out.
        self.skipped: dict[tuple[str, str, bool], list[Case]] = defaultdict(list)
        #: Cases with a remark, by collector and remark.
        self.remarked: dict[tuple[str, str], list[Case]] = defaultdict(list)
        #: Names of functions by case and source.
        self.functions: dict[str, dict[str, set[str]]] = defaultdict(dict)
        #: Reasons why a collector has outstanding cases, in order.
        self.obstacles: dict[str, dict[str, None]] = defaultdict(dict)

    def recall(self) -> None:
        """Restores the state of a reopened run. Settled cases stay settled; failures of whole collectors are forgotten.

        Cases that a limit left out are outstanding again.
        """
        # Read again, because another process may have resumed the run meanwhile, or a part of it may be damaged.
        known, rows = journal.read(self.writer.folder), self.writer.rows
        settled = known.settled if known else ()
        cases = {case.id: case for case in self.job.cases}
        for done in settled:
            self.outstanding.discard((done.collector, done.case))
            if done.event in ("skipped", journal.LIMITED) and done.case in cases:
                limited = done.event == journal.LIMITED
                self.skipped[done.collector, done.message, limited].append(cases[done.case])
            elif done.event == "result":
                self.productive.add(done.collector)
        named = {(case.name, case.impl, case.direction, case.workload, case.config): case.id for case in cases.values()}
        for key, of_case in rows.groupby(["kernel", "impl", "pass", "workload", "config"], sort=False):
            case_id = named.get(key)
            if case_id is None:
                raise WorkerError(
                    f"{self.writer.run.id} has rows of {'/'.join(key)}, which are not among its cases: profile it again"
                )
            self.functions[case_id] = _functions(of_case)
            # Rows are written before their case is settled.
            for name in self.functions[case_id].keys() & set(self.job.collectors):
                self.outstanding.discard((name, case_id))
                self.productive.add(name)
        run, said, skipped = self.writer.run, set(self._remarks()), set(self._skipped())
        notes = [note for note in run.notes if note not in said and not note.startswith(OUTSTANDING)]
        limited = any(of_limit for _, _, of_limit in self.skipped)
        now = datetime.now(UTC).isoformat(timespec="seconds")
        self.writer.update(
            failures=tuple(failure for failure in run.failures if failure.case),
            notes=(*notes, f"{'counted with a higher limit' if limited else 'interrupted, and gone on with'} at {now}"),
            skipped=tuple(one for one in run.skipped if one not in skipped),
        )
        for name, message, of_limit in list(self.skipped):
            for case in self.skipped.pop((name, message, True), ()) if of_limit else ():
                self.writer.settle(journal.Settled(name, case.id, journal.LOST))
                self.outstanding.add((name, case.id))

    def left(self, name: str) -> list[Case]:
        """The cases that are outstanding for this collector."""
        return [case for case in self.job.cases if (name, case.id) in self.outstanding]

    def emit(self, event: Mapping[str, Any], ahead: int = 0) -> None:
        """Passes the event to the listener, with the numbers of settled and of all cases.

        Cases that are settled together at the end are ``ahead``: they count as settled once they have been captured.
        """
        self.index = max(self.index, self.of - len(self.outstanding) + ahead)
        self.on_event({**event, "index": self.index, "of": self.of})

    async def take_given(self) -> None:
        """Keeps the job's existing artefacts as if a worker had made them."""
        taken: dict[str, list[Case]] = defaultdict(list)
        for name, case, artefact in self.job.given:
            if (name, case.id) in self.outstanding:
                shutil.copy(artefact, self.writer.artefact_path(name, case, self.collectors[name].SUFFIX))
                taken[name].append(case)
        for name, cases in taken.items():
            await self.keep(name, cases)

    async def keep(self, name: str, cases: Iterable[Case]) -> list[Case]:  # noqa: PLR0912 - reads from top to bottom
        """Parses artefacts into one part of the table and settles their cases. Returns the cases without an artefact.

        A case is settled as failed where its artefact cannot be read, or says that it failed.
        """
        collector, missing, good = self.collectors[name], list[Case](), list[Case]()
        frames: dict[Case, pd.DataFrame] = {}
        for case in cases:
            artefact = self.writer.artefact_path(name, case, collector.SUFFIX)
            if not artefact.is_file():
                missing.append(case)
                continue
            try:
                frame = schema.validate(await asyncio.to_thread(collector.parse, artefact, case))
                if parse_lines := getattr(collector, "parse_lines", None):
                    lines, sources = await asyncio.to_thread(parse_lines, artefact, case)
                    if is_foreign(case, self.job.catalog):
                        lines, sources = line_values.of_another(case.impl, lines, sources)
                    self.writer.append_lines(case.name, lines, sources)
                if parse_assumed := getattr(collector, "parse_assumed", None):
                    said, kept = await asyncio.to_thread(parse_assumed, artefact), self.writer.run.settings
                    if said:  # launchers have asked for properties of a GPU that is not there
                        by_name = kept.get("assumed", {})
                        both = {**by_name, name: assumptions.merged(by_name.get(name, {}), said)}
                        self.writer.update(settings={**kept, "assumed": both})
                if name in SOURCES:
                    self.writer.append_configs(await asyncio.to_thread(launch_configs.beside, artefact, case, name))
                frames[case] = frame
            except store.StoreError:
                raise
            except Exception as error:
                self.fail(case, name, f"what {name} wrote cannot be read: {one_line(error)}")
        if frames:
            only = next(iter(frames)) if len(frames) == 1 else None
            self.writer.append(pd.concat(frames.values(), ignore_index=True), name if only else "", only)
            self.productive.add(name)
        for case, frame in frames.items():
            self.functions[case.id] |= _functions(frame)
            artefact = self.writer.artefact_path(name, case, collector.SUFFIX)
            if remark := getattr(collector, "remark", _nothing)(artefact):
                self.remarked[name, remark].append(case)
            if warned := [Failure(case.id, name, text) for text in getattr(collector, "warnings", _nothing)(artefact)]:
                self.writer.update(warnings=(*self.writer.run.warnings, *warned))
            if failure := getattr(collector, "failure", _nothing)(artefact):
                self.fail(case, name, failure)
            else:
                good.append(case)
        self._settle("result", good, name)
        return missing

    async def take(self, name: str, case: Case, event: Mapping[str, Any]) -> None:
        """Does what a worker's event says of a case: tells that it has begun, or settles it."""
        if event["event"] == "case":
            self.emit({"event": "case", "case": case.id, "collector": name, "doing": event["doing"]})
        elif event["event"] == "result":
            await self.keep(name, [case])
        elif event["event"] == "skipped":
            self.skip(case, name, event["message"], limited=event.get("limited") is True)
        elif event["event"] == "error":
            self.fail(case, name, event["message"], event.get("detail", ""))

    def fail(self, case: Case, name: str, message: str, detail: str = "") -> None:
        """Settles a case as failed."""
        self.writer.fail(Failure(case.id, name, message, detail))
        self._settle("error", [case], name, message=message, detail=detail)

    def skip(self, case: Case, name: str, message: str, *, limited: bool = False) -> None:
        """Settles a case as skipped by the collector, perhaps because of a limit."""
        self.skipped[name, message, limited].append(case)
        self._settle("skipped", [case], name, message=message, limited=limited)

    def leave(self, name: str, obstacle: str, detail: str = "") -> None:
        """Notes an obstacle of the collector, whose cases stay outstanding."""
        self.obstacles[name][obstacle] = None
        self._fail_collector(name, obstacle, detail)

    def give_up(self, name: str, cases: Iterable[Case], reason: str, detail: str = "") -> None:
        """Settles the cases without results, because the collector cannot give any here."""
        self._fail_collector(name, reason, detail)
        self.outstanding.difference_update((name, case.id) for case in cases)

    def close(self, interrupted: bool = False) -> Path:
        """Ends the run; it is complete when nothing is outstanding. Removes it if it was interrupted before any result."""
        run = self.writer.run.id
        if interrupted and not self.productive:
            self.writer.discard()
            self.emit({"event": "done", "folder": "", "run": run, "complete": False})
            return self.writer.folder
        complete = not interrupted and not self.outstanding
        unfinished = [] if interrupted else list(self._unfinished())
        folder = self.writer.finish(
            complete,
            notes=(*self.writer.run.notes, *self._remarks(), *unfinished),
            skipped=(*self.writer.run.skipped, *self._skipped()),
        )
        done = {"event": "done", "folder": str(folder), "run": run, "complete": complete}
        self.emit({**done, "why": "; ".join(unfinished)} if unfinished else done)
        return folder

    def _fail_collector(self, name: str, message: str, detail: str) -> None:
        if any((known.collector, known.message) == (name, message) for known in self.writer.run.failures):
            return  # another process of the same collector met the same obstacle
        self.writer.fail(Failure("", name, message, detail))
        self.emit({"event": "error", "case": "", "collector": name, "message": message, "detail": detail})

    def _settle(self, event: str, cases: Sequence[Case], name: str, **more: Any) -> None:
        noted = journal.LIMITED if more.get("limited") else event
        self.writer.settle(*(journal.Settled(name, case.id, noted, more.get("message", "")) for case in cases))
        for case in cases:
            self.outstanding.discard((name, case.id))
            self.emit({"event": event, "case": case.id, "collector": name, **more})

    def _skipped(self) -> Iterator[Skipped]:
        for (collector, message, limited), cases in self.skipped.items():
            yield Skipped(collector, message, tuple(cases), limited)

    def _remarks(self) -> Iterator[str]:
        """Notes on the whole run."""
        for one in self._skipped():
            yield (f"{one.note}; 'tilescope resume {self.writer.run.id}' takes them up" if one.limited else one.note)
        for (_, message), cases in self.remarked.items():
            tuned = any(case.config for case in cases)
            which = "; ".join(case.config or ("the default" if tuned else case.workload) for case in cases)
            yield f"{cases[0].name}/{cases[0].impl} {which}: {message}"
        yield from assumptions.notes(self.writer.run.settings)
        yield from _counted_otherwise(self.functions, self.writer.run.settings["target"])

    def _unfinished(self) -> Iterator[str]:
        """A note for each collector with outstanding cases: the reasons, and how to resume."""
        for name in self.job.collectors:
            if left := len(self.left(name)):
                why = "; ".join(self.obstacles[name]) or "they were not started"
                go_on = f"go on with 'tilescope resume {self.writer.run.id}'"
                yield f"{OUTSTANDING}{left} of {len(self.job.cases)} cases of {name} are outstanding ({why}): {go_on}"


def declared_rows(cases: Iterable[Case], catalog: Catalog) -> pd.DataFrame:
    """Rows of every case's declared cost: flops, bytes read and written, and ``tensor_bytes`` where it counts whole tensors.

    A number that a table cannot hold has no row.
    """
    rows = []
    for case in cases:
        cost = declared_cost(case, catalog)
        values = {f"algorithm_{name}": cost[name] for name in ("flops", "bytes_read", "bytes_written") if name in cost}
        if cost.get("whole_tensors"):
            values["tensor_bytes"] = cost["bytes_read"] + cost["bytes_written"]
        rows += [case.row(name, value, "model") for name, value in values.items() if schema.is_value(value)]
    return schema.frame(rows)


def one_line(error: BaseException) -> str:
    """The first line of an exception's message, or its type where it has none."""
    return next(iter(str(error).splitlines()), "") or type(error).__name__


def _nothing(artefact: Path) -> str:
    return ""


def _declaring(entry: Mapping[str, Any]) -> dict[str, str]:
    """The text of the file that declares a kernel, by its name; empty where it has changed since."""
    path = Path(entry["path"])
    with contextlib.suppress(OSError, UnicodeDecodeError):
        if (text := store.text_of(path, entry["sha256"])) is not None:
            return {path.name: text}
    return {}


def _functions(rows: pd.DataFrame) -> dict[str, set[str]]:
    """The names of functions by source."""
    found = defaultdict[str, set[str]](set)
    for source, function in set(zip(rows["source"].tolist(), rows["function"].tolist(), strict=True)):
        found[source] |= {function} - {""}
    return found


def _counted_otherwise(functions: Mapping[str, Mapping[str, set[str]]], target: str) -> Iterator[str]:
    """A note for each case where the interpreter counted other kernels than a GPU of the target would run."""
    for case, named in functions.items():
        compiled, counted = named.get("compiler", set()), named.get("interpreter", set())
        if counted and compiled - counted:
            operators = {name for name in counted if name.startswith("aten.")}
            instead = ", ".join(sorted(counted - compiled - operators)) or "no kernel"
            run = ", ".join(sorted(compiled - counted))
            yield f"interpreter counted {instead} where {target} runs {run}: {case}"
