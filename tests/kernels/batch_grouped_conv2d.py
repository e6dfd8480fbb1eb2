"""Convolution in groups and by channel, in Triton's interpreter."""

import torch
import torch.nn.functional as F
from interpreted import INF, NAN, SPECS, against_reference, close, compare, draw, poisoned, told_apart
from tilescope_kernels import conv2d
from tilescope_kernels.convolution import grouped_conv2d

LAYOUTS = (torch.contiguous_format, torch.channels_last)
#: Channels, filters and groups: several groups together, with some left over; one at a time, in more than a block; by channel.
GROUPS = ((4, 6, 2), (66, 33, 33), (30, 10, 10), (80, 70, 2), (6, 6, 6), (5, 15, 5), (72, 30, 3), (32, 16, 4))


def _operands(channels, filters, groups, kernel=(3, 3), extents=(7, 6), *, dtype=torch.float32):
    shapes = (2, channels, *extents), (filters, channels // groups, *kernel), (filters,)
    return [draw(*shape, seed=seed).to(dtype) for seed, shape in enumerate(shapes)]


def _wanted(x, w, b, *options):
    return F.conv2d(x.double(), w.double(), None if b is None else b.double(), *options)


def check_small_workloads_and_that_every_element_is_written():
    with poisoned():
        for extents in ("1x1x1x1x1x1", "2x5x7x9x3x2", "1x33x6x5x1x1", "3x8x2x3x5x1", "2x3x9x9x2x3"):
            against_reference("depthwise_conv2d", f"{extents}-fp32")


def check_groups():
    for channels, filters, groups in GROUPS:
        for dtype, tolerance in ((torch.float32, 1e-6), (torch.float16, 1e-3)):
            x, w, b = _operands(channels, filters, groups, dtype=dtype)
            with poisoned():
                y = conv2d(x, w, b, 1, 1, groups=groups)
            close(y, _wanted(x, w, b, 1, 1, 1, groups), tolerance)


def check_every_config_by_channel():
    x, w, b = _operands(12, 12, 12, (5, 3), (9, 11), dtype=torch.float16)
    for config in told_apart(SPECS["depthwise_conv2d"].implementations["triton"].configs):
        for layout in LAYOUTS:
            y = conv2d(x.to(memory_format=layout), w, b, 1, 1, groups=12, config=config)
            close(y, _wanted(x, w, b, 1, 1, 1, 12), 1e-3)


def check_every_config_in_groups():
    for channels, filters, groups in ((66, 33, 33), (80, 70, 2)):
        x, w, b = _operands(channels, filters, groups, dtype=torch.float16)
        for config in told_apart(grouped_conv2d.CONFIGS):
            close(conv2d(x, w, b, 1, 1, groups=groups, config=config), _wanted(x, w, b, 1, 1, 1, groups), 1e-3)


def check_stride_padding_and_dilation():
    for channels, groups in ((4, 4), (4, 2)):
        x, w, b = _operands(channels, 8, groups, (3, 2), (13, 11))
        for options in ((1, 2, 1), (2, (1, 3), 1), ((3, 1), 0, 2), (1, 2, (3, 1))):
            for layout in LAYOUTS:
                y = conv2d(x.to(memory_format=layout), w, b, *options, groups)
                close(y, _wanted(x, w, b, *options, groups))


def check_more_taps_than_are_unrolled():
    for kernel, options in (
        ((9, 8), (1, 4, 1, 3)),
        ((1, 50), (1, (0, 25), 1, 3)),
        ((8, 7), ((2, 3), (3, 9), (1, 2), 3)),
    ):
        x, w, b = _operands(3, 6, 3, kernel, (13, 11))
        for layout in LAYOUTS:
            close(conv2d(x.to(memory_format=layout), w, b, *options), _wanted(x, w, b, *options), 2e-6)


def check_strided_images_are_read_where_they_are():
    x, w, b = _operands(8, 8, 8, extents=(12, 10))
    last = x.to(memory_format=torch.channels_last)
    for images in (
        x[:, :, ::2, 1:], x[..., ::3], x.mT, x[:, 1::2], last[:, :, 3:, ::2], last[:, ::2], last[:, 3:], last[1:], x[:1].expand(3, -1, -1, -1),
    ):  # fmt: skip
        channels = images.shape[1]
        with poisoned():
            y = conv2d(images, w[:channels], b[:channels], 1, 1, groups=channels)
        close(y, _wanted(images, w[:channels], b[:channels], 1, 1, 1, channels))
        assert y.is_contiguous(memory_format=LAYOUTS[images.stride(1) == 1])
    for images in (x[:, :, ::2, 1:], last[:, :, 3:, ::2], x.mT):
        close(
            conv2d(images, w.expand(-1, 2, -1, -1), b, groups=4),
            _wanted(images, w.expand(-1, 2, -1, -1), b, 1, 0, 1, 4),
        )
    close(conv2d(x, w.mT, b[::2].repeat(2), groups=8), _wanted(x, w.mT, b[::2].repeat(2), 1, 0, 1, 8))


def check_special_values_and_relu():
    """A number of one group is none of another's, though they are multiplied together."""
    for groups in (8, 4, 2):
        x, w, b = _operands(8, 8, groups)
        x[0, 0, 0, 0], x[0, 3, 5, 5], x[0, 7, 0, 5] = NAN, INF, -INF
        close(conv2d(x, w.abs(), b, 1, 1, groups=groups, relu=True), F.relu(_wanted(x, w.abs(), b, 1, 1, 1, groups)))


def check_gradients():
    for channels, filters, groups in ((6, 6, 6), (3, 6, 3), (12, 18, 6)):
        x, w, b = _operands(channels, filters, groups)
        for layout, relu in zip(LAYOUTS, (False, True), strict=True):
            compare(
                lambda *xwb, relu=relu, groups=groups: conv2d(*xwb, 2, 1, groups=groups, relu=relu),
                lambda *xwb, relu=relu, groups=groups: (F.relu if relu else torch.clone)(
                    F.conv2d(*xwb, 2, 1, 1, groups)
                ),
                (x.to(memory_format=layout), w, b), times=1.0,
            )  # fmt: skip


def check_empty():
    for groups in (4, 2):
        x, w, b = _operands(4, 4, groups)
        assert conv2d(x[:0], w, b, groups=groups).shape == (0, 4, 5, 4)
        assert conv2d(x, w[:0], b[:0], groups=groups).shape == (2, 0, 5, 4)
        leaf = x[:0].requires_grad_()
        assert torch.autograd.grad(conv2d(leaf, w, b, groups=groups).sum(), leaf)[0].shape == leaf.shape
