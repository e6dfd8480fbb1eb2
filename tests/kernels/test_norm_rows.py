"""Which kernel serves the rows of a norm, by their extents."""

import pytest
import tilescope_kernels as kernels
import torch
from tilescope.execution import launches

PARTIAL = "sum_partials_kernel"


def launched(name, x):
    columns = x.shape[-1]
    weight = torch.empty(columns, dtype=x.dtype, device="meta", requires_grad=True)
    with launches.catch() as seen:
        y = getattr(kernels, name)(x, columns, weight)
        torch.autograd.grad(y, (x, weight), torch.empty_like(y))
    return [(launch.function.fn.__name__, launch.arguments.get("VECTOR")) for launch in seen]


@pytest.mark.parametrize(
    ("name", "shape", "dtype", "wanted"),
    [
        ("layer_norm", (4096, 1024), torch.bfloat16, [("layer_norm_kernel", 1), ("layer_norm_backward_kernel", 1)]),
        ("layer_norm", (4096, 1000), torch.bfloat16, [("layer_norm_kernel", 8), ("layer_norm_backward_kernel", 8)]),
        ("layer_norm", (4096, 1004), torch.float32, [("layer_norm_kernel", 4), ("layer_norm_backward_kernel", 4)]),
        ("rms_norm", (4096, 1000), torch.bfloat16, [("rms_norm_kernel", 8), ("rms_norm_backward_pieces_kernel", None)]),
        ("layer_norm", (999, 64), torch.bfloat16, [("layer_norm_kernel", 1), ("norm_short_rows_backward_kernel", 1)]),
        ("rms_norm", (999, 100), torch.bfloat16, [("rms_norm_kernel", 1), ("norm_short_rows_backward_kernel", 1)]),
        ("rms_norm", (999, 333), torch.float32, [("rms_norm_kernel", 1), ("norm_short_rows_backward_kernel", 1)]),
        ("rms_norm", (99, 12345), torch.bfloat16, [("norm_unaligned_kernel", None), ("norm_unaligned_backward_kernel", None)]),
        ("layer_norm", (99, 4097), torch.bfloat16, [("norm_unaligned_kernel", None), ("norm_unaligned_backward_kernel", None)]),
    ],
)  # fmt: skip
def test_rows_have_the_kernel_for_their_extents(name, shape, dtype, wanted):
    x = torch.empty(shape, dtype=dtype, device="meta", requires_grad=True)
    assert launched(name, x) == [*wanted, (PARTIAL, None)]


def test_rows_apart_have_the_kernel_that_asks_nothing_of_their_places():
    x = torch.empty(64, 1302, device="meta")[:, :601].requires_grad_()
    assert [name for name, _ in launched("rms_norm", x)] == ["rms_norm_kernel", "rms_norm_backward_kernel", PARTIAL]
