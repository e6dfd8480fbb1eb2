"""Runs batches of checks in a process of their own, because Triton's interpreter patches ``triton.language`` there."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from functools import cache
from pathlib import Path

import pytest

HERE = Path(__file__).parent


@pytest.fixture(scope="session")
def batch() -> Callable[[str], dict[str, str]]:
    """``batch(script)`` runs ``script`` once a session: check name to what went wrong, empty where nothing did."""

    @cache
    def run(script: str) -> dict[str, str]:
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(p for p in sys.path if p)}
        environment.pop("TILESCOPE_USE_TRITON", None)
        # NumPy warns of the NaN and infinity that these kernels are meant to produce, and of how triton 3.6 uses it.
        ignored = ("ignore::RuntimeWarning", "ignore:Conversion of an array:DeprecationWarning")
        warnings = [part for rule in ("error", *ignored) for part in ("-W", rule)]
        command = [sys.executable, *warnings, str(HERE / script)]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=800, check=False)
        assert done.returncode == 0, done.stderr[-4000:]
        results: dict[str, str] = json.loads(done.stdout.splitlines()[-1])
        return results

    return run
