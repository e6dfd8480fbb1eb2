"""``tilescope watch``: a script is profiled again at every save, and what changed is said."""

import contextlib
import os
import queue
import signal
import subprocess
import sys
import threading

import pytest

SCRIPT = """
import torch
import triton
import triton.language as tl
from shared import FACTOR


@triton.jit
def scale_kernel(x_ptr, y_ptr, n, FACTOR: tl.constexpr, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(x_ptr + i, mask=i < n)
    tl.store(y_ptr + i, x * FACTOR, mask=i < n)


x = torch.ones(1000, device="cuda")
y = torch.empty_like(x)
scale_kernel[(8,)](x, y, 1000, FACTOR, BLOCK=128)
"""


class Watching:
    """``tilescope watch`` on a script in a folder; ``until`` returns the lines up to one that begins so."""

    def __init__(self, folder):
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tilescope", "watch", "--text", "own.py"], cwd=folder, text=True, stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT, start_new_session=True,
            env={**os.environ, "TILESCOPE_RUNS": str(folder / "runs"), "PYTHONUNBUFFERED": "1"},
        )  # fmt: skip
        self._lines = queue.Queue()
        self._reader = threading.Thread(target=self._read)
        self._reader.start()

    def _read(self):
        for line in self._process.stdout:
            self._lines.put(line.rstrip("\n"))

    def until(self, start):
        found = []
        while not found or not found[-1].startswith(start):
            found.append(self._lines.get(timeout=100))
        return found

    def end(self):
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGTERM)
        self._process.wait(timeout=30)
        self._reader.join(timeout=30)
        self._process.stdout.close()


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "own.py").write_text(SCRIPT)
    (tmp_path / "shared.py").write_text("FACTOR = 2\n")
    return tmp_path


@pytest.fixture
def watching(folder):
    started = Watching(folder)
    yield started
    started.end()


def test_watch_says_what_each_save_changed(folder, watching):
    first = watching.until("watching")
    assert first[-1] == "watching own.py, shared.py"
    assert "scale_kernel 1000-fp32" in first
    assert [
        word for word in ("registers", "requested", "occupancy") if any(line.startswith(word) for line in first)
    ] == ["registers", "requested", "occupancy"]

    (folder / "own.py").write_text(
        SCRIPT.replace("scale_kernel", "renamed_kernel").replace("+ i, mask", "+ i * 2, mask")
    )
    wrong = watching.until("watching")
    assert any(line.startswith("wrong: ") and "past the end" in line for line in wrong)
    assert "version 1 stays the last good one" in wrong
    assert not any(line.startswith("registers") for line in wrong), "nothing is concluded about a wrong kernel"

    (folder / "own.py").write_text(SCRIPT.replace("scale_kernel", "renamed_kernel").replace("128", "256"))
    good = watching.until("watching")
    assert "renamed_kernel 1000-fp32, paired with scale_kernel 1000-fp32 by its place" in good
    assert "-scale_kernel[(8,)](x, y, 1000, FACTOR, BLOCK=128)" in good

    (folder / "own.py").write_text("x = (\n")
    broken = watching.until("watching")
    assert any(line.startswith("wrong: own.py cannot be run") for line in broken)
    assert "version 3 stays the last good one" in broken

    (folder / "own.py").write_text(SCRIPT)
    watching.until("watching")
    (folder / "shared.py").write_text("FACTOR = 3\n")
    imported = watching.until("watching")
    assert "+FACTOR = 3" in imported
