"""What a replay allocates, and what it hands to its launches."""

import pytest
import torch
from tilescope_kernels._shared import launches, operators
from tilescope_kernels._shared.kept import Kept
from triton.tools.tensor_descriptor import TensorDescriptor

from .noted_launches import MADE, gpu, scaled_kernel, tiles_kernel  # noqa: F401 - gpu is a fixture
from .test_kept_launches import calls, two

pytestmark = pytest.mark.usefixtures("gpu")


def test_a_tensor_without_elements_has_no_memory_in_a_launch_that_is_made_again():
    def start(x: torch.Tensor) -> torch.Tensor:
        none = x.new_empty(0, 7)
        launches.launch(scaled_kernel, (2,), none, x, None, (1, 64), 64, 2.0, BLOCK=32, num_warps=1)
        return two(None, x)

    kept, x = Kept(start), torch.zeros(1024)
    assert calls(kept, x, times=4) == 2
    assert [made[2] for made in MADE[::3]] == [0] * 4


def test_a_dtype_that_no_argument_has_is_asked_for_once():
    def start(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        results = [torch.empty(shape, dtype=torch.int64) for shape in (3, 4)]
        for y in results:
            launches.launch(scaled_kernel, (2,), y, x, None, (1, 64), 64, 2.0, BLOCK=32, num_warps=1)
        return *results, two(None, x)

    kept, x = Kept(start), torch.zeros(1024)
    made = [kept(x) for _ in range(4)][-1]
    assert [(y.dtype, tuple(y.shape)) for y in made] == [(torch.int64, (3,)), (torch.int64, (4,)), (x.dtype, (1024,))]
    (again,) = kept._known.values()
    assert [each[0::3] for each in again._allocations[:2]] == [(0, {"dtype": torch.int64}), (1, {})]


def scaled(y: torch.Tensor, x: torch.Tensor) -> None:
    launches.launch(scaled_kernel, (2,), y, x, None, (1, 64), 64, 2.0, BLOCK=32, num_warps=1)


def test_what_launches_alone_see_shares_an_allocation():
    def start(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        first, y, half = x.new_empty(100), x.new_empty(3), x.new_empty(7, dtype=torch.float16)
        last = x.new_empty((), dtype=torch.int64)
        for one, other in ((first, x), (half, first), (last, half[1:]), (y, last)):
            scaled(one, other)
        return y

    kept, x = Kept(start), torch.zeros(1024)
    y = [kept(x) for _ in range(4)][-1]
    (again,) = kept._known.values()
    # The smallest comes first, each begins at a multiple of 512 bytes, and both tensors are made like ``x``.
    assert again._allocations == [(0, (3,), (1,), {}), (0, ((1024 + 400) // 4,), (1,), {})]
    (first, _), (half, of), (last, within), (result, of_last) = [made[2:4] for made in MADE[-4:]]
    assert (half, of, first) == (last + 512, first, last + 1024)
    assert (within, of_last, result) == (half + 2, last, y.data_ptr()) and y.untyped_storage().nbytes() == 12


def test_what_is_large_or_returned_or_described_has_an_allocation_of_its_own():
    def start(x: torch.Tensor) -> torch.Tensor:
        large, tiled, viewed = x.new_empty(1 << 18), x.new_empty((32, 64), dtype=torch.float16), x.new_empty(8)
        small, other = x.new_empty(5), x.new_empty(6)
        for each in (large, tiled, viewed, small, other):
            scaled(each, x)
        tiles = [TensorDescriptor(tiled, [32, 64], [64, 1], [16, 64]) for _ in range(2)]
        launches.launch(tiles_kernel, (2,), *tiles, BLOCK=16)
        return viewed[4:]

    kept, x = Kept(start), torch.zeros(1024)
    y = [kept(x) for _ in range(4)][-1]
    (again,) = kept._known.values()
    assert [shape for _, shape, *_ in again._allocations] == [(32, 64), (8,), (1 << 18,), ((512 + 24) // 4,)]
    large, tiled, viewed, small, other, (to, source) = [made[2:4] for made in MADE[-6:]]
    assert viewed[0] + 16 == y.data_ptr() and to.base is source.base and to.base.data_ptr() == tiled[0]
    assert len({large[0], tiled[0], viewed[0], small[0]}) == 4 and other[0] == small[0] + 512


def test_no_shared_allocation_is_of_more_than_a_mebibyte():
    def start(x: torch.Tensor) -> torch.Tensor:
        between = [x.new_empty(columns) for columns in (1 << 18, 1 << 16, 1 << 17, 1 << 16, 1)]
        for each in between:
            scaled(each, x)
        return x.new_empty(1)

    kept, x = Kept(start), torch.zeros(1024)
    for _ in range(4):
        kept(x)
    (again,) = kept._known.values()
    shapes = [(1 << 17,), (1 << 18,), ((1 << 17) + 128,)]
    assert [shape for _, shape, *_ in again._allocations] == [(1,), *shapes]


@operators.operator("test_kept_scale_", mutates=("x",))
def scale_(x: torch.Tensor, factor: float) -> None:
    launches.launch(scaled_kernel, (2,), x, x, None, (1, 64), 64, factor, BLOCK=32, num_warps=1)


def test_what_writes_its_argument_is_made_again_and_counts_its_version(monkeypatch):
    monkeypatch.setattr(operators, "DIRECT", "is_cpu")
    x = torch.zeros(1024)
    for times in range(1, 5):
        assert scale_(x, 2.0) is None
        assert (len(MADE), x._version) == (times, times)
    monkeypatch.setattr(scale_._launch, "function", lambda *_: pytest.fail("the launcher"))
    other = torch.zeros(1024)
    assert scale_(other, 2.0) is None
    assert MADE[-1][2] == other.data_ptr() and other._version == 1
    product = (leaf := torch.ones(1024, requires_grad=True)) * (factor := torch.ones(1024))
    scale_(factor, 2.0)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        product.sum().backward()
    assert leaf.grad is None
