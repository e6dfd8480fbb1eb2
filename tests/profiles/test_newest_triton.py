"""The interpreter's tests with the newest Triton that they are known to pass with, which is installed beside the pinned one."""

import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest
from tilescope.collectors.interpreter import TESTED

ROOT = Path(__file__).parents[2]
FILES = [f"tests/profiles/test_{name}.py" for name in ("interpreter_language", "data_flow")]
VERSION = "import importlib.metadata as known; print(known.version('triton'))"


def test_newest_triton_passes_the_interpreters_tests():
    with tempfile.TemporaryDirectory() as folder:
        pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-compile", "--target", folder,
               f"triton=={TESTED[-1]}"]  # fmt: skip
        if subprocess.run(pip, check=False).returncode:
            pytest.skip(f"Triton {TESTED[-1]} cannot be installed here")
        environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
        environment["PYTHONPATH"] = os.pathsep.join([folder, os.environ.get("PYTHONPATH", "")])

        def told(*command):
            done = subprocess.run(
                [sys.executable, *command], cwd=ROOT, env=environment, capture_output=True, text=True, check=False
            )
            assert done.returncode == 0, done.stdout + done.stderr
            return done.stdout

        assert told("-c", VERSION).strip() == TESTED[-1]
        assert " passed" in told("-m", "pytest", "-q", *FILES)
