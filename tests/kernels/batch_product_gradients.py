"""Gradients of products: of matmul, LoRA, convolution and linear layers behind norms."""

import torch
import torch.nn.functional as F
from interpreted import close, compare, draw, poisoned
from tilescope_kernels import conv2d, layer_norm_linear, lora_linear, matmul, rms_norm_gelu_linear


def agree(ours, plain, shapes, tolerance=1e-5, *, wanted=None, dtype=torch.float32):
    """Both passes of tensors drawn with these shapes."""
    drawn = [None if shape is None else draw(*shape, seed=i).to(dtype) for i, shape in enumerate(shapes)]
    compare(ours, plain, drawn, tolerance, wanted=wanted, strided=True)


def check_matmul():
    for shapes in (((20, 30), (30, 10)), ((1, 7), (7, 1)), ((5, 1), (1, 9))):
        agree(matmul, torch.matmul, shapes)
        agree(matmul, torch.matmul, shapes, wanted=[1])
    agree(lambda a, b: matmul(a.T[::2], b[:, 1:]), lambda a, b: a.T[::2] @ b[:, 1:], ((30, 20), (30, 10)))
    # A sum's gradient is one number, repeated; descriptors were asked for.
    config = {"BLOCK_M": 32, "BLOCK_N": 32, "BLOCK_K": 64, "GROUP_M": 2, "TMA": 1, "SPECIALIZE": 0}
    a, b = draw(40, 24, grad=True), draw(24, 48, seed=1, grad=True)
    found = torch.autograd.grad(
        matmul(a.half(), b.half(), config={**config, "num_warps": 4, "num_stages": 2}).sum(), (a, b)
    )
    for one, other in zip(found, torch.autograd.grad((a.double() @ b.double()).sum(), (a, b)), strict=True):
        close(one, other, 1e-3)


def check_matmul_twice():
    """A gradient's own gradient is a product, too."""
    a, b = draw(6, 5, grad=True), draw(5, 7, seed=1, grad=True)
    for one, other in zip(*(_twice(product, a, b) for product in (matmul, torch.matmul)), strict=True):
        close(one, other, 1e-5)


def _twice(product, a, b):
    (da,) = torch.autograd.grad(product(a, b).pow(2).sum(), a, create_graph=True)
    return torch.autograd.grad(da.pow(2).sum(), (a, b))


def _lora(x, weight, lora_a, lora_b):
    return F.linear(x, weight) + 0.5 * F.linear(F.linear(x, lora_a), lora_b)


def check_lora_linear():
    def ours(x, weight, lora_a, lora_b):
        return lora_linear(x, weight, lora_a, lora_b, 0.5)

    shapes = ((2, 5, 33), (17, 33), (3, 33), (17, 3))
    for wanted in (None, [0], [1], [2], [3], [2, 3]):
        agree(ours, _lora, shapes, wanted=wanted)
    more = (5, 14, 33), *shapes[1:]
    for odd in (((2, 5, 32), (48, 32), (3, 32), (48, 3)), more, ((19, 530), (264, 530), (24, 530), (264, 24))):
        for wanted in (None, [0], [1, 2]):
            with poisoned():
                agree(ours, _lora, odd, 1e-3, wanted=wanted, dtype=torch.float16)
    agree(ours, _lora, ((0, 32), (48, 32), (3, 32), (48, 3)))
    agree(
        lambda x, *others: ours(x[:, 3:], *others), lambda x, *others: _lora(x[:, 3:], *others), ((9, 36), (17, 33), (3, 33), (17, 3)),
    )  # fmt: skip
    agree(
        lambda x, w, a, b: ours(x, w.T, a.T, b.T), lambda x, w, a, b: _lora(x, w.T, a.T, b.T), ((9, 33), (33, 17), (33, 3), (3, 17)),
    )  # fmt: skip


def check_conv2d():
    for dtype, tolerance in ((torch.float32, 1e-5), (torch.float16, 1e-3)):
        for channels, filters, extents, kernel, stride, padding, dilation in (
            (8, 16, (9, 7), (3, 3), 1, 1, 1), (5, 8, (9, 7), (3, 2), 1, (0, 1), (2, 1)), (8, 24, (5, 6), (1, 1), 1, 0, 1),
            (8, 8, (9, 7), (3, 3), (2, 1), 1, 1), (8, 8, (6, 5), (1, 3), 1, (2, 3), 1), (3, 7, (8, 8), (3, 3), 1, 0, 1),
        ):  # fmt: skip
            shapes = ((2, channels, *extents), (filters, channels, *kernel), (filters,))
            options = {"stride": stride, "padding": padding, "dilation": dilation}
            for relu in (False, True):
                agree(
                    lambda *args, relu=relu, options=options: conv2d(*args, **options, relu=relu),
                    lambda *args, relu=relu, options=options: _rectified(F.conv2d(*args, **options), relu), shapes, tolerance, dtype=dtype,
                )  # fmt: skip
    for wanted in ([0], [1], [2], [0, 2]):
        agree(conv2d, F.conv2d, ((2, 3, 6, 5), (4, 3, 3, 3), (4,)), wanted=wanted)
    agree(conv2d, F.conv2d, ((2, 3, 6, 5), (4, 3, 3, 3)))
    agree(conv2d, F.conv2d, ((0, 3, 6, 5), (4, 3, 3, 3), (4,)))
    agree(
        lambda x, w: conv2d(x[:, :, ::2], w[:, :8].mT), lambda x, w: F.conv2d(x[:, :, ::2], w[:, :8].mT),
        ((2, 8, 18, 8), (8, 9, 3, 2)), 1e-3, dtype=torch.float16,
    )  # fmt: skip


def _rectified(y, relu):
    return F.relu(y) if relu else y


def _normed(x, gain, shift, weight, bias):
    return F.linear(F.layer_norm(x, x.shape[-1:], gain, shift, 1e-5), weight, bias)


def _activated(x, gain, weight, bias):
    return F.linear(F.gelu(F.rms_norm(x, x.shape[-1:], gain, torch.finfo(torch.float32).eps)), weight, bias)


def check_norms_and_linear_layers():
    for x, n in (((4, 5, 20), 9), ((70, 20), 9)):  # the norm ahead of the product, and behind it
        k = x[-1]
        for ours, plain, shapes in (
            (layer_norm_linear, _normed, (x, (k,), (k,), (n, k), (n,))),
            (rms_norm_gelu_linear, _activated, (x, (k,), (n, k), (n,))),
        ):
            agree(ours, plain, shapes, 2e-3, dtype=torch.float16)
            agree(
                lambda x, *others, ours=ours: ours(x.mT, *others), lambda x, *others, plain=plain: plain(x.mT, *others),
                ((*x[:-2], k, x[-2]), *shapes[1:]),
            )  # fmt: skip
            if len(x) == 2:
                for i in range(len(shapes)):
                    agree(ours, plain, shapes, wanted=[i])
                for i in {*range(1, len(shapes))} - {len(shapes) - 2}:
                    agree(ours, plain, [None if j == i else shape for j, shape in enumerate(shapes)])
    # Rows so long that norm and GELU go back one after the other.
    agree(rms_norm_gelu_linear, _activated, ((3, 20000), (20000,), (2, 20000), None), wanted=[0, 1, 2])
