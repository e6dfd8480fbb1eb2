"""Gradients of LoRA, convolutions and strided operands on a GPU against fp64. test_gpu has those of the other products."""

import pytest
import tilescope_kernels as kernels
import torch
import torch.nn.functional as F

from . import on_gpu
from .checks import compare
from .on_gpu import draw

pytestmark = [*on_gpu.MARKS, on_gpu.INDUCTOR]

DTYPES = {"bf16": (torch.bfloat16, 1e-2), "fp16": (torch.float16, 2e-3), "fp32": (torch.float32, 1e-5)}


def lora(x, weight, lora_a, lora_b):
    return F.linear(x, weight) + 0.5 * F.linear(F.linear(x, lora_a), lora_b)


def normed(x, gain, shift, weight, bias):
    return F.linear(F.layer_norm(x, x.shape[-1:], gain, shift), weight, bias)


def our_lora(*operands):
    return kernels.lora_linear(*operands, 0.5)


def operands(shapes, dtype):
    """Drawn so that products keep the scale of their first operand."""
    return [
        draw(*shape, dtype=dtype, seed=i, scale=shape[-1] ** -0.5 if i and len(shape) > 1 else 1.0)
        for i, shape in enumerate(shapes)
    ]


@pytest.mark.parametrize("dtype", list(DTYPES))
@pytest.mark.parametrize(("rows", "n", "k", "rank"), [((1023,), 517, 769, 24), ((2, 600), 1024, 512, 128)])
def test_lora_against_fp64(rows, n, k, rank, dtype):
    shapes = (*rows, k), (n, k), (rank, k), (n, rank)
    compare(our_lora, lora, operands(shapes, DTYPES[dtype][0]), DTYPES[dtype][1])


@pytest.mark.parametrize("dtype", list(DTYPES))
@pytest.mark.parametrize(("images", "filters", "options"), [
    ((3, 72, 37, 29), (96, 72, 3, 3), {"padding": 1}), ((2, 7, 20, 21), (9, 7, 5, 5), {"padding": 2}),
    ((4, 3, 64, 64), (64, 3, 7, 7), {"padding": 3, "stride": 2}), ((2, 40, 17, 19), (24, 40, 3, 2), {"dilation": (2, 1)}),
    ((8, 128, 56, 56), (136, 128, 3, 3), {"padding": 1}),
])  # fmt: skip
def test_convolution(images, filters, options, dtype):
    kind, tolerance = DTYPES[dtype]
    x = draw(*images, dtype=kind).to(memory_format=torch.channels_last)
    w = draw(*filters, dtype=kind, seed=1, scale=(filters[1] * filters[2] * filters[3]) ** -0.5)
    b = draw(filters[0], dtype=kind, seed=2)
    # Where ReLU's argument rounds to another side of 0 the gradients differ by all of dy: compared without it.
    plain, ours = ((lambda *args, f=f: f(*args, **options)) for f in (F.conv2d, kernels.conv2d))
    allowed = torch.backends.cudnn.allow_tf32
    torch.backends.cudnn.allow_tf32 = False
    try:
        compare(ours, plain, (x, w, b), tolerance)
        compare(ours, plain, (x.contiguous(), w.to(memory_format=torch.channels_last), b), tolerance, wanted=[0])
    finally:
        torch.backends.cudnn.allow_tf32 = allowed


def test_strided_operands():
    wide = draw(600, 700)
    compare(
        lambda a, b: kernels.matmul(a[:, 1:].T, b[::2]),
        lambda a, b: a[:, 1:].T @ b[::2],
        (wide, wide.repeat(2, 1)),
        1e-2,
    )
    compare(
        lambda x, w, a, b: our_lora(x[:, 3:], w.T, a.T, b.T), lambda x, w, a, b: lora(x[:, 3:], w.T, a.T, b.T),
        operands(((300, 260), (257, 100), (257, 8), (8, 100)), torch.bfloat16), 1e-2,
    )  # fmt: skip
    compare(
        lambda x, *others: kernels.layer_norm_linear(x[:, 3:], *others), lambda x, *others: normed(x[:, 3:], *others),
        operands(((300, 260), (257,), (257,), (100, 257), (100,)), torch.bfloat16), 1e-2,
    )  # fmt: skip
    # The gradient of a sum is one number, repeated.
    a, b = (draw(512, 512, seed=seed).requires_grad_() for seed in (0, 1))
    config = kernels.catalog.find("matmul").implementations["triton"].configs[0]
    da, db = torch.autograd.grad(kernels.matmul(a, b, config=config).sum(), (a, b))
    torch.testing.assert_close(da.float(), b.float().sum(1).expand(512, 512), rtol=2e-2, atol=0.3)
    torch.testing.assert_close(db.float(), a.float().sum(0)[:, None].expand(512, 512), rtol=2e-2, atol=0.3)
