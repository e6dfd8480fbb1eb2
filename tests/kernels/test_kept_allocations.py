"""What a replay allocates, and what it hands to its launches."""

import pytest
import torch
from tilescope_kernels._shared import launches, operators
from tilescope_kernels._shared.kept import Kept

from .noted_launches import MADE, gpu, scaled_kernel  # noqa: F401 - gpu is a fixture
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
