"""Fixtures for jobs of fake collectors (see ``fake_jobs``)."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

import pytest
from tilescope.jobs import questions
from tilescope.jobs.job import Catalog

from .fake_jobs import KIT, OWN


@pytest.fixture
def kit(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The fake collectors can be imported here and in the worker, and runs go to ``tmp_path``."""
    monkeypatch.syspath_prepend(str(KIT))
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(filter(None, [str(KIT), os.environ.get("PYTHONPATH", "")])))
    monkeypatch.setenv("TILESCOPE_RUNS", str(tmp_path / "runs"))


@pytest.fixture(scope="session")
def catalog() -> Catalog:
    """What the kernel declares."""
    return asyncio.run(questions.describe([OWN]))
