"""Types hold, as far as mypy sees."""

import subprocess
import sys
from pathlib import Path

import pytest


@pytest.fixture
def mypy() -> subprocess.CompletedProcess[str]:
    root = Path(__file__).resolve().parents[1]
    return subprocess.run([sys.executable, "-m", "mypy"], cwd=root, capture_output=True, text=True, check=False)


def test_types_hold(mypy: subprocess.CompletedProcess[str]) -> None:
    assert mypy.returncode == 0, mypy.stdout
