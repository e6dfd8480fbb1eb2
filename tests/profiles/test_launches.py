"""Catching launches."""

from pathlib import Path

import pytest
import torch
import triton
from tilescope.execution import execute, launches
from tilescope.table.case import Case

FILE = Path(__file__).parent / "small_kernels.py"


def caught(name: str, direction: str = "forward", impl: str = "triton") -> list[launches.Launch]:
    ref = f"{FILE}:{name}"
    spec = execute.load_spec(ref)
    with launches.catch() as seen:
        execute.prepare(spec, Case(ref, impl, direction, spec.workloads[0].id), "meta")()
    return seen


def test_a_launch_is_seen_whole() -> None:
    (launch,) = caught("MATMUL")
    assert launch.name == "mm_kernel"
    assert launch.grid == (1, 1, 1)
    assert launch.arguments["K"] == 128
    assert launch.constants == {"BM": 128, "BN": 256, "BK": 64, "num_warps": 8, "num_stages": 3}
    assert launch.config == {}


def test_an_autotuner_takes_its_first_config_and_heuristics_run() -> None:
    (launch,) = caught("TIMES")
    assert launch.grid == (5, 1, 1)
    assert launch.constants["BLOCK"] == 1024
    assert launch.constants["num_warps"] == 2
    assert launch.constants["EVEN"] is False
    assert launch.config["BLOCK"] == 1024


def test_backward_launches_follow_forward_ones() -> None:
    forward, backward = caught("TIMES", "backward")
    assert forward.arguments["x_ptr"].requires_grad
    assert not backward.arguments["x_ptr"].requires_grad


def test_eager_code_launches_nothing() -> None:
    assert caught("TIMES", impl="eager") == []


def test_triton_is_as_before_afterwards_even_after_an_error() -> None:
    before = triton.JITFunction.run, triton.runtime.Autotuner.run
    with pytest.raises(KeyError), launches.catch():
        raise KeyError
    assert (triton.JITFunction.run, triton.runtime.Autotuner.run) == before


def test_pruning_is_asked_and_may_fail() -> None:
    kernel = execute.load_spec(f"{FILE}:TIMES").implementations["triton"].call.__globals__["scale_kernel"]
    x = torch.empty(10, device="meta")

    def grid(meta: dict[str, int]) -> tuple[int]:
        return (meta["BLOCK"],)

    def fail(*_: object, **__: object) -> None:
        raise RuntimeError("no GPU")

    with pytest.MonkeyPatch.context() as patch, launches.catch() as seen:
        patch.setattr(kernel, "early_config_prune", lambda configs, nargs, **_: configs[1:])
        kernel[grid](x, x, n=10, factor=2.0)
        patch.setattr(kernel, "early_config_prune", fail)
        kernel[grid](x, x, n=10, factor=2.0)
    assert [launch.grid[0] for launch in seen] == [256, 1024]


def test_launches_inside_a_custom_operator_are_seen_on_meta() -> None:
    call = execute.load_spec(f"{FILE}:SOFTMAX").implementations["triton"].call

    @torch.library.custom_op("tilescope_tests::softmax", mutates_args=())
    def operator(x: torch.Tensor) -> torch.Tensor:
        return call(x)

    operator.register_fake(torch.empty_like)
    with launches.catch() as seen:
        operator(torch.empty(4, 8, device="meta"))
    assert [launch.name for launch in seen] == ["softmax_kernel"]


def test_a_wrong_call_names_the_kernel() -> None:
    kernel = execute.load_spec(f"{FILE}:SOFTMAX").implementations["triton"].call.__globals__["softmax_kernel"]
    with pytest.raises(TypeError, match="softmax_kernel: missing a required argument"), launches.catch():
        kernel[(1,)](torch.empty(1, device="meta"))


def test_the_source_is_that_of_all_that_a_kernel_calls_but_for_tritons_own() -> None:
    spec = execute.load_spec("cross_entropy")
    with launches.catch() as seen:
        execute.prepare(spec, Case("cross_entropy", "triton", "forward", "128x1024-bf16"), "meta")()
    (source,) = (launch.source for launch in seen if launch.name == "cross_entropy_kernel")
    assert sorted(source) == ["cross_entropy_kernels.py", "online_softmax.py", "row_tiles.py"]
    assert "def sum_exp(" in source["online_softmax.py"]
    assert "def cross_entropy_kernel(" in source["cross_entropy_kernels.py"]
