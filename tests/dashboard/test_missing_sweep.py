"""Autotune where the open run has no sweep: another run's, one that is under way, or how to make one."""

import asyncio
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from tilescope.jobs.plan import Request
from tilescope_dashboard.session import jobs
from tilescope_dashboard.session.jobs import JobManager
from tilescope_dashboard.session.state import State
from tilescope_dashboard.views import autotune
from tilescope_dashboard.views.autotune import Autotune, otherwise, sweeping

from .conftest import PREDICTED
from .conftest import said as words

pytestmark = pytest.mark.usefixtures("in_runs")


async def test_a_sweep_is_said_to_be_under_way_as_long_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    release = asyncio.Event()

    async def planner(_: Request) -> SimpleNamespace:
        return SimpleNamespace(cases=(), collectors=())

    async def run(*_: Any) -> Path:
        await release.wait()
        return Path("runs/x")

    manager = JobManager(planner, run)
    other = manager.start(Request(kernels=("softmax",)))
    assert sweeping(manager.jobs, "softmax") is None  # a profile of a kernel's own choice
    job = manager.start(Request(kernels=("/my kernels/m.py:softmax",), configs=("all",)))
    assert sweeping(manager.jobs, "softmax") is job
    assert sweeping(manager.jobs, "matmul") is None
    state = State(run=PREDICTED, kernel="softmax")
    state.runs = [run for run in state.runs if not run.recorded]  # one of those has a sweep
    monkeypatch.setattr(autotune, "shared", lambda: manager)
    shown = Autotune(state)
    shown.refresh()
    assert "Those of softmax are being profiled" in words(shown)
    release.set()
    while other.active or job.active:
        await asyncio.sleep(0)
    assert "being profiled" not in words(shown)
    assert "No run has configs of softmax" in words(shown) or "declares no configs" in words(shown)


def test_a_hostile_name_stays_text() -> None:
    state = State(run=PREDICTED, kernel="<script>x")
    assert "<script>" not in otherwise(state, ())
    assert jobs.shared() is jobs.shared()
