"""Catching launches."""

import copy
from pathlib import Path

import pytest
import torch
import triton
from tilescope.execution import execute, launches
from tilescope.table.case import Case

FILE = Path(__file__).parent / "small_kernels.py"


def caught(name, direction="forward", impl="triton"):
    ref = f"{FILE}:{name}"
    spec = execute.load_spec(ref)
    with launches.catch() as seen:
        execute.prepare(spec, Case(ref, impl, direction, spec.workloads[0].id), "meta")()
    return seen


def test_catch_of_a_wrong_call_restores_triton():
    before = triton.JITFunction.run, triton.runtime.Autotuner.run
    with pytest.raises(KeyError), launches.catch():
        raise KeyError
    assert (triton.JITFunction.run, triton.runtime.Autotuner.run) == before
    kernel = execute.load_spec(f"{FILE}:SOFTMAX").implementations["triton"].call.__globals__["softmax_kernel"]
    with pytest.raises(TypeError, match="softmax_kernel: missing a required argument"), launches.catch():
        kernel[(1,)](torch.empty(1, device="meta"))


def test_catch_uses_pruning_that_may_fail():
    kernel = copy.copy(execute.load_spec(f"{FILE}:TIMES").implementations["triton"].call.__globals__["scale_kernel"])
    x = torch.empty(10, device="meta")
    with launches.catch() as seen:
        for prune in (lambda configs, nargs, **_: configs[1:], lambda *_, **__: 1 / 0):
            kernel.early_config_prune = prune
            kernel[lambda meta: (meta["BLOCK"],)](x, x, n=10, factor=2.0)
    assert [launch.grid[0] for launch in seen] == [256, 1024]


def test_source_has_all_files_but_tritons():
    spec = execute.load_spec("cross_entropy")
    with launches.catch() as seen:
        execute.prepare(spec, Case("cross_entropy", "triton", "forward", "128x1024-bf16"), "meta")()
    (source,) = (launch.source for launch in seen if launch.name == "cross_entropy_kernel")
    assert sorted(source) == ["cross_entropy.py", "exponentials.py", "online_softmax.py", "row_tiles.py"]
    assert "def sum_exp(" in source["online_softmax.py"]
    assert "def cross_entropy_kernel(" in source["cross_entropy.py"]
