"""A sweep over several GPUs of one kind: a heat on each, and a final on one, so that times of two GPUs are never compared.

A heat is a race among a GPU's share of the configs. A config that is certainly slower than another of its heat cannot be the best
on any GPU of that kind. The others race again in the final, on one GPU, together with that GPU's own share; only the final's
times are in the run. A config dropped in a heat has no time in the run, and its reason names the GPU. Imports neither torch nor
triton.
"""

from __future__ import annotations

import asyncio
import atexit
import dataclasses
import json
import shutil
import statistics
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from tilescope import collectors
from tilescope.jobs import executors
from tilescope.jobs.executors import Dask, Gpu, Heat
from tilescope.jobs.job import Given, Job, WorkerError
from tilescope.table.case import Case
from tilescope.tuning import memory, race


async def kinds(executor: Dask, kernels: Sequence[str]) -> tuple[list[list[Gpu]], list[str]]:
    """The executor's GPUs with the same code as here, grouped by kind, and notes on those that are left out.

    Raises WorkerError where there is none.
    """
    found: dict[tuple[str, ...], dict[str, Gpu]] = {}
    ours, notes = executors.code(kernels), list[str]()
    for gpu in await executor.gpus(kernels):
        if other := [kernel for kernel in kernels if gpu.code.get(kernel) != ours[kernel]]:
            notes.append(
                f"{gpu.device.name} at {gpu.place} is left out: the code of {', '.join(other)} differs from the code here"
            )
        else:
            found.setdefault(gpu.kind, {}).setdefault(gpu.uuid or gpu.place, gpu)
    if not found:
        raise WorkerError("; ".join(notes) or "no worker has a GPU that kernels can be timed on")
    return [list(gpus.values()) for gpus in found.values()], notes


