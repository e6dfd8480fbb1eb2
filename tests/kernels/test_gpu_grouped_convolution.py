"""Convolutions in groups and by channel on a GPU against fp64: sizes of known networks, ragged ones, layouts, gradients."""

import pytest
import tilescope_kernels as kernels
import torch
import torch.nn.functional as F
from tilescope_kernels.convolution import depthwise_conv2d, grouped_conv2d

from . import on_gpu
from .checks import compare, relative_error
from .on_gpu import draw

pytestmark = [*on_gpu.MARKS, on_gpu.INDUCTOR]

DTYPES = {"bf16": (torch.bfloat16, 6e-3), "fp16": (torch.float16, 8e-4), "fp32": (torch.float32, 1e-5)}
LAYOUTS = {"contiguous": torch.contiguous_format, "channels_last": torch.channels_last}
#: Images, filters and what else is given.
BY_CHANNEL = [
    ((32, 144, 56, 56), (144, 1, 3, 3), {"padding": 1, "stride": 2}),  # MobileNet
    ((8, 96, 56, 56), (96, 1, 7, 7), {"padding": 3}),  # ConvNeXt
    ((2, 40, 31, 31), (40, 1, 31, 31), {"padding": 15}),  # more taps than are unrolled
    ((3, 73, 37, 29), (73, 1, 5, 5), {"padding": 2, "stride": 2}),
    ((3, 24, 37, 29), (72, 1, 3, 2), {"padding": (0, 3), "stride": (1, 3), "dilation": (2, 1)}),
    ((1, 7, 3, 2), (7, 1, 4, 5), {"padding": 3}),
    ((65, 3, 5, 70), (6, 1, 1, 1), {}),
]
IN_GROUPS = [
    ((16, 256, 56, 56), (256, 8, 3, 3), 32, {"padding": 1, "stride": 2}),  # ResNeXt
    ((4, 160, 28, 28), (320, 80, 3, 3), 2, {"padding": 1}),
    ((3, 35, 37, 29), (20, 7, 5, 3), 5, {"padding": (2, 0), "dilation": 2}),
    ((3, 66, 17, 19), (33, 2, 3, 3), 33, {"stride": (2, 1)}),  # a last bundle of fewer groups
    ((1, 6, 3, 2), (2, 3, 3, 2), 2, {"padding": 1}),
]


@pytest.fixture(autouse=True)
def full_precision():
    allowed, torch.backends.cudnn.allow_tf32 = torch.backends.cudnn.allow_tf32, False
    yield
    torch.backends.cudnn.allow_tf32 = allowed


def operands(images, filters, dtype, layout):
    x = draw(*images, dtype=dtype).to(memory_format=LAYOUTS[layout])
    w = draw(*filters, dtype=dtype, seed=1, scale=(filters[1] * filters[2] * filters[3]) ** -0.5)
    return x, w, draw(filters[0], dtype=dtype, seed=2)


def against_pytorch(x, w, b, groups, options, *, tolerance):
    """Three calls: the first decides, the second is watched, the third makes those launches again."""
    wanted = F.conv2d(x.double(), w.double(), b.double(), groups=groups, **options)
    for _ in range(3):
        y = kernels.conv2d(x, w, b, groups=groups, **options)
        assert relative_error(y, wanted) <= tolerance
        y.fill_(float("nan"))
    rectified = kernels.conv2d(x, w, None, groups=groups, relu=True, **options)
    wanted = F.conv2d(x.double(), w.double(), groups=groups, **options).relu()
    assert relative_error(rectified, wanted) <= tolerance
    return y


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize(
    ("images", "filters", "options", "dtype"),
    # fp16 goes as bf16 does: at the ragged sizes alone.
    [(*case, dtype) for number, case in enumerate(BY_CHANNEL) for dtype in DTYPES if number > 1 or dtype != "fp16"],
    ids=str,
)
def test_by_channel(images, filters, options, dtype, layout):
    kind, tolerance = DTYPES[dtype]
    y = against_pytorch(*operands(images, filters, kind, layout), images[1], options, tolerance=tolerance)
    assert y.is_contiguous(memory_format=LAYOUTS[layout])


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("images", "filters", "groups", "options"), IN_GROUPS, ids=str)
def test_in_groups(images, filters, groups, options, dtype):
    kind, tolerance = DTYPES[dtype]
    for layout in LAYOUTS:
        against_pytorch(*operands(images, filters, kind, layout), groups, options, tolerance=tolerance)


def test_strided_images():
    x, w, b = draw(4, 64, 30, 30), draw(64, 1, 3, 3, seed=1, scale=0.3), draw(64, seed=2)
    last = x.to(memory_format=torch.channels_last)
    for images in (
        x[:, :, ::2, 1:], x[:, :, :, ::3], x.mT, last[:, :, 3:, ::2], last[::2], last[:, ::2], last[:, 1:33], x[:1].expand(4, -1, -1, -1),
    ):  # fmt: skip
        channels = images.shape[1]
        against_pytorch(images, w[:channels], b[:channels], channels, {"padding": 1}, tolerance=6e-3)
        against_pytorch(images, draw(32, channels // 16, 3, 3, scale=0.3), b[:32], 16, {"padding": 1}, tolerance=6e-3)


@pytest.mark.parametrize(
    ("config", "channels", "own"),
    [(config, 72, 1) for config in depthwise_conv2d.CONFIGS]
    + [(config, *of) for config in grouped_conv2d.CONFIGS for of in ((66, 2), (72, 24), (160, 80))],
    ids=str,
)
def test_every_config(config, channels, own):
    filters = channels if own == 1 else channels // own * 48
    for layout in LAYOUTS:
        x, w, b = operands((3, channels, 30, 23), (filters, own, 3, 3), torch.float16, layout)
        y = kernels.conv2d(x, w, b, 1, 1, groups=channels // own, config=config)
        assert relative_error(y, F.conv2d(x.double(), w.double(), b.double(), 1, 1, groups=channels // own)) <= 8e-4


@pytest.mark.parametrize(("groups", "dtype"), [(64, "bf16"), (16, "fp16"), (4, "fp32")])
def test_a_groups_special_values_are_no_others(groups, dtype):
    kind, tolerance = DTYPES[dtype]
    x, w, b = operands((3, 64, 40, 40), (128, 64 // groups, 3, 3), kind, "channels_last")
    for at, value in enumerate((float("nan"), float("inf"), -float("inf"))):
        x[at, 7 * at, 9 * at, 5] = value
    wanted = F.conv2d(x.double(), w.double(), b.double(), 1, 1, groups=groups)
    y = kernels.conv2d(x, w, b, 1, 1, groups=groups)
    assert torch.equal(y.isinf(), wanted.isinf())
    finite = wanted.isfinite() | wanted.isnan()
    assert relative_error(torch.where(finite, y, 0.0), torch.where(finite, wanted, 0.0)) <= tolerance


@pytest.mark.parametrize(("channels", "filters", "groups", "layout"), [
    (24, 24, 24, "contiguous"),
    (24, 48, 24, "channels_last"),
    (24, 36, 12, "contiguous"),
    (64, 64, 2, "channels_last"),
])  # fmt: skip
def test_gradients(channels, filters, groups, layout):
    given = operands((2, channels, 17, 13), (filters, channels // groups, 3, 3), torch.float32, layout)
    options = {"stride": 2, "padding": 1, "groups": groups}
    for _ in range(3):
        compare(lambda *xwb: kernels.conv2d(*xwb, **options), lambda *xwb: F.conv2d(*xwb, **options), given, times=1.0)
