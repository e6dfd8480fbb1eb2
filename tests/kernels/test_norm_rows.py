"""Which kernel serves the rows of a norm or of softmax, by their extents."""

import pytest
import tilescope_kernels as kernels
import torch
from tilescope.execution import launches, offline

from .releases import GLUON

PARTIAL = "sum_partials_kernel"


def launched(name, x):
    columns = x.shape[-1]
    weight = torch.empty(columns, dtype=x.dtype, device="meta", requires_grad=True)
    with launches.catch() as seen:
        y = getattr(kernels, name)(x, columns, weight)
        torch.autograd.grad(y, (x, weight), torch.empty_like(y))
    return [(launch.function.fn.__name__, launch.arguments.get("VECTOR")) for launch in seen]


@pytest.mark.parametrize(("name", "shape", "dtype", "wanted"), [
    ("layer_norm", (4096, 1024), torch.bfloat16, [("layer_norm_kernel", 1), ("layer_norm_backward_kernel", 1)]),
    ("layer_norm", (4096, 1000), torch.bfloat16, [("layer_norm_kernel", 8), ("layer_norm_backward_kernel", 8)]),
    ("layer_norm", (4096, 1004), torch.float32, [("layer_norm_kernel", 4), ("layer_norm_backward_kernel", 4)]),
    ("rms_norm", (4096, 1000), torch.bfloat16, [("rms_norm_kernel", 8), ("rms_norm_backward_pieces_kernel", None)]),
    ("layer_norm", (999, 64), torch.bfloat16, [("layer_norm_kernel", 1), ("norm_short_rows_backward_kernel", 1)]),
    ("rms_norm", (999, 100), torch.bfloat16, [("rms_norm_kernel", 1), ("norm_short_rows_backward_kernel", 1)]),
    ("rms_norm", (999, 333), torch.float32, [("rms_norm_kernel", 1), ("norm_short_rows_backward_kernel", 1)]),
    ("rms_norm", (99, 12345), torch.bfloat16, [("rms_norm_kernel", 1), ("rms_norm_backward_kernel", 1)]),
    ("layer_norm", (99, 9992), torch.bfloat16, [("layer_norm_pieces_kernel", None), ("layer_norm_backward_pieces_kernel", None)]),
    ("layer_norm", (99, 4097), torch.bfloat16, [("layer_norm_kernel", 1), ("layer_norm_backward_kernel", 1)]),
])  # fmt: skip
def test_rows_have_the_kernel_for_their_extents(name, shape, dtype, wanted):
    x = torch.empty(shape, dtype=dtype, device="meta", requires_grad=True)
    assert launched(name, x) == [*wanted, (PARTIAL, None)]


def test_rows_apart_get_the_general_kernel():
    x = torch.empty(64, 1302, device="meta")[:, :601].requires_grad_()
    assert [name for name, _ in launched("rms_norm", x)] == ["rms_norm_kernel", "rms_norm_backward_kernel", PARTIAL]


@pytest.mark.parametrize(("columns", "dtype", "strided", "wanted"), [
    (24576, torch.bfloat16, False, "softmax_pieces_kernel"),
    pytest.param(65536, torch.bfloat16, False, {"HELD": 14, "TAIL": 2, "WIDTH": 8, "SKEWED": False}, marks=GLUON),
    pytest.param(32768, torch.float16, True, {"HELD": 8, "TAIL": 0, "WIDTH": 8, "SKEWED": False}, marks=GLUON),
    pytest.param(32767, torch.float32, False, {"HELD": 28, "TAIL": 4, "WIDTH": 4, "SKEWED": True}, marks=GLUON),
    (32767, torch.bfloat16, True, "softmax_online_kernel"),
    (69632, torch.bfloat16, False, "softmax_online_kernel"),
])  # fmt: skip
def test_softmax_holds_rows_of_which_two_fit_an_sm(columns, dtype, strided, wanted):
    x = torch.empty(99, columns + 16 * strided, dtype=dtype, device="meta")[:, :columns]
    with offline.targeting("sm_90"), launches.catch() as seen:
        kernels.softmax(x)
    (launch,) = seen
    if isinstance(wanted, str):
        assert launch.name == wanted
    else:
        assert launch.name == "softmax_held_kernel" and wanted.items() <= launch.constants.items()
        with offline.targeting("sm_90"):
            kernel = offline.compile_launch(launch)
        assert "cp.async.cg" in kernel.asm["ptx"] and ".local" not in kernel.asm["ptx"]
        assert 2 * (kernel.metadata.shared + 1024) <= 228 * 1024


def test_softmax_spreads_few_long_rows():
    with offline.targeting("sm_90"), launches.catch() as seen:
        for columns in (128256, 128250):
            kernels.softmax(torch.empty(16, columns, dtype=torch.bfloat16, device="meta"))
    assert [launch.name for launch in seen] == [
        "softmax_part_sums_kernel",
        "softmax_parts_kernel",
        "softmax_online_kernel",
    ]
