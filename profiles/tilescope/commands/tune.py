"""``tilescope tune``: tries every config of a kernel's implementations and their default, and prints the best first.

The configs race: slow ones are timed briefly, those that cannot win are not timed, and remembered times are used again. Without a
GPU the order is by a recorded sweep, or by an estimate from the compiled code. With ``--scheduler`` they race on a Dask cluster's GPUs.
"""

from __future__ import annotations

import argparse
import asyncio
import dataclasses
import math
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tilescope.commands import choices, running
from tilescope.table import units

if TYPE_CHECKING:
    import pandas as pd

    from tilescope.jobs.executors import Gpu
    from tilescope.runs.store import LoadedRun


def add(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("kernel", metavar="KERNEL", nargs="?", help="catalog name or path/to/file.py:SPEC")
    choices.add_choices(parser, collect=False)
    parser.add_argument(
        "--export", type=Path, metavar="FILE", help="write the winners into FILE, replacing those of the same problems"
    )
    parser.add_argument("--fresh", action="store_true", help="time remembered configs again")
    parser.add_argument(
        "--exhaustive", action="store_true", help="trace every config as often as any case, and remember nothing"
    )
    parser.add_argument(
        "--scheduler", metavar="ADDRESS", help="race on the GPUs of a Dask cluster's workers: tcp://host:8786"
    )
    parser.add_argument(
        "--merge",
        type=Path,
        metavar="FILE",
        help="first add the timings of another machine's memory (tuning.sqlite3)",
    )


def run(arguments: argparse.Namespace) -> int:
    """Tunes and prints one line a config; status 1 when none of them works."""
    if arguments.exhaustive and (arguments.export or arguments.fresh or arguments.scheduler):
        raise ValueError("--exhaustive remembers nothing: leave out --export, --fresh and --scheduler")
    if arguments.export or arguments.merge:
        from tilescope.tuning import memory  # noqa: PLC0415
    if arguments.export and arguments.export.exists():
        memory.load(arguments.export)  # raises where it is another file
    elif arguments.export and not arguments.export.parent.is_dir():
        raise ValueError(f"--export {arguments.export}: there is no folder {arguments.export.parent}")
    if arguments.merge:
        kept = memory.Memory()
        print(f"{kept.merge(arguments.merge)} timings of {arguments.merge} are new in {kept.path}")
    if not arguments.kernel:
        if arguments.merge:
            return 0
        raise ValueError("name a kernel to tune")
    return _elsewhere(arguments) if arguments.scheduler else _here(arguments)


def _asked(arguments: argparse.Namespace) -> dict[str, Any]:
    given = {"kernels": [arguments.kernel], "runs_dir": arguments.runs, "fresh": arguments.fresh}
    return {**given, **choices.chosen(arguments)}


def _here(arguments: argparse.Namespace) -> int:
    """Tunes on this machine."""
    from tilescope.jobs import tuning  # noqa: PLC0415
    from tilescope.jobs.job import Job  # noqa: PLC0415

    timed = False

    async def plan() -> Job:
        nonlocal timed
        job, timed = await tuning.plan_tuning(**_asked(arguments), exhaustive=arguments.exhaustive)
        if arguments.export and not timed:
            raise ValueError(
                "--export: nothing would be timed, so there are no winners to write: tune where there is a GPU"
            )
        return job

    loaded, interrupted = running.run(plan)
    return _report_and_export(arguments, loaded, interrupted, timed)


def _elsewhere(arguments: argparse.Namespace) -> int:
    """Tunes on the GPUs of a Dask cluster: a run for each kind of GPU."""
    from tilescope.jobs import executors, heats, supervisor, tuning  # noqa: PLC0415
    from tilescope.jobs.progress import Progress  # noqa: PLC0415

    async def kinds() -> tuple[list[list[Gpu]], list[str]]:
        async with executors.connect(arguments.scheduler) as cluster:
            return await heats.kinds(cluster, [arguments.kernel])

    found, notes = asyncio.run(kinds())
    status = 0
    for gpus in found:

        async def work(progress: Progress, gpus: list[Gpu] = gpus) -> None:
            device = gpus[0].device
            many = f", {len(gpus)} of them" if len(gpus) > 1 else ""
            progress({"event": "waiting", "doing": f"racing on {device.name}{many}"})
            job, _ = await tuning.plan_tuning(**_asked(arguments), elsewhere=device)
            job = dataclasses.replace(job, notes=(*job.notes, *notes))
            async with executors.connect(arguments.scheduler) as cluster:
                job = await heats.timed(cluster, gpus, job)
            await supervisor.run(job, progress)

        loaded, interrupted = running.follow(work)
        status = max(status, _report_and_export(arguments, loaded, interrupted, timed=True))
    return status


def _report_and_export(arguments: argparse.Namespace, loaded: LoadedRun, interrupted: bool, timed: bool) -> int:
    """Prints the run and exports its winners. Returns the exit status."""
    from tilescope.jobs import tuning  # noqa: PLC0415
    from tilescope.models import summary, sweeps, terminal, text_table  # noqa: PLC0415
    from tilescope.runs import recordings  # noqa: PLC0415
    from tilescope.table.case import Case  # noqa: PLC0415

    concluded = dict(sweeps.conclusions(loaded.table, loaded.run.device.target)) if timed else {}
    why = {failure.case: failure.message for failure in loaded.run.failures}
    found = summary.summarise(loaded.table, loaded.run.device)
    remarks = [
        why.get(Case(arguments.kernel, row["impl"], row["pass"], row["workload"], row["config"]).id, "")
        for _, row in found.iterrows()
    ]
    for keys, group in found.groupby(list(recordings.OF_SWEEP), sort=False):
        heading, over, order_said = timed_over_best(group) if timed else untimed_over_best(loaded, keys)
        place = [over.get(config, math.inf) for config in found["config"]]
        order = sorted(group.index, key=lambda index: (bool(remarks[index]), place[index], *_tidy(found.loc[index])))
        tried = sum(found.loc[order, "config"] != "")
        terminal.say(f"{' '.join(keys)}, {units.several(tried, 'config')} and the default, {order_said}")
        headings, rows, always = text_table.cells(found.replace({"config": {"": "default"}}), order, name_by=["config"])
        distances = ["–" if place[n] == math.inf else units.text(place[n], "ratio", 2) for n in order] if over else []
        for title, column in ((heading, distances), ("failed", [remarks[index] for index in order])):
            if any(column):
                headings.insert(always, title)
                for row, cell in zip(rows, column, strict=True):
                    row.insert(always, cell)
                always += 1
        print(terminal.render(headings, rows, always))
        print("".join(f"{line}\n" for line in concluded.get(" · ".join(keys), ())), end="")
    terminal.say(*running.warnings(loaded))
    status = running.report(loaded, interrupted, failures=[f for f in loaded.run.failures if not f.case])
    if arguments.export:
        new, kept = tuning.export(tuning.winners(loaded), arguments.export)
        print(f"winners: {arguments.export}, {new} new, {kept} kept")
    return status or int(all(remarks))


def timed_over_best(rows: pd.DataFrame) -> tuple[str, dict[str, float], str]:
    """A heading, the relative distance of each timed config from the best, and how the table is ordered."""
    rows = rows.set_index("config")
    known = rows["gpu_time"].fillna(rows["interval"]).dropna()
    return "over best", (known / known.min() - 1).to_dict(), "fastest first"


def untimed_over_best(loaded: LoadedRun, keys: tuple[str, ...]) -> tuple[str, dict[str, float], str]:
    """The same without a GPU: by a recorded sweep, else by the estimate; empty where neither tells configs apart."""
    from tilescope.models import config_estimate  # noqa: PLC0415
    from tilescope.runs import recordings  # noqa: PLC0415
    from tilescope.table.case_table import gather  # noqa: PLC0415

    device = loaded.run.device
    recorded, where = recordings.times(*keys, target=device.target)
    if recorded:
        over = {config: time / min(recorded.values()) - 1 for config, time in recorded.items()}
        return "over best", over, f"no GPU to time them: fastest first as recorded {where}"
    cases = [case for case in gather(loaded.table) if keys == tuple(case.key[part] for part in recordings.OF_SWEEP)]
    estimated = config_estimate.over_best(cases, device.multiprocessors)
    if not estimated:
        return (
            "",
            {},
            "no GPU to time them, and no estimate tells them apart: fewest spills first, then highest occupancy",
        )
    first, five = (units.text(ratio, "", 3) for ratio in (config_estimate.FIRST, config_estimate.FIRST_FIVE))
    said = f"in sweeps of an H200 the first takes {first}x the best's time on average, the best of five {five}x"
    return "estimated", estimated, f"estimated, no GPU to time them: {said}"


def _tidy(row: pd.Series) -> tuple[float, ...]:
    """Sorts the fewest spills first, then the highest occupancy, then the fewest registers."""
    absent = {"spill_bytes": 0.0, "theoretical_occupancy": 0.0, "registers": math.inf}
    spills, occupancy, registers = row[list(absent)].astype("float64").fillna(absent)
    return spills, -occupancy, registers
