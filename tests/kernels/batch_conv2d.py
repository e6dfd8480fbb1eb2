"""Convolution, in Triton's interpreter."""

import torch
import torch.nn.functional as F
from interpreted import INF, NAN, SPECS, against_reference, close, draw, poisoned, told_apart
from tilescope_kernels import conv2d

CONFIGS = SPECS["conv2d"].implementations["triton"].configs


def check_small_workloads_and_that_every_element_is_written():
    with poisoned():
        for extents in ("1x1x1x1x1x1", "2x5x7x9x11x3", "1x33x6x5x70x1", "3x8x2x3x4x5", "1x3x9x9x2x2"):
            against_reference("conv2d", f"{extents}-fp32")


def check_every_config():
    # fp16, which descriptors serve and the interpreter computes rightly.
    x, w, b = draw(3, 24, 9, 7).half(), draw(40, 24, 3, 3, seed=1).half(), draw(40, seed=2).half()
    wanted = F.conv2d(x.double(), w.double(), b.double(), 1, 1)
    for config in told_apart(CONFIGS):
        close(conv2d(x, w, b, 1, 1, config=config), wanted, 1e-3)


def check_stride_padding_and_dilation():
    x, w = draw(2, 8, 13, 11), draw(16, 8, 3, 2, seed=1)
    for options in ((1, 2, 1), (2, (1, 3), 1), ((3, 1), 0, 2), (1, 2, (3, 1)), (1, (1, 3), 1)):
        close(conv2d(x, w, None, *options), F.conv2d(x.double(), w.double(), None, *options))
        half = conv2d(x.half(), w.half(), None, *options)
        close(half, F.conv2d(x.half().double(), w.half().double(), None, *options), 1e-3)


def check_stride_two_through_descriptors():
    """Rectangles of rows and columns of one parity. A step along 96 channels must not reach the next column."""
    for channels, side, kernel, padding, dilation in ((32, 3, 3, 1, 1), (64, 4, 1, 0, 1), (96, 5, 3, (2, 0), 2)):
        x, w, b = draw(2, channels, 2 * side, 8), draw(13, channels, kernel, kernel, seed=1), draw(13, seed=2)
        x, w, b = (tensor.half() for tensor in (x, w, b))
        x[0, 0, 1, 3] = NAN
        wanted = F.conv2d(x.float(), w.float(), b.float(), 2, padding, dilation).half()
        for config in (CONFIGS[0], CONFIGS[16], CONFIGS[18]):
            close(conv2d(x, w, b, 2, padding, dilation, config=config), wanted, 1e-3)


def check_few_channels_whose_taps_are_a_run():
    """Runs shorter than a block of channels and longer, over every edge of the image."""
    for channels, kernel, stride, padding, dilation in (
        (3, (7, 7), 2, 3, 1), (15, (2, 5), 1, (1, 4), (2, 1)), (1, (3, 2), (1, 3), 1, 1), (3, (3, 3), 1, 2, (1, 2)),
    ):  # fmt: skip
        x, w = draw(2, channels, 11, 9), draw(10, channels, *kernel, seed=1)
        wanted = F.conv2d(x.double(), w.double(), None, stride, padding, dilation)
        for dtype, tolerance in ((torch.float32, 1e-6), (torch.float16, 1e-3)):
            close(conv2d(x.to(dtype), w.to(dtype), None, stride, padding, dilation), wanted, tolerance)


def check_splits_of_every_number():
    """More splits than steps along K, too; filters that are a multiple of 16 bytes and others."""
    for filters in (16, 13):
        x, w, b = draw(3, 24, 9, 5).half(), draw(filters, 24, 3, 3, seed=1).half(), draw(filters, seed=2).half()
        wanted = F.conv2d(x.double(), w.double(), b.double(), 1, 1)
        for splits in (2, 3, 16):
            config = {**CONFIGS[-2], "SPLITS": splits}
            with poisoned():
                close(conv2d(x, w, b, 1, 1, config=config), wanted, 1e-3)
                close(conv2d(x, w, b, 1, 1, relu=True, config=config), wanted.relu(), 1e-3)
        x[0, 0, 0, 0], x[0, 0, 5, 3] = NAN, INF
        special = conv2d(x, w, b, 1, 1, relu=True, config=config)
        close(special, F.relu(F.conv2d(x.float(), w.float(), b.float(), 1, 1)).half(), 1e-3)


def check_layouts():
    x, w, b = draw(2, 6, 9, 8), draw(10, 6, 3, 3, seed=1), draw(20, seed=2)[::2]
    wanted = F.conv2d(x.double(), w.double(), b.double())
    for images in (x, x.to(memory_format=torch.channels_last)):
        for filters in (w, w.to(memory_format=torch.channels_last)):
            y = conv2d(images, filters, b)
            close(y, wanted)
            assert y.is_contiguous(memory_format=torch.channels_last)
    close(conv2d(draw(2, 6, 18, 8)[:, :, ::2], w), F.conv2d(draw(2, 6, 18, 8)[:, :, ::2].double(), w.double()))


def check_special_values_and_relu():
    for dtype in (torch.float32, torch.float16):  # through pointers; through descriptors
        x, w, b = draw(1, 8, 6, 6).to(dtype), draw(8, 8, 3, 3, seed=1).abs().to(dtype), draw(8, seed=2).to(dtype)
        x[0, 0, 0, 0], x[0, 0, 5, 5], x[0, 0, 0, 5] = NAN, INF, -INF
        close(conv2d(x, w, b, 1, 1, relu=True), F.relu(F.conv2d(x.float(), w.float(), b.float(), 1, 1)).to(dtype), 1e-3)


def check_empty():
    assert conv2d(torch.empty(0, 4, 5, 5), draw(3, 4, 3, 3)).shape == (0, 3, 3, 3)
    assert conv2d(draw(2, 4, 5, 5), torch.empty(0, 4, 3, 3)).shape == (2, 0, 3, 3)
