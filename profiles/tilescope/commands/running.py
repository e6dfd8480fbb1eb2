"""Shared parts of commands: finding a run, running a job with progress, and reporting on a run."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import sys
from collections.abc import Awaitable, Callable, Coroutine, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tilescope.jobs import kept_standby, progress, supervisor
from tilescope.jobs.job import Job
from tilescope.jobs.process import Standby
from tilescope.jobs.progress import READING, Progress
from tilescope.models import faults, headline, summary, terminal, text_table
from tilescope.runs import artefacts, store
from tilescope.runs.store import LoadedRun
from tilescope.table.case import readable
from tilescope.table.run import Failure
from tilescope.table.sources import KNOWN

if TYPE_CHECKING:
    import pandas as pd


def found(name: str, find: Callable[[str], Path] | None = None) -> Path:
    """The folder of the run ``name``, by ``find`` (``store.find``). Prints on standard error which one is ``latest``."""
    folder = (find or store.find)(name)
    if name == store.LATEST:
        own = folder.parent != store.recorded_dir()
        why = "" if own else f", a recording that comes with Tilescope: {store.runs_dir()} has no run"
        print(f"latest: {folder.name.removeprefix(store.PARTIAL)}{why}", file=sys.stderr)
    return folder


def run(plan: Callable[[], Awaitable[Job]], standing: Mapping[str, Standby] | None = None) -> tuple[LoadedRun, bool]:
    """Runs the planned job with progress on standard error. Returns the run, and whether Ctrl-C or SIGTERM ended it.

    ``standing`` is as in ``supervisor.run``. Raises KeyboardInterrupt when it was interrupted before any case had finished.
    """

    async def work(progress: Progress) -> None:
        progress({"event": "waiting", "doing": READING})
        await supervisor.run(await plan(), progress, standing=standing)

    return follow(work)


def follow(work: Callable[[Progress], Coroutine[Any, Any, object]]) -> tuple[LoadedRun, bool]:
    """Runs ``work``, which makes a run and reports its progress. Returns and raises as ``run`` does."""
    shown = progress.terminal()
    interrupted = False

    try:
        asyncio.run(_until_stopped(work(shown)))
    except (KeyboardInterrupt, asyncio.CancelledError):
        interrupted = True
    finally:
        shown.close()
    if not shown.folder:
        raise KeyboardInterrupt
    return store.open_run(shown.folder), interrupted


@contextlib.contextmanager
def standing_by(collect: Sequence[str]) -> Iterator[Mapping[str, Standby] | None]:
    """Standby workers of the wrapped collectors among those that are asked for by name; None without any.

    Those that a job has taken are replaced for the next command.
    """
    if not (names := [name for name in collect if name in KNOWN]):
        yield None
        return
    with supervisor.standing_by(names) as standing:
        yield standing or None
    for name in (name for name, standby in standing.items() if standby.taken):
        kept_standby.leave(name)


async def _until_stopped(work: Coroutine[Any, Any, object]) -> None:
    """Runs the work. SIGTERM cancels it, as Ctrl-C does, but only once, so that it can close the run."""
    task = asyncio.current_task()

    def stop() -> None:
        if task and not task.cancelling():
            task.cancel()

    with contextlib.suppress(NotImplementedError):  # where there are no signals
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop)
    await work


def show(loaded: LoadedRun, interrupted: bool) -> int:
    """Prints the run: what ``begin`` does, its device, a line a case, and the ``report``. Returns the exit status."""
    rows, device = begin(loaded), loaded.run.device
    predicted = "" if device.measured else ": no such GPU took part"
    # Another tool's file may name no target.
    target = f" ({loaded.run.settings['target']})" if loaded.run.settings["target"] else ""
    terminal.say(f"{device.where}{target}{predicted}")
    print(text_table.text(loaded, rows))
    return report(loaded, interrupted, []) or int(bool(loaded.run.failures))


def begin(loaded: LoadedRun) -> pd.DataFrame:
    """Prints the first finding, except of a model's step, whose text begins with its own sentences, failures and warnings, each once.

    Returns ``summary.of_run``'s rows.
    """
    rows = summary.of_run(loaded, loaded.table)
    first = "" if loaded.of_step else headline.headline(loaded, rows=rows)
    said = [*map(faults.message, loaded.run.failures), *(warned := warnings(loaded))]
    told = any(first.partition(": ")[2] in message for message in said)
    terminal.say(*([first] if first and not told else []))
    tell(loaded.run.failures)
    terminal.say(*warned)
    return rows


def warnings(loaded: LoadedRun) -> list[str]:
    """The run's warnings, a line each."""
    return list(dict.fromkeys(f"warning: {warning.message}" for warning in loaded.run.warnings))


def report(loaded: LoadedRun, interrupted: bool, failures: Sequence[Failure]) -> int:
    """Prints failures, notes and the run's folder. Returns the exit status."""
    tell(failures)
    for note in faults.notes(loaded.run):
        terminal.say(f"note: {note}")
    nothing = without_values(loaded)
    terminal.say(f"run: {loaded.folder}")
    if interrupted:
        said = f"interrupted; the finished cases are kept, go on with 'tilescope resume {store.address(loaded.folder)}'"
        print(f"tilescope: {said}", file=sys.stderr)
        return 130
    return 1 if failures else nothing


def tell(failures: Sequence[Failure]) -> None:
    """Prints each failure with the line of code, where it is known, and the cure, in the order in which they are to be fixed.

    Failures of a whole collector have no case.
    """
    alike: dict[str, list[Failure]] = {}
    for failure in faults.distinct(failures):
        alike.setdefault(faults.message(failure), []).append(failure)
    for message, cases in alike.items():
        names = list(dict.fromkeys(readable(failure.case) for failure in cases))
        others = f" and {len(names) - 1} more" if len(names) > 1 else ""
        collectors = ", ".join(dict.fromkeys(failure.collector for failure in cases))
        terminal.say(f"failed: {f'{collectors} {names[0]}'.strip()}{others}: {message}")
        if cases[0].case:
            fault = faults.of_failure(cases[0])
            terminal.say(
                *(f"  {text}" for text in (fault.code, fault.remedy) if text.lower().rstrip(".") not in message.lower())
            )


def without_values(loaded: LoadedRun) -> int:
    """Says where a run has nothing measured, compiled or counted. Returns the exit status: 1 for such a run."""
    found = loaded.of_step or artefacts.shown_elsewhere(loaded.folder)
    if set(loaded.table["source"]) <= {store.MODEL} and not found:
        terminal.say("nothing was measured or compiled: every case failed or was skipped")
        return 1
    return 0
