"""A worker that is done gives up the GPU while the run is written, and before anything else measures."""

from __future__ import annotations

import asyncio
import contextlib
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from tilescope.jobs import attempt, schedule
from tilescope.table.case import Case

CASE = Case("softmax", "triton", "forward", "8x8-fp32")


class Ledger(SimpleNamespace):
    """A ledger of two collectors on one case."""

    def __init__(self) -> None:
        writer = SimpleNamespace(artefact_folder=Path)
        super().__init__(writer=writer, job=SimpleNamespace(settings={}, patience=9), emit=lambda event: None)

    def left(self, name: str) -> list[Case]:
        return [CASE]

    async def keep(self, *_: Any) -> bool:
        return True

    async def keep_together(self, *_: Any) -> None:
        pass


@pytest.fixture
def said(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    found: list[str] = []

    class Worker:
        def __init__(self, job: Any, *_: Any) -> None:
            self.name = job["collector"]

        async def __aenter__(self) -> Worker:
            found.append(f"{self.name} starts")
            return self

        async def __aexit__(self, *_: object) -> None:
            found.append(f"{self.name} has ended")

        async def events(self, patience: float) -> Any:
            yield {"event": "result", "case": CASE.id}
            yield {"event": "done"}
            found.append(f"{self.name} was waited for")

        def log(self) -> str:
            return ""

    @contextlib.asynccontextmanager
    async def lock(*_: Any) -> Any:
        found.append("locked")
        yield
        found.append("unlocked")

    async def yes(*_: Any) -> bool:
        return True

    monkeypatch.setattr(attempt, "WorkerProcess", Worker)
    monkeypatch.setattr(schedule, "gpu_lock", lock)
    monkeypatch.setattr(schedule, "_measure_ceilings", yes)
    monkeypatch.setattr(schedule, "_available", yes)
    wrapped = {"command": lambda argv, folder: argv, "finish": lambda folder, cases: None}
    monkeypatch.setattr(schedule.collectors, "load", lambda name: SimpleNamespace(**(wrapped if name == "ncu" else {})))
    return found


def collected(said: list[str], *names: str) -> list[str]:
    async def work() -> None:
        async with contextlib.AsyncExitStack() as held:
            await schedule._one_by_one(Ledger(), names, held)  # type: ignore[arg-type]
            said.append("written")

    asyncio.run(work())
    return said


def test_it_ends_while_the_run_is_written_and_before_the_next_one_starts(said: list[str]) -> None:
    assert collected(said, "events", "cupti") == [
        "locked", "events starts", "events has ended", "cupti starts", "written", "cupti has ended", "unlocked",
    ]  # fmt: skip


def test_one_in_a_wrapper_is_waited_for_as_the_wrapper_writes_last(said: list[str]) -> None:
    assert collected(said, "ncu") == [
        "locked",
        "ncu starts",
        "ncu was waited for",
        "ncu has ended",
        "written",
        "unlocked",
    ]
