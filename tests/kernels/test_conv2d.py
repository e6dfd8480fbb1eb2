"""Convolution: interpreted values, and what can be said without running a kernel."""

import pytest
import tilescope_kernels as kernels
import torch
from tilescope_kernels import CATALOG
from tilescope_kernels.convolution import conv2d, grouped_conv2d
from tilescope_kernels.spec import FORWARD, Workload

SCRIPTS = ["batch_conv2d.py"]
SPEC = next(spec for spec in CATALOG if spec.name == "conv2d")
X, W = torch.ones(2, 4, 6, 5), torch.ones(3, 4, 3, 3)


def test_interpreted(wrong):
    assert not wrong, wrong


def test_a_gpu_is_asked_for():
    with pytest.raises(ValueError, match="input is on cpu: Triton needs a CUDA device"):
        kernels.conv2d(X, W)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"input": X[0]}, "input has 3 dimensions"),
        ({"weight": W[0]}, "weight has 3 dimensions"),
        ({"weight": W[:, :2]}, "weight has 2 channels but input has 4"),
        ({"weight": torch.ones(3, 4, 7, 3)}, r"weight has shape \(3, 4, 7, 3\): too large for images of \(6, 5\)"),
        ({"bias": torch.ones(4)}, r"bias has shape \(4,\): give one number a filter, \(3,\)"),
        ({"bias": torch.ones(3).half()}, "bias is torch.float16 but input is torch.float32"),
        ({"groups": 2}, "groups is 2: it must divide the 3 filters"),
        ({"stride": 0}, "stride is 0"),
        ({"stride": (1, 1, 1)}, r"stride is \(1, 1, 1\)"),
        ({"padding": -1}, "padding is -1"),
        ({"padding": "same"}, "padding is 'same'"),
        ({"config": SPEC.implementations["triton"].configs[0]}, "config has TMA=1"),
        ({"dilation": (1, 0)}, r"dilation is \(1, 0\)"),
    ],
)
def test_what_does_not_fit_is_named(caught, change, message):
    with pytest.raises(ValueError, match=message):
        kernels.conv2d(**{"input": X, "weight": W, **change})
    assert not caught


def test_plain_pytorch_where_triton_is_switched_off(monkeypatch):
    monkeypatch.setenv("TILESCOPE_USE_TRITON", "0")
    x = torch.randn(1, 2, 5, 5)
    w = torch.zeros(2, 2, 1, 1)
    w[0, 1] = w[1, 0] = 1.0
    torch.testing.assert_close(kernels.conv2d(x, w, torch.ones(2), relu=True), (x.flip(1) + 1.0).relu())


def test_rectangles_waste_the_least():
    from tilescope_kernels.convolution.conv2d import _rectangle

    assert _rectangle(128, 32, 56, 56) == (2, 8, 8)
    assert _rectangle(128, 1, 1, 1000) == (1, 1, 128)
    assert _rectangle(64, 7, 64, 64) == (1, 8, 8)
    assert _rectangle(128, 200, 1, 1) == (128, 1, 1)


def test_cost_counts_every_tensor_once():
    large = SPEC.cost(SPEC.workload("large"), FORWARD)
    assert large.flops == 2 * (32 * 56 * 56) * 128 * (128 * 9)
    assert large.bytes_written == 32 * 56 * 56 * 128 * 2
    odd = Workload(dict(zip(SPEC.dims, (2, 3, 5, 7, 11, 2), strict=True)), "fp16")
    inputs = SPEC.inputs(odd, "cpu")
    moved = SPEC.cost(odd, FORWARD)
    assert moved.bytes_read == sum(t.numel() * 2 for t in inputs.values() if torch.is_tensor(t))
    assert moved.bytes_written == SPEC.reference(**inputs).numel() * 2


def test_more_pixels_than_32_bits_can_count_are_taken_in_parts(monkeypatch):
    images = []
    for module in (conv2d, grouped_conv2d):
        monkeypatch.setattr(
            module, "launch", lambda _, grid, *args, **__: images.append((grid, args[4], len(args[0]), len(args[1])))
        )
    ones = [1, 1]
    for channels, groups in ((1, 1), (2, 2)):
        x, w = torch.empty(5, 2**15, 2**15, channels, device="meta"), torch.empty(channels, 3, 3, 1, device="meta")
        given = (x, w, None, ones, ones, ones)
        if groups == 1:
            conv2d._conv2d._launch.function(*given, False, "")
        else:
            grouped_conv2d.grouped_conv2d._launch.function(*given, groups, False, "")
    assert images == [((2**30 // 64,), 1, 1, 1)] * 10
    with pytest.raises(ValueError, match="input gives images of 65536x32768: give parts"):
        conv2d._conv2d._launch.function(
            torch.empty(1, 2**16, 2**15, 1, device="meta"), w[:1], None, ones, ones, ones, False, ""
        )
