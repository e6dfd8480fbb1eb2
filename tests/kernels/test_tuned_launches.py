"""Launches of kernels under an autotuner and heuristics, which are asked once."""

import pytest
import torch
import triton
from tilescope_kernels._shared import autotuning, launches
from tilescope_kernels._shared.kept import Kept
from tilescope_kernels.matrix_products import matmul
from triton.runtime import autotuner

from .noted_launches import MADE, SEARCHES, gpu, scaled_kernel  # noqa: F401 - gpu is a fixture

pytestmark = pytest.mark.usefixtures("gpu")

ASKED: list[int] = []


def is_plain(args):
    ASKED.append(args["n"])
    return args["n"] % args["BLOCK"] == 0


def grid(meta):
    return (triton.cdiv(meta["n"], meta["BLOCK"]),)


@pytest.fixture
def kernel(monkeypatch):
    """An autotuner of two configs, the second the faster one, over heuristics."""
    configs = [triton.Config({"BLOCK": size}, num_warps=1) for size in (16, 32)]
    tuner = triton.autotune(configs, key=["n"])(triton.heuristics({"PLAIN": is_plain})(scaled_kernel))
    monkeypatch.setattr(tuner, "_bench", lambda *args, config, **options: 1.0 / config.kwargs["BLOCK"])
    ASKED.clear()
    return tuner


def launched(kernel, n=64, dtype=torch.float32, **options):
    """The arguments of the launch that a call makes, after the addresses, and whether Triton searched for the kernel."""
    y, x = torch.zeros(1024, dtype=dtype), torch.zeros(1024, dtype=dtype)
    MADE.clear()
    SEARCHES.clear()
    launches.launch_tuned(kernel, grid, y, x, None, (1, 64), n, 2.0, **options)
    ((_, blocks, to, source, *rest),) = MADE
    assert (to, source) == (y.data_ptr(), x.data_ptr())
    return blocks[0], rest, bool(SEARCHES)


def test_the_third_launch_asks_nobody(kernel):
    first = launched(kernel)
    assert first == (2, [None, (1, 64), 64, 2.0, 32, True], True)
    # The second is compiled already, but searched for once more, by its choice.
    assert launched(kernel)[:2] == first[:2]
    asked = len(ASKED)
    assert launched(kernel) == (*first[:2], False) and len(ASKED) == asked
    assert launched(kernel, n=65) == (3, [None, (1, 64), 65, 2.0, 32, False], True) and len(ASKED) > asked


def test_other_dtypes_and_options_are_chosen_for_anew(kernel):
    for _ in range(3):
        launched(kernel)
    asked = len(ASKED)
    launched(kernel, dtype=torch.float16)
    assert len(ASKED) > asked
    single = triton.heuristics({"PLAIN": is_plain})(scaled_kernel)
    results = [launched(single, BLOCK=size, num_warps=1) for _ in range(3) for size in (16, 32)]
    assert [(blocks, rest[4]) for blocks, rest, _ in results] == [(4, 16), (2, 32)] * 3
    assert not results[-1][2] and not results[-2][2]


def test_the_autotuner_is_asked_where_somebody_looks_on(kernel, monkeypatch):
    for _ in range(3):
        launched(kernel)
    seen = []
    run = autotuner.Autotuner.run

    def noted(tuner, *args, **options):
        seen.append(tuner)
        return run(tuner, *args, **options)

    monkeypatch.setattr(autotuner.Autotuner, "run", noted)
    launched(kernel)
    assert seen == [kernel]


def test_a_config_with_a_hook_is_launched_by_triton(kernel):
    calls = []
    for config in kernel.configs:
        config.pre_hook = calls.append
    for _ in range(3):
        launched(kernel)
    assert len(calls) == 3


def test_an_operator_with_such_a_launch_is_made_again(kernel):
    def operator(x):
        ASKED.append(0)
        y = x.new_empty(1024)
        launches.launch_tuned(kernel, grid, y, x, None, (1, 64), 64, 2.0)
        return y

    kept, x = Kept(operator), torch.zeros(1024)
    launched(kernel)
    for _ in range(3):
        kept(x)
    ASKED.clear()
    MADE.clear()
    y = kept(x)
    assert not ASKED and MADE[0][2:4] == (y.data_ptr(), x.data_ptr())


def test_what_is_remembered_has_an_end(kernel, monkeypatch):
    monkeypatch.setattr(launches, "_MOST", 2)
    for n in range(64, 70):
        launched(kernel, n=n)
    assert len(launches._CHOSEN) <= 2


def test_a_product_is_computed_by_its_own_config_not_by_that_of_the_one_timed_last(monkeypatch):
    configs = matmul.TUNED_FP32[-1], matmul.TUNED[-1]
    key = ("M", "N", "K", "A_COLUMNS", "B_COLUMNS")
    told = triton.heuristics(matmul.RULES)(matmul.matmul_kernel)
    tuners = autotuning.autotuned(told, configs, key, matmul._prune)
    for tuner in tuners:
        monkeypatch.setattr(tuner, "_bench", lambda *_, **__: 1.0)
    monkeypatch.setattr(matmul, "matmul_tuned", tuners)

    def depth(dtype, offset=0):
        a, b = (torch.zeros(69 * 41 + offset, dtype=dtype)[offset:] for _ in range(2))
        config = matmul._timed(a.view(69, 41), b.view(41, 69), torch.zeros(69, 69, dtype=dtype))
        return config["BLOCK_K"]

    assert depth(torch.float32) == 16
    assert depth(torch.bfloat16) == 64
    # Another alignment is another plan, but not another choice.
    assert depth(torch.float32, offset=1) == 16
