"""The suites of test_gpu_adapted* in Triton's interpreter, in processes of their own: it patches ``triton.language``."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent
SUITES = sorted(path.stem for path in HERE.glob("test_gpu_adapted*.py"))


@pytest.mark.parametrize("suite", SUITES)
def test_in_the_interpreter(suite):
    # Not as a process of this run: it has a cache of its own, which it removes.
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
    command = [sys.executable, "-m", "pytest", "-q", str(HERE / f"{suite}.py")]
    environment["TRITON_INTERPRET"] = "1"
    ran = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert ran.returncode == 0 and " passed" in ran.stdout, ran.stdout[-8000:]
