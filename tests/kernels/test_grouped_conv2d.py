"""Convolution in groups and by channel: interpreted values, what is refused, and that no config spills registers."""

import pytest
import tilescope_kernels as kernels
import torch
from tilescope.execution import launches, offline
from tilescope_kernels.convolution import depthwise_conv2d

SCRIPTS = ["batch_grouped_conv2d.py"]
X, W = torch.ones(2, 12, 6, 5), torch.ones(12, 1, 3, 3)


def test_interpreted(wrong):
    assert not wrong, wrong


def test_a_gpu_is_asked_for():
    for groups, weight in ((12, W), (6, W.expand(-1, 2, -1, -1))):
        with pytest.raises(ValueError, match="input is on cpu: Triton needs a CUDA device"):
            kernels.conv2d(X, weight, groups=groups)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"groups": 5}, "groups is 5: it must divide the 12 channels of input"),
        ({"weight": W[:9]}, "groups is 12: it must divide the 9 filters of weight"),
        ({"groups": 4}, "weight has 1 channels but input has 12 in 4 groups, 3 each: they must be equal"),
        ({"groups": 0}, "groups is 0: give a whole number of at least 1"),
        ({"groups": 2.0}, r"groups is 2\.0"),
        ({"bias": torch.ones(6)}, r"bias has shape \(6,\): give one number a filter, \(12,\)"),
        ({"weight": torch.ones(12, 1, 7, 3)}, "too large for images of"),
        ({"weight": torch.ones(12, 1, 0, 3)}, "or empty"),
        ({"stride": (1, 0)}, r"stride is \(1, 0\)"),
    ],
)
def test_what_does_not_fit_is_named_in_one_line(caught, change, message):
    with pytest.raises(ValueError, match=message) as error:
        kernels.conv2d(**{"input": X, "weight": W, "groups": 12, **change})
    assert "\n" not in str(error.value)
    assert not caught


def test_plain_pytorch_where_triton_is_switched_off(monkeypatch):
    monkeypatch.setenv("TILESCOPE_USE_TRITON", "0")
    x = torch.randn(1, 4, 5, 5)
    swapped = torch.tensor([[[[0.0]], [[1.0]]], [[[1.0]], [[0.0]]]]).repeat(2, 1, 1, 1)
    pairs = x.unflatten(1, (2, 2)).flip(2).flatten(1, 2)
    torch.testing.assert_close(kernels.conv2d(x, swapped, torch.ones(4), groups=2, relu=True), (pairs + 1.0).relu())
    found = depthwise_conv2d.depthwise_conv2d(x, torch.full((4, 1, 1, 1), 2.0), relu=True)
    torch.testing.assert_close(found, 2.0 * x.relu())


def compiled(x, weight, groups, stride):
    """What is launched, compiled for Hopper."""
    padding = weight.shape[2] // 2
    with offline.targeting("sm_90"):
        with launches.catch() as caught:
            kernels.conv2d(x, weight, weight.new_empty(weight.shape[0]), stride, padding, 1, groups)
        made = [offline.compile_launch(launch) for launch in caught]
        for kernel in made:
            kernel._init_handles()
    return made


def images(*shape, dtype=torch.bfloat16, last=True):
    x = torch.empty(shape, dtype=dtype, device="meta")
    return x.to(memory_format=torch.channels_last) if last else x


@pytest.mark.parametrize(("kernel", "stride"), [(3, 1), (3, 2), (5, 1), (5, 2), (7, 1)])
def test_no_registers_are_spilled_by_channel(kernel, stride):
    weight = torch.empty(96, 1, kernel, kernel, dtype=torch.bfloat16, device="meta")
    for last in (True, False):
        for made in compiled(images(8, 96, 56, 56, last=last), weight, 96, stride):
            assert made.n_spills == 0, last


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_no_registers_are_spilled_in_groups(dtype):
    for channels, own in ((128, 4), (256, 8), (256, 32), (256, 64), (512, 256)):
        weight = torch.empty(channels, own, 3, 3, dtype=dtype, device="meta")
        (made,) = compiled(images(8, channels, 28, 28, dtype=dtype), weight, channels // own, 1)
        assert made.n_spills == 0, own


def test_strides_that_do_not_fit_32_bits_are_not_divided(monkeypatch):
    """By what channels a thread loads at once: the kernel would multiply the quotient in 32 bits."""
    given = []
    monkeypatch.setattr(depthwise_conv2d, "launch", lambda _, grid, *args, **constants: given.append((args, constants)))
    for height, unit in ((8191, 8), (8192, 1)):
        x = torch.empty(2, height, 4096, 64, device="meta").permute(0, 3, 1, 2)
        ones = [1, 1]
        depthwise_conv2d.depthwise._launch.function(x, W[:1].expand(64, 1, 3, 3), None, ones, ones, ones, False, "")
        args, constants = given[-1]
        assert constants["UNIT"] == unit
        assert args[13] * unit == x.stride(0)
