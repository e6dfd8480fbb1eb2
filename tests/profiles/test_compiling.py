"""Compiling a launch within a time limit."""

import multiprocessing
import subprocess
import time

import pytest
import torch
from tilescope.collectors import compiler
from tilescope.execution import compiling, execute, launches, offline
from tilescope.execution.not_applicable import NotApplicable

from . import unseen_launches as unseen
from .capturing import small
from .processes import alive, wait_for

SOFTMAX = small("SOFTMAX", "3x8-fp32")


@pytest.fixture
def compile_by(monkeypatch):
    """Makes a function stand for the compiler."""
    return lambda function: monkeypatch.setattr(offline, "compile_launch", function)


def launch():
    with launches.catch() as caught:
        unseen.bits(torch.empty(64, device="meta"))
    return caught[0]


def test_compiled_launch_is_found_in_the_cache(monkeypatch, tmp_path):
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    with offline.targeting("sm_90"):
        kernel, took = compiling.compiled(launch(), 200)
        again, at_once = compiling.compiled(launch(), 200)
    assert kernel.asm["cubin"] == again.asm["cubin"] and took > 0 and at_once is None


def test_compiled_error_is_raised(compile_by):
    def broken(_launch):
        raise ValueError("no such thing")

    compile_by(broken)
    with pytest.raises(ValueError, match="no such thing"):
        compiling.compiled(launch(), 200)


def test_compiled_too_slow_ends_the_compiler(compile_by, tmp_path):
    started = tmp_path / "assembler"

    def slow(_launch):
        assembler = subprocess.Popen(["sleep", "300"])
        started.write_text(str(assembler.pid))
        assembler.wait()

    compile_by(slow)
    began = time.monotonic()
    with pytest.raises(compiling.TooSlow, match="bits_kernel was not compiled in 2 s"):
        compiling.compiled(launch(), 2)
    assert time.monotonic() - began < 100 and multiprocessing.active_children() == []
    wait_for(lambda: not alive(int(started.read_text())))


def test_compiler_skips_slow_cases_with_line_and_cure(compile_by, monkeypatch, tmp_path):
    monkeypatch.setattr(compiler, "LIMIT", 0.0)
    compile_by(lambda launch: time.sleep(300))
    spec = execute.load_spec(SOFTMAX.kernel)
    with pytest.raises(NotApplicable, match=r"was not compiled in 0 s \(small_kernels.py, line \d+\): .*smaller"):
        compiler.capture(SOFTMAX, spec, tmp_path / "artefact", {"target": "sm_90"})
