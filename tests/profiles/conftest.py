"""Fake collectors, and workers that start without torch: it takes two seconds a process, and no fake asks for a tensor."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path
from typing import Any

import pytest
from tilescope.jobs import supervisor

FIXTURES = Path(__file__).parent / "fixtures"
KIT = FIXTURES / "orchestration"


def search(*folders: Path) -> str:
    """``PYTHONPATH`` with those folders in front."""
    return os.pathsep.join(filter(None, [*map(str, folders), os.environ.get("PYTHONPATH", "")]))


@pytest.fixture
def fakes(monkeypatch: pytest.MonkeyPatch) -> None:
    """The fake collectors can be imported here and in the worker, where nothing stands behind torch and the catalog."""
    monkeypatch.syspath_prepend(str(KIT))
    monkeypatch.setenv("PYTHONPATH", search(FIXTURES / "light", KIT))


@pytest.fixture
def torch_and_catalog(fakes: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """In the worker, torch is torch, and the catalog whole."""
    _, _, path = os.environ["PYTHONPATH"].partition(os.pathsep)
    monkeypatch.setenv("PYTHONPATH", path)


@pytest.fixture(scope="session")
def catalog() -> list[dict[str, Any]]:
    """What the kernel of the fakes declares."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", search(FIXTURES / "light"))
        return asyncio.run(supervisor.describe([f"{KIT / 'own.py'}:SPEC"]))
