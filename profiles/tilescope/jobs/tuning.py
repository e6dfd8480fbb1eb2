"""Plans a job over the configs of kernels, and exports its winners. Imports neither torch nor triton."""

from __future__ import annotations

import asyncio
import atexit
import dataclasses
import math
import shutil
import tempfile
from collections.abc import Collection, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from tilescope import collectors
from tilescope.hardware import device
from tilescope.jobs import questions
from tilescope.jobs.job import Given, Job, patience
from tilescope.jobs.plan import ALL, Request, RequestError, plan
from tilescope.runs import artefacts, recordings
from tilescope.runs.store import LoadedRun
from tilescope.table.case import Case
from tilescope.table.run import Device
from tilescope.tuning import memory, race


async def plan_tuning(
    kernels: Sequence[str],
    *,
    implementations: Sequence[str] = (),
    workloads: Sequence[str] = (),
    directions: Sequence[str] = (),
    target: str = "",
    settings: Mapping[str, Any] | None = None,
    runs_dir: Path | None = None,
    title: str = "",
    exhaustive: bool = False,
    fresh: bool = False,
    elsewhere: Device | None = None,
) -> tuple[Job, bool]:
    """The job that tries every config of ``kernels`` and their default, and whether it times them.

    On a GPU the configs race (``tilescope.tuning.race``); remembered ones are not timed again unless the job is ``fresh``. An
    ``exhaustive`` job has no race and times every config as often as any other case. Without a GPU the configs are only
    compiled. ``elsewhere`` is the GPU of another machine, where they will race.

    The defaults are each kernel's largest workload, its first pass, and the implementations with configs. Kernels without any
    are left out. Raises as ``plan`` does, and RequestError where there is nothing to tune.
    """
    asked = await questions.describe(kernels, workloads, patience(settings or {}))
    tunable = {
        entry["kernel"]: [n for n, declared in entry["implementations"].items() if declared["configs"]]
        for entry in asked
    }
    for entry in asked:
        names = tunable[entry["kernel"]]
        for name in implementations:
            if name in entry["implementations"] and name not in names:
                raise RequestError(
                    f"{entry['kernel']}/{name} declares no configs: {', '.join(names) or 'nothing'} can be tuned"
                )
    catalog = [entry for entry in asked if tunable[entry["kernel"]]]
    if not catalog:
        verb = "declares" if len(asked) == 1 else "declare"
        raise RequestError(f"{', '.join(kernels)} {verb} no configs: there is nothing to tune")
    here = elsewhere or await asyncio.to_thread(device.detect)
    unavailable = None if elsewhere else await asyncio.to_thread(collectors.load("torch_profiler").unavailable)
    timed = here is not None and target in ("", here.target) and not unavailable
    if not workloads:
        for entry in catalog:
            entry["selected"] = [max(entry["workloads"], key=lambda workload: workload["elements"])["id"]]
    raced = timed and not exhaustive
    own: dict[str, Any] = {"measure_ceilings": False, **({"check_first": True} if timed and exhaustive else {})}
    if raced and fresh:
        own["fresh"] = datetime.now(UTC).isoformat(timespec="seconds")
    request = Request(
        kernels=tuple(entry["kernel"] for entry in catalog),
        implementations=tuple(implementations),
        workloads=tuple(workloads) or tuple(dict.fromkeys(name for entry in catalog for name in entry["selected"])),
        directions=tuple(directions) or tuple(dict.fromkeys(entry["passes"][0] for entry in catalog)),
        collectors=("compiler",) if elsewhere or not timed else ("race",) if raced else ("compiler", "torch_profiler"),
        configs=(ALL,),
        target=target or (elsewhere.target if elsewhere else ""),
        settings={**own, **(settings or {})},
        title=title or f"{', '.join(entry['name'] for entry in catalog)} autotune",
    )
    job = await plan(request, runs_dir, catalog=catalog)
    if raced and elsewhere:
        # Planned with the compiler, because ``plan`` checks collectors against this machine.
        return dataclasses.replace(job, collectors=("race",)), timed
    return (await asyncio.to_thread(_with_remembered, job) if raced else job), timed


def _with_remembered(job: Job) -> Job:
    known = race.remembered(job.cases, job.settings["target"], job.settings.get("fresh", ""))
    if not known:
        return job
    folder = Path(tempfile.mkdtemp(prefix="tilescope-remembered-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    given = []
    for case, (problem, timing) in known.items():
        artefact = folder / f"{case.slug}{race.SUFFIX}"
        race.write(artefact, problem, timing, remembered=True)
        given.append(Given("race", case, artefact))
    last = max(timing.at for _, timing in known.values())
    note = f"{len(known)} of {len(job.cases)} configs are remembered, timed by {last}: --fresh times them anew"
    return dataclasses.replace(job, given=(*job.given, *given), notes=(*job.notes, note))


def winners(loaded: LoadedRun) -> list[memory.Winner]:
    """The best config of each sweep of a run that was raced: by its times without a rest where it has some, else by all."""
    timed = loaded.table[(loaded.table["metric"] == "interval") & (loaded.table["source"] == "events")]
    of_sweep, found = list(recordings.OF_SWEEP), []
    sustained = {
        sweep: rows.groupby("config")["value"].median().to_dict()
        for sweep, rows in loaded.table[loaded.table["metric"] == "sustained_time"].groupby(of_sweep, sort=False)
    }
    for (kernel, impl, direction, workload), rows in timed.groupby(of_sweep, sort=False):
        medians = rows.groupby("config")["value"].median()
        without_rest = sustained.get((kernel, impl, direction, workload), {})
        # A config is preferred to the default with the same time, because it can be written down.
        places = {config: (without_rest.get(config, math.inf), time, config == "") for config, time in medians.items()}
        best = min(places, key=places.__getitem__)
        artefact = artefacts.find(loaded.folder, "race", Case(kernel, impl, direction, workload, best))
        if artefact:
            found.append(race.winner(artefact, len(medians)))
    return found


def export(found: Collection[memory.Winner], path: Path) -> tuple[int, int]:
    """Writes winners into the file, replacing those of the same kernels, shapes and devices.

    Returns the numbers of written and of kept winners. Raises ValueError where ``found`` is empty.
    """
    if not found:
        raise ValueError("nothing was timed, so there are no winners to write: tune where there is a GPU")
    new = {(one.problem.kernel, one.problem.shape, one.problem.device) for one in found}
    before = memory.load(path) if path.exists() else []
    kept = [one for one in before if (one.problem.kernel, one.problem.shape, one.problem.device) not in new]
    memory.export([*kept, *found], path)
    return len(found), len(kept)
