"""A sweep over an implementation's configs, as a job. Imports neither torch nor triton."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tilescope import collectors, device, supervisor
from tilescope.plan import ALL, Request, RequestError, plan
from tilescope.supervisor import Job


async def plan_tuning(
    kernel: str,
    *,
    implementations: Sequence[str] = (),
    workloads: Sequence[str] = (),
    directions: Sequence[str] = (),
    target: str = "",
    settings: Mapping[str, Any] | None = None,
    runs_dir: Path | None = None,
) -> tuple[Job, bool]:
    """The job that tries every config of ``kernel``, and whether it times them.

    Without ``workloads`` the largest is taken, without ``directions`` the first, without ``implementations`` those that
    declare configs. Where there is a GPU the compiler goes first, in parallel, and leaves its work in Triton's cache.
    Raises what ``plan`` raises, and RequestError when there is nothing to tune.
    """
    (entry,) = await supervisor.describe([kernel], workloads)
    tunable = [name for name, facts in entry["implementations"].items() if facts["configs"]]
    for name in implementations:
        if name in entry["implementations"] and name not in tunable:
            raise RequestError(f"{kernel}/{name} declares no configs: {', '.join(tunable) or 'nothing'} can be tuned")
    if not tunable:
        raise RequestError(f"{kernel} declares no configs: there is nothing to tune")
    here = await asyncio.to_thread(device.detect)
    unavailable = await asyncio.to_thread(collectors.load("torch_profiler").unavailable)
    timed = here is not None and target in ("", here.target) and not unavailable
    if not workloads:
        entry["selected"] = [max(entry["workloads"], key=lambda workload: workload["elements"])["id"]]
    request = Request(
        kernels=(kernel,),
        implementations=tuple(implementations) or tuple(tunable),
        workloads=tuple(workloads) or tuple(entry["selected"]),
        directions=tuple(directions) or tuple(entry["passes"][:1]),
        collectors=("compiler", "torch_profiler") if timed else ("compiler",),
        configs=(ALL,),
        target=target,
        settings={"measure_ceilings": False, **(settings or {})},
        title=f"{entry['name']} autotune",
    )
    return await plan(request, runs_dir, catalog=[entry]), timed
