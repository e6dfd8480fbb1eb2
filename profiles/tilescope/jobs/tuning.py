"""Plans an autotune sweep: a job over the configs of kernels. Imports neither torch nor triton."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tilescope import collectors
from tilescope.hardware import device
from tilescope.jobs import questions
from tilescope.jobs.job import Job
from tilescope.jobs.plan import ALL, Request, RequestError, limit, plan


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
) -> tuple[Job, bool]:
    """The job that tries every config of ``kernels`` and their default, and whether it times them.

    Without ``workloads`` each kernel's largest is taken, without ``directions`` its first, without ``implementations`` those
    that declare configs; of several kernels, those that declare none are left out. Where there is a GPU the compiler goes
    first, in parallel, and leaves its work in Triton's cache. Raises what ``plan`` raises, and RequestError when there is
    nothing to tune.
    """
    asked = await questions.describe(kernels, workloads, **limit(settings or {}))
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
    here = await asyncio.to_thread(device.detect)
    unavailable = await asyncio.to_thread(collectors.load("torch_profiler").unavailable)
    timed = here is not None and target in ("", here.target) and not unavailable
    if not workloads:
        for entry in catalog:
            entry["selected"] = [max(entry["workloads"], key=lambda workload: workload["elements"])["id"]]
    request = Request(
        kernels=tuple(entry["kernel"] for entry in catalog),
        implementations=tuple(implementations),
        workloads=tuple(workloads) or tuple(dict.fromkeys(name for entry in catalog for name in entry["selected"])),
        directions=tuple(directions) or tuple(dict.fromkeys(entry["passes"][0] for entry in catalog)),
        collectors=("compiler", "torch_profiler") if timed else ("compiler",),
        configs=(ALL,),
        target=target,
        settings={"measure_ceilings": False, **({"check_first": True} if timed else {}), **(settings or {})},
        title=title or f"{', '.join(entry['name'] for entry in catalog)} autotune",
    )
    return await plan(request, runs_dir, catalog=catalog), timed
