"""Runs checks of kernels in a process of their own, because Triton's interpreter patches ``triton.language`` there.

A module of tests names its scripts: ``SCRIPTS = {"batch_softmax.py": {"check_quick"}}``. Each ``check_...`` of them is a test;
those named are part of every run, the others are slow.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from tests.forking import Host

HERE = Path(__file__).parent
pytest.register_assert_rewrite("tests.kernels.adapted")


def decides(script: str) -> pytest.MarkDecorator:
    """``slow``, with what decides the results of a script: the kernels, how it is run, and what it imports from here or tilescope."""
    text = (HERE / script).read_text(encoding="utf-8")
    files = {
        "conftest.py",
        "checks.py",
        "run_forked.py",
        script,
        *(f"{name}.py" for name in re.findall(r"^from (\w+) import", text, re.M)),
    }
    profiler = ["profiles/tilescope"] if re.search(r"^from tilescope[ .]", text, re.M) else []
    return pytest.mark.slow(
        "kernels", "tests/forking.py", *profiler, *(f"tests/kernels/{file}" for file in files if (HERE / file).exists())
    )


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "wrong" not in metafunc.fixturenames:
        return
    cases = []
    for script, quick in metafunc.module.SCRIPTS.items():
        slow, text = decides(script), (HERE / script).read_text(encoding="utf-8")
        checks = re.findall(r"^def (check_\w+)", text, re.M)
        assert set(quick) <= set(checks), f"{script} has no {set(quick) - set(checks)}"
        cases += [pytest.param((script, name), marks=() if name in quick else slow, id=name) for name in checks]
    metafunc.parametrize("wrong", cases, indirect=True)


@pytest.fixture(scope="session")
def batch() -> Callable[..., Any]:
    """``batch(script, *names)`` is what ``script`` prints of those names, as JSON. It runs once a session.

    Scripts that are interpreted are forked from one process that has imported what all of them do.
    """
    hosts: list[Host] = []

    @cache
    def run(script: str, *names: str) -> Any:
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(p for p in sys.path if p)}
        environment.pop("TILESCOPE_USE_TRITON", None)
        # NumPy warns of the NaN and infinity that these kernels are meant to produce, and of how triton 3.6 uses it.
        ignored = ("ignore::RuntimeWarning", "ignore:Conversion of an array:DeprecationWarning")
        warnings = [part for rule in ("error", *ignored) for part in ("-W", rule)]
        python = [sys.executable, *warnings]
        if "from interpreted import" in (HERE / script).read_text(encoding="utf-8"):
            if not hosts:
                hosts.append(Host([*python, str(HERE / "run_forked.py")], environment))
            return hosts[0].ask([script, *names], {**environment, "TRITON_INTERPRET": "1"})[-1]
        command = [*python, str(HERE / script), *names]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=800, check=False)
        assert done.returncode == 0, done.stderr[-4000:]
        return json.loads(done.stdout.splitlines()[-1])

    return run


@pytest.fixture
def wrong(batch: Callable[..., Any], request: pytest.FixtureRequest) -> str:
    """What went wrong in a check, empty where nothing did. A script's checks of this run share one process."""
    script, check = request.param
    asked = [item.callspec.params.get("wrong") for item in request.session.items if hasattr(item, "callspec")]
    return batch(script, *(case[1] for case in asked if case and case[0] == script))[check]
