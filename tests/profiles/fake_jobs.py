"""Jobs of fake collectors on a kernel whose implementations end in every way there is: for the tests of what runs jobs."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from tilescope.jobs import supervisor
from tilescope.jobs.job import Catalog, Job
from tilescope.runs import store
from tilescope.table.case import Case

#: The fake collectors, and the kernel.
KIT = Path(__file__).parent / "fixtures" / "orchestration"
OWN = f"{KIT / 'own.py'}:SPEC"
#: What decides how a job of theirs goes.
SLOW = pytest.mark.slow(
    "profiles/tilescope",
    *(f"tests/profiles/{name}" for name in ("fixtures/light", "fixtures/orchestration", "conftest.py", "fake_jobs.py")),
)


def cases(*fates: str) -> list[Case]:
    """A case for each fate, which is the name of an implementation."""
    return [Case(OWN, fate, "forward", "8-fp32") for fate in fates]


def run(
    catalog: Catalog, fates: Sequence[str], collectors: Sequence[str] = ("fakes.quick",), **settings: Any
) -> tuple[store.LoadedRun, list[dict[str, Any]]]:
    """The run of those fates, and the events of its job."""
    events: list[dict[str, Any]] = []
    job = Job(cases(*fates), collectors, settings, catalog=catalog)
    return store.open_run(asyncio.run(supervisor.run(job, events.append))), events
