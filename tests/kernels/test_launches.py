"""Launches that were made before reach the compiled kernel with what Triton would hand it, and everyone who looks on sees them."""

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch
import triton
from tilescope.execution import launches as caught
from tilescope.execution import observe
from tilescope_kernels._shared import launches
from triton import knobs
from triton.runtime import driver
from triton.tools.tensor_descriptor import TensorDescriptor

from .noted_launches import CONTEXTS, MADE, SEARCHES, gpu, scaled_kernel, tiles_kernel  # noqa: F401 - gpu is a fixture

pytestmark = pytest.mark.usefixtures("gpu")


def start(n: int = 64, x: torch.Tensor | None = None, **more: Any) -> None:
    x = torch.zeros(1024) if x is None else x
    given = {"bias": None, "factor": 2.0, "BLOCK": 32, "num_warps": 1, **more}
    bias, factor = given.pop("bias"), given.pop("factor")
    launches.launch(scaled_kernel, (triton.cdiv(n, 32), 2), start.y, x, bias, (1, n), n, factor, **given)


start.y = torch.zeros(1024)


def test_the_second_launch_is_the_first_without_the_search():
    x = torch.zeros(1024)
    start(x=x)
    start(x=x)
    assert SEARCHES == ["run"]
    first, second = MADE
    assert first == second
    assert first[1] == (2, 2, 1, 7)
    assert first[2:] == (start.y.data_ptr(), x.data_ptr(), None, (1, 64), 64, 2.0, 32, True)


@pytest.mark.parametrize(
    "other",
    [
        {"n": 65}, {"n": 1}, {"x": torch.zeros(1025)[1:]}, {"x": torch.zeros(1024, dtype=torch.bfloat16)}, {"factor": 2},
        {"bias": torch.zeros(64)}, {"BLOCK": 64}, {"num_warps": 2}, {"PLAIN": False},
    ],
    ids=["n", "one", "alignment", "dtype", "type", "none", "block", "warps", "default"],
)  # fmt: skip
def test_what_a_kernel_may_be_specialized_on_is_searched_for_again(other):
    start()
    start(**other)
    assert len(SEARCHES) == 2
    start(**other)
    start()
    assert len(SEARCHES) == 2
    assert MADE[0][2:] == (*MADE[3][2:3], MADE[0][3], *MADE[3][4:])


def test_a_float_is_handed_over_as_it_is():
    start(factor=2.0)
    start(factor=3.5)
    assert len(SEARCHES) == 1
    assert [made[7] for made in MADE] == [2.0, 3.5]


def test_hooks_and_observers_see_every_launch():
    start()
    seen: list[Any] = []
    knobs.runtime.launch_enter_hook.add(seen.append)
    try:
        start()
    finally:
        knobs.runtime.launch_enter_hook.remove(seen.append)
    assert [data.get()["name"] for data in seen] == ["scaled_kernel"]
    before: list[Any] = []
    scaled_kernel.pre_run_hooks.append(lambda *args, **_: before.append(args))
    try:
        start()
    finally:
        scaled_kernel.pre_run_hooks.clear()
    assert len(before) == 1
    with observe.launches() as noted:
        start()
    assert [one["function"] for one in noted] == ["scaled_kernel"]
    start()
    assert SEARCHES == ["run"] * 4
    assert len(MADE) == 5


def test_a_launch_that_is_caught_is_not_made(monkeypatch):
    start()
    monkeypatch.delattr(scaled_kernel, "run")
    with caught.catch() as launched:
        start()
    assert [launch.arguments["n"] for launch in launched] == [64]
    assert len(MADE) == 1


def test_what_triton_has_dropped_is_compiled_again_and_debugging_is_another_kernel(monkeypatch):
    start()
    scaled_kernel.device_caches.clear()
    start()
    assert len(SEARCHES) == 2
    monkeypatch.setattr(knobs.runtime, "debug", True)
    start()
    assert len(SEARCHES) == 3


def test_what_is_remembered_has_an_end(monkeypatch):
    monkeypatch.setattr(launches, "_MOST", 2)
    for n in (2, 3, 4):
        start(n)
    assert len(launches._MADE) == 1


def test_another_gpu_is_made_the_current_one(monkeypatch):
    chosen: list[int] = []

    class Device:
        def __init__(self, index: int) -> None:
            chosen.append(index)
            self.index = index

        def __enter__(self) -> None:
            driver.active.get_current_device = lambda: self.index

        def __exit__(self, *_: Any) -> None:
            driver.active.get_current_device = lambda: 0

    monkeypatch.setattr(torch.cuda, "device", Device)
    start()
    monkeypatch.setattr(torch.Tensor, "get_device", lambda _: 1)
    start()
    assert chosen == [1]
    assert len(SEARCHES) == 2
    assert sorted(scaled_kernel.device_caches) == [0, 1]


def test_without_a_gpu_a_launch_is_triton_s(monkeypatch):
    monkeypatch.setattr(torch.Tensor, "get_device", lambda _: -1)
    start()
    start()
    assert len(SEARCHES) == 2
    assert not launches._MADE


def test_descriptors_are_handed_over_and_what_they_are_specialized_on_is_asked_for():
    def start(rows, block=16, dtype=torch.float16):
        tensors = (torch.zeros(rows, 64, dtype=dtype) for _ in range(2))
        tiles = [TensorDescriptor(tensor, list(tensor.shape), list(tensor.stride()), [block, 64]) for tensor in tensors]
        launches.launch(tiles_kernel, (2,), *tiles, BLOCK=block)
        return tiles

    start(32)
    tiles = start(48)
    assert SEARCHES == ["run"]
    assert [given is tile for given, tile in zip(MADE[-1][2:], tiles, strict=False)] == [True, True]
    assert len(MADE[0]) == len(MADE[1])
    start(32, block=32)
    start(32, dtype=torch.bfloat16)
    assert len(SEARCHES) == 3
    # Encoding one fails in a thread without a context, as autograd's begin.
    CONTEXTS.clear()
    with ThreadPoolExecutor(1) as thread:
        for _ in range(2):
            thread.submit(start, 32).result()
    assert CONTEXTS == [0]


def test_no_kernel_is_launched_but_through_launches():
    import ast
    from pathlib import Path

    root = Path(launches.__file__).parents[1]
    found = [
        f"{file.relative_to(root)}:{node.lineno}"
        for file in root.rglob("*.py")
        if file != Path(launches.__file__)
        for node in ast.walk(ast.parse(file.read_text()))
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Subscript)
        and not (isinstance(node.func.value, ast.Name) and node.func.value.id in ("tuple", "list", "dict", "type"))
    ]  # fmt: skip
    assert found == [], "an operator whose launches are made again would leave these out"
