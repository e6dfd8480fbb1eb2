"""Jobs of fake collectors on a kernel whose implementations end in every possible way, for tests of jobs."""

import asyncio
import dataclasses
from pathlib import Path
from typing import Any

from tilescope.hardware import device
from tilescope.jobs import supervisor, tuning
from tilescope.jobs.job import Job
from tilescope.runs import store
from tilescope.table.case import Case

#: The fake collectors, and the kernel.
KIT = Path(__file__).parent / "fixtures" / "orchestration"
OWN = f"{KIT / 'own.py'}:SPEC"
#: A program with a job of its own. Its arguments: the file of the workers' ids, the catalog, and the fates.
CLIENT = """
import asyncio, json, sys
from tilescope.jobs import supervisor
from tilescope.jobs.job import Job
from tilescope.table.case import Case
_, pids, catalog, *fates = sys.argv
catalog = json.loads(catalog)
cases = [Case(catalog[0]["kernel"], fate, "forward", "8-fp32") for fate in fates]
asyncio.run(supervisor.run(Job(cases, ["fakes.quick"], {"pids": pids}, catalog=catalog)))
"""


def cases(*fates):
    """A case for each fate, which is the name of an implementation."""
    return [Case(OWN, fate, "forward", "8-fp32") for fate in fates]


def registers(loaded):
    """What the fake collectors found, by implementation."""
    rows = loaded.table[loaded.table["metric"] == "registers"]
    return dict(zip(rows["impl"], rows["value"], strict=True))


def tune_with(monkeypatch, collector):
    """Makes jobs of ``plan_tuning`` run ``collector`` instead of their own collectors."""
    plan_tuning = tuning.plan_tuning
    for name in ("detect", "uuid"):  # which ``fakes.raced`` replaces for good when it is imported
        monkeypatch.setattr(device, name, getattr(device, name))

    async def planned(kernels, **more):
        job, timed = await plan_tuning(kernels, **more)
        given = [known._replace(collector=collector) for known in job.given]
        return dataclasses.replace(job, collectors=(collector,), given=given), timed

    monkeypatch.setattr(tuning, "plan_tuning", planned)


def run(catalog, fates, collectors=("fakes.quick",), **settings):
    """The run of those fates, and the events of its job."""
    events: list[dict[str, Any]] = []
    job = Job(cases(*fates), collectors, settings, catalog=catalog)
    return store.open_run(asyncio.run(supervisor.run(job, events.append))), events