async def timed(executor: Dask, gpus: Sequence[Gpu], job: Job) -> Job:
    """The job with the artefact of each of its cases, raced on GPUs of one kind. The memory here keeps all timings too.

    The run's device is the GPU of the final. Raises WorkerError where every GPU is lost.
    """
    (collector,) = job.collectors
    shares = deal(job.cases, len(gpus))
    raced = await asyncio.gather(
        *(executor.race(gpu, collector, share, job.settings) for gpu, share in zip(gpus, shares, strict=False)),
        return_exceptions=True,
    )
    heats: dict[Gpu, Heat] = {}
    lost: dict[Gpu, WorkerError] = {}
    for gpu, heat in zip(gpus, raced, strict=False):
        if isinstance(heat, Heat):
            heats[gpu] = heat
        elif isinstance(heat, WorkerError):
            lost[gpu] = heat
        else:
            raise heat
    home, final = await _final(executor, job, heats, lost)
    for heat in [*heats.values(), final]:
        await asyncio.to_thread(_remember, heat.artefacts.values())
    made = dict(final.artefacts)
    for gpu, heat in heats.items():
        for name, text in heat.artefacts.items():
            made.setdefault(name, _elsewhere(text, gpu))
    failures = {name: why for heat in (*heats.values(), final) for name, why in heat.failures.items()}
    folder = Path(tempfile.mkdtemp(prefix="tilescope-heats-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    given = []
    for case in job.cases:
        artefact = folder / f"{case.slug}{collectors.load(collector).SUFFIX}"
        if case.id in made:
            artefact.write_text(made[case.id], encoding="utf-8")
        else:
            _untimed(artefact, case, home, failures.get(case.id, "it was not settled"))
        given.append(Given(collector, case, artefact))
    return dataclasses.replace(
        job,
        given=given,
        notes=(*job.notes, *_notes(home, heats, lost)),
        device=home.device,
        versions=home.versions,
        settings={**job.settings, "gpu": home.uuid},
    )


async def _final(executor: Dask, job: Job, heats: Mapping[Gpu, Heat], lost: dict[Gpu, WorkerError]) -> tuple[Gpu, Heat]:
    """The final's GPU, and its race over its own share, the other heats' best, and the shares of lost GPUs."""
    (collector,) = job.collectors
    done = {case for heat in heats.values() for case in heat.artefacts.keys() | heat.failures.keys()}
    for home, own in heats.items():
        left = {
            case for heat in heats.values() for case, text in heat.artefacts.items() if not json.loads(text)["reason"]
        }
        finalists = [case for case in job.cases if case.id in left or case.id in own.artefacts or case.id not in done]
        if {case.id for case in finalists} <= own.artefacts.keys() | own.failures.keys():
            return home, own
        try:
            # Its memory still has the times of its heat.
            return home, await executor.race(home, collector, finalists, job.settings)
        except WorkerError as error:
            lost[home] = error
    raise next(iter(lost.values()))


def deal(cases: Sequence[Case], count: int) -> list[list[Case]]:
    """The cases of each GPU: some configs of every sweep, and the default of each, by which GPUs can be compared."""
    shares: list[list[Case]] = [[] for _ in range(count)]
    turn = 0
    for case in cases:
        if not case.config:
            for share in shares:
                share.append(case)
        else:
            shares[turn % count].append(case)
            turn += 1
    return [share for share in shares if share]


def _elsewhere(text: str, gpu: Gpu) -> str:
    """The artefact of a config that was dropped on another GPU: its resources, and the reason why this run has no time."""
    said = json.loads(text)
    times, reason = said["samples"], said["reason"]
    if times:
        took = f"{statistics.median(times) * 1e6:.4g} µs on {gpu.device.name} {gpu.uuid}, {reason}"
        reason = f"not in the final: {took.rstrip(', ')}"
    there = {"uuid": gpu.uuid, "samples": times, "sm_clock": said.pop("sm_clock", None)}
    return json.dumps({**said, "samples": [], "reason": reason, "elsewhere": there})


def _untimed(artefact: Path, case: Case, home: Gpu, why: str) -> None:
    problem = memory.of_sweep(case, "", home.device.name, home.uuid, home.device.target)
    race.write(artefact, problem, memory.Timing((), why, "", {"config": memory.config_name(case)}), remembered=False)


def _remember(artefacts: Iterable[str]) -> None:
    """Stores the timings in this machine's memory, each under the GPU that it was made on."""
    known: dict[memory.Problem, dict[str, memory.Timing]] = {}
    for text in artefacts:
        problem, config, timing = race.timing(text)
        if problem.digest:
            known.setdefault(problem, {})[config] = timing
    for problem, timings in known.items():
        memory.Memory().take(problem, timings)


def _notes(home: Gpu, heats: Mapping[Gpu, Heat], lost: Mapping[Gpu, WorkerError]) -> list[str]:
    """Notes on the GPUs that took part, their times at the default, and lost GPUs."""
    said = [
        f"times are of {home.device.name} {home.uuid} alone"
        + (f"; heats ran on {len(heats)} GPUs" if len(heats) > 1 else "")
    ]
    ours = _defaults(heats.get(home))
    for gpu, heat in heats.items():
        ratios = [time / ours[case] for case, time in _defaults(heat).items() if case in ours]
        if gpu != home and ratios:
            said.append(
                f"{gpu.device.name} {gpu.uuid} takes {statistics.median(ratios):.3f} times as long at the default"
            )
    return said + [f"{gpu.device.name} {gpu.uuid} at {gpu.place} was lost: {error}" for gpu, error in lost.items()]


def _defaults(heat: Heat | None) -> dict[str, float]:
    """The median of each default's times, in seconds, by case."""
    said: dict[str, Any] = {case: json.loads(text) for case, text in heat.artefacts.items()} if heat else {}
    return {
        case: statistics.median(data["samples"])
        for case, data in said.items()
        if data["samples"] and data.get("config") == memory.DEFAULT
    }
