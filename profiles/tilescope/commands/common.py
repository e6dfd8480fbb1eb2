"""What the commands that run something share: options, progress, failures, and Ctrl-C."""

from __future__ import annotations

import argparse
import asyncio
import sys
import time
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tilescope.jobs.supervisor import Job
    from tilescope.runs.store import LoadedRun
    from tilescope.table.schema import Failure

Subparsers = Any  # argparse keeps the class of add_subparsers() private


def names(text: str) -> list[str]:
    """``a,b`` to its parts."""
    return [part.strip() for part in text.split(",") if part.strip()]


def add_choices(parser: argparse.ArgumentParser, collect: bool = True) -> None:
    """Options that choose what is run."""
    listed: dict[str, Any] = {"type": names, "action": "extend", "default": []}
    parser.add_argument("--impl", metavar="NAME,…", help="implementations (all that are available)", **listed)
    parser.add_argument(
        "--workload", metavar="ID,…", help="workloads: a label, or 1823x781-fp32 (all declared)", **listed
    )
    parser.add_argument("--pass", dest="directions", metavar="NAME,…", help="forward, backward (both)", **listed)
    parser.add_argument(
        "--target", default="", metavar="sm_90", help="architecture to compile for (this GPU's, or sm_90)"
    )
    parser.add_argument("--timeout", type=_seconds, metavar="SECONDS", help="longest silence of a worker (600)")
    parser.add_argument("--repetitions", type=_count, metavar="N", help="how often a case is timed (50)")
    parser.add_argument(
        "--interpreter-limit",
        type=_seconds,
        metavar="SECONDS",
        help="skip a case that would be interpreted longer (40; check: 5)",
    )
    parser.add_argument("--runs", type=Path, metavar="FOLDER", help="where runs go ($TILESCOPE_RUNS)")
    if collect:
        parser.add_argument(
            "--collect", metavar="NAME,…", help="auto (all that can run here), or collectors by name", **listed
        )


def settings(arguments: argparse.Namespace) -> dict[str, Any]:
    """The settings that were given."""
    given = {
        "timeout": arguments.timeout,
        "repetitions": arguments.repetitions,
        "interpreter_limit": arguments.interpreter_limit,
    }
    return {name: value for name, value in given.items() if value is not None}


def found(name: str, find: Callable[[str], Path] | None = None) -> Path:
    """The folder of a run that is named on the command line, by ``find`` (``store.find``); which one is ``latest`` is said on
    standard error."""
    from tilescope.runs import store  # noqa: PLC0415

    folder = (find or store.find)(name)
    if name == store.LATEST:
        own = folder.parent != store.recorded_dir()
        why = "" if own else f", a recording that comes with Tilescope: {store.runs_dir()} has no run"
        print(f"latest: {folder.name.removeprefix(store.PARTIAL)}{why}", file=sys.stderr)
    return folder


def run(plan: Callable[[], Awaitable[Job]]) -> tuple[LoadedRun, bool]:
    """Runs the planned job with progress on standard error. Returns the run and whether Ctrl-C ended it.

    Raises KeyboardInterrupt when it was interrupted before any case had finished.
    """
    from tilescope.jobs import supervisor  # noqa: PLC0415

    async def work(progress: Progress) -> None:
        progress.say("reading the kernels' declarations")
        await supervisor.run(await plan(), progress)

    return follow(work)


def follow(work: Callable[[Progress], Coroutine[Any, Any, object]]) -> tuple[LoadedRun, bool]:
    """The same of work that tells its progress and makes a run."""
    from tilescope.runs import store  # noqa: PLC0415

    progress = Progress()
    interrupted = False
    try:
        asyncio.run(work(progress))
    except KeyboardInterrupt:
        interrupted = True
    finally:
        progress.close()
    if not progress.folder:
        raise KeyboardInterrupt
    return store.open_run(progress.folder), interrupted


def chosen(arguments: argparse.Namespace) -> dict[str, Any]:
    """What ``add_choices`` was told to run, but for the collectors, as ``Request`` and ``plan_tuning`` name it."""
    return {
        "implementations": arguments.impl,
        "workloads": arguments.workload,
        "directions": arguments.directions,
        "target": arguments.target,
        "settings": settings(arguments),
    }


class Progress:
    """Hears the supervisor's events: a bar on a terminal, else a line a case."""

    def __init__(self) -> None:
        self.folder = ""
        self.tty = sys.stderr.isatty()
        self.bar: Any = None
        self.began = time.monotonic()

    def __call__(self, event: dict[str, Any]) -> None:
        kind = event["event"]
        if kind == "done":
            self.folder = event["folder"]
        elif kind == "start" and self.tty:
            from tqdm import tqdm  # noqa: PLC0415

            self.bar = tqdm(total=event["of"], unit="case", file=sys.stderr, leave=False, dynamic_ncols=True)
        if self.bar is not None:
            self.bar.n = event["index"]
            if event.get("doing"):
                self.bar.set_postfix_str(_doing(event), refresh=False)
            self.bar.refresh()
        elif kind == "case":
            self.say(f"[{event['index'] + 1}/{event['of']}] {_doing(event)}")
        elif kind == "waiting" and event.get("collector") is None:
            self.say(event["doing"])
        if kind == "error":
            self.say(f"failed: {_where(event['collector'], event['case'])}: {event['message']}")

    def say(self, text: str) -> None:
        """One line, above the bar where there is one."""
        if self.bar is not None:
            self.bar.write(text, file=sys.stderr)
        elif not self.tty or self.bar is not None or text.startswith("failed"):
            print(text, file=sys.stderr, flush=True)

    def close(self) -> None:
        """Takes the bar away."""
        if self.bar is not None:
            self.bar.close()
            self.bar = None


def show(loaded: LoadedRun, interrupted: bool) -> int:
    """Prints the run: its device, a line a case, and what ``report`` says. Returns the exit status."""
    from tilescope.commands import text_table  # noqa: PLC0415

    device = loaded.run.device
    predicted = "" if device.measured else ": predicted, no such GPU took part"
    print(f"{device.name} ({loaded.run.settings['target']}){predicted}")
    print(text_table.text(loaded.table, device, loaded.configs))
    return report(loaded, interrupted, loaded.run.failures)


def report(loaded: LoadedRun, interrupted: bool, failures: Sequence[Failure]) -> int:
    """Says what is beside the table: skipped cases, failures, the folder. Returns the exit status."""
    for note in loaded.run.notes:
        print(f"note: {note}")
    alike: dict[tuple[str, str], list[str]] = {}
    for failure in failures:
        alike.setdefault((failure.collector, failure.message), []).append(failure.case)
    for (collector, message), cases in alike.items():
        others = f" and {len(cases) - 1} more" if len(cases) > 1 else ""
        print(f"failed: {_where(collector, cases[0])}{others}: {message}")
    print(f"run: {loaded.folder}")
    if interrupted:
        said = f"interrupted; the finished cases are kept, go on with 'tilescope resume {loaded.run.id}'"
        print(f"tilescope: {said}", file=sys.stderr)
        return 130
    return 1 if failures else 0


def _doing(event: dict[str, Any]) -> str:
    return " ".join(filter(None, [event.get("collector", ""), event["doing"], event.get("case", "")]))


def _where(collector: str, case: str) -> str:
    return f"{collector} {case}".strip()


def _seconds(text: str) -> float:
    value = float(text)
    if not 0 < value < float("inf"):
        raise argparse.ArgumentTypeError("must be above 0")
    return value


def _count(text: str) -> int:
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError("must be at least 1")
    return value
