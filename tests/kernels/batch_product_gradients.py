"""Gradients of products: of matmul, LoRA, convolution and linear layers behind norms. Run by test_product_gradients."""

# First: it switches the interpreter on.
from interpreted import against_reference, close, draw, main, poisoned  # isort: skip

from unittest import mock

import torch
import torch.nn.functional as F
from tilescope_kernels import conv2d, layer_norm_linear, lora_linear, matmul, rms_norm_gelu_linear
from tilescope_kernels.matrix_products import matmul as MODULE


def compare(ours, plain, shapes, tolerance=1e-5, *, wanted=None, dtype=torch.float32):
    """Gradients of the leaves, or of those numbered in ``wanted``, for an upstream gradient that is not contiguous."""
    chosen = range(len(shapes)) if wanted is None else wanted
    leaves = [None if shape is None else draw(*shape, seed=i).to(dtype) for i, shape in enumerate(shapes)]
    twins = [None if leaf is None else leaf.double() for leaf in leaves]
    for values in (leaves, twins):
        for i in chosen:
            values[i].requires_grad_()
    actual, expected = ours(*leaves), plain(*twins)
    close(actual, expected, tolerance)
    upstream = draw(*actual.shape[:-1], 2 * actual.shape[-1], seed=9).to(dtype)[..., ::2]
    found = torch.autograd.grad(actual, [leaves[i] for i in chosen], upstream)
    for i, one, other in zip(
        chosen, found, torch.autograd.grad(expected, [twins[i] for i in chosen], upstream.double()), strict=True
    ):
        try:
            assert one.dtype == dtype
            close(one, other, 3 * tolerance)
        except AssertionError as error:
            raise AssertionError(f"gradient {i}: {error}") from None


def check_matmul():
    for extents in ("1x1x1", "17x33x70"):
        against_reference("matmul", f"{extents}-fp32")
    for shapes in (((20, 30), (30, 10)), ((1, 7), (7, 1)), ((5, 1), (1, 9))):
        compare(matmul, torch.matmul, shapes)
        compare(matmul, torch.matmul, shapes, wanted=[1])
    compare(lambda a, b: matmul(a.T[::2], b[:, 1:]), lambda a, b: a.T[::2] @ b[:, 1:], ((30, 20), (30, 10)))
    # A sum's gradient is one number, repeated; descriptors were asked for.
    config = {"BLOCK_M": 32, "BLOCK_N": 32, "BLOCK_K": 64, "GROUP_M": 2, "TMA": 1, "SPECIALIZE": 0}
    a, b = draw(40, 24, grad=True), draw(24, 48, seed=1, grad=True)
    found = torch.autograd.grad(
        matmul(a.half(), b.half(), config={**config, "num_warps": 4, "num_stages": 2}).sum(), (a, b)
    )
    for one, other in zip(found, torch.autograd.grad((a.double() @ b.double()).sum(), (a, b)), strict=True):
        close(one, other, 1e-3)


def check_column_major_fp32_operands_are_copied():
    a, b, taken, tiled = draw(70, 40, grad=True), draw(40, 90, seed=1, grad=True), [], MODULE._tiled
    spy = mock.patch.object(MODULE, "_tiled", lambda *args: taken.append(MODULE.columns(args[1])) or tiled(*args))
    for least, expected in ((1, [False, False, False]), (2**30, [False, True, False])):
        taken.clear()
        with spy, mock.patch.object(MODULE, "_COPIED", least):
            found = torch.autograd.grad(matmul(a, b).pow(2).sum(), (a, b))
        for one, other in zip(found, torch.autograd.grad((a.double() @ b.double()).pow(2).sum(), (a, b)), strict=True):
            close(one, other, 1e-5)
        assert taken == expected


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

    with poisoned():
        for extents in ("1x1x1x1", "37x70x101x24", "40x24x16x100"):
            against_reference("lora_linear", f"{extents}-fp32")
    shapes = ((2, 5, 33), (17, 33), (3, 33), (17, 3))
    for wanted in (None, [0], [1], [2], [3], [2, 3]):
        compare(ours, _lora, shapes, wanted=wanted)
    for odd in (((2, 5, 32), (48, 32), (3, 32), (48, 3)), shapes, ((19, 530), (264, 530), (24, 530), (264, 24))):
        for wanted in (None, [0], [1, 2]):
            with poisoned():
                compare(ours, _lora, odd, 1e-3, wanted=wanted, dtype=torch.float16)
    compare(ours, _lora, ((0, 32), (48, 32), (3, 32), (48, 3)))
    compare(
        lambda x, *others: ours(x[:, 3:], *others), lambda x, *others: _lora(x[:, 3:], *others),
        ((9, 36), (17, 33), (3, 33), (17, 3)),
    )  # fmt: skip
    compare(
        lambda x, w, a, b: ours(x, w.T, a.T, b.T), lambda x, w, a, b: _lora(x, w.T, a.T, b.T),
        ((9, 33), (33, 17), (33, 3), (3, 17)),
    )  # fmt: skip


def check_lora_linear_twice():
    """A gradient's own gradient, where its products would be launched without a graph."""
    operands = [draw(*shape, seed=i) for i, shape in enumerate(((5, 9), (7, 9), (3, 9), (7, 3)))]
    found = []
    for product, dtype in ((lora_linear, torch.float16), (_lora, torch.float64)):
        leaves = [operand.half().to(dtype).requires_grad_() for operand in operands]
        y = product(*leaves, *([0.5] if product is lora_linear else []))
        (dx,) = torch.autograd.grad(y.pow(2).sum(), leaves[0], create_graph=True)
        found.append(torch.autograd.grad(dx.pow(2).sum() / 2**14, leaves))
    for one, other in zip(*found, strict=True):
        close(one, other, 1e-2)


def check_conv2d():
    for dtype, tolerance in ((torch.float32, 1e-5), (torch.float16, 1e-3)):
        for channels, filters, extents, kernel, stride, padding, dilation in (
            (8, 16, (9, 7), (3, 3), 1, 1, 1), (5, 8, (9, 7), (3, 2), 1, (0, 1), (2, 1)), (8, 24, (5, 6), (1, 1), 1, 0, 1),
            (8, 8, (9, 7), (3, 3), (2, 1), 1, 1), (8, 8, (6, 5), (1, 3), 1, (2, 3), 1), (3, 7, (8, 8), (3, 3), 1, 0, 1),
        ):  # fmt: skip
            shapes = ((2, channels, *extents), (filters, channels, *kernel), (filters,))
            options = {"stride": stride, "padding": padding, "dilation": dilation}
            for relu in (False, True):
                compare(
                    lambda *args, relu=relu, options=options: conv2d(*args, **options, relu=relu),
                    lambda *args, relu=relu, options=options: _rectified(F.conv2d(*args, **options), relu),
                    shapes, tolerance, dtype=dtype,
                )  # fmt: skip
    for wanted in ([0], [1], [2], [0, 2]):
        compare(conv2d, F.conv2d, ((2, 3, 6, 5), (4, 3, 3, 3), (4,)), wanted=wanted)
    compare(conv2d, F.conv2d, ((2, 3, 6, 5), (4, 3, 3, 3)))
    compare(conv2d, F.conv2d, ((0, 3, 6, 5), (4, 3, 3, 3), (4,)))
    compare(
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
    with poisoned():
        for name in ("layer_norm_linear", "rms_norm_gelu_linear"):
            for extents in ("1x1x8", "70x33x90", "5x130x64"):
                against_reference(name, f"{extents}-fp32")
    for x, n in (((4, 5, 20), 9), ((70, 20), 9)):  # the norm ahead of the product, and behind it
        k = x[-1]
        for ours, plain, shapes in (
            (layer_norm_linear, _normed, (x, (k,), (k,), (n, k), (n,))),
            (rms_norm_gelu_linear, _activated, (x, (k,), (n, k), (n,))),
        ):
            for wanted in (None, *([i] for i in range(len(shapes)))):
                compare(ours, plain, shapes, wanted=wanted)
            compare(ours, plain, shapes, 2e-3, dtype=torch.float16)
            compare(
                lambda x, *others, ours=ours: ours(x.mT, *others), lambda x, *others, plain=plain: plain(x.mT, *others),
                ((*x[:-2], k, x[-2]), *shapes[1:]),
            )  # fmt: skip
            for i in {*range(1, len(shapes))} - {len(shapes) - 2}:
                left_out = [None if j == i else shape for j, shape in enumerate(shapes)]
                compare(ours, plain, left_out, wanted=[j for j in range(len(shapes)) if j != i])
    # Rows so long that norm and GELU go back one after the other.
    compare(rms_norm_gelu_linear, _activated, ((3, 20000), (20000,), (2, 20000), None), wanted=[0, 1, 2])
    x = torch.empty(0, 20, requires_grad=True)
    w = draw(9, 20, grad=True)
    for out in (layer_norm_linear(x, None, None, w), rms_norm_gelu_linear(x, None, w)):
        assert [tuple(g.shape) for g in torch.autograd.grad(out.sum(), (x, w))] == [(0, 20), (9, 20)]


def check_operators_are_described_as_they_behave_and_compile_whole():
    x, w, a, b = (draw(*shape, seed=i, grad=True) for i, shape in enumerate(((6, 20), (9, 20), (3, 20), (9, 3))))
    torch.library.opcheck(torch.ops.tilescope.lora_linear.default, (x, w, a, b, 0.5, ""))
    last = draw(2, 5, 6, 4, seed=4, grad=True), draw(7, 3, 3, 4, seed=5, grad=True), draw(7, seed=6, grad=True)
    torch.library.opcheck(torch.ops.tilescope.conv2d.default, (*last, [1, 2], [1, 1], [1, 1], True, ""))
    g, c = draw(20, seed=7, grad=True), draw(9, seed=8, grad=True)
    torch.library.opcheck(torch.ops.tilescope.layer_norm_linear.default, (x, g, g, w, c, 1e-5, ""))
    torch.library.opcheck(torch.ops.tilescope.rms_norm_gelu_linear.default, (x, g, w, c, 1e-5, ""))
    plain = x.detach(), g.detach()
    torch.library.opcheck(torch.ops.tilescope.rms_norm_gelu.default, (*plain, 1e-5))
    for wants in (False, True):
        torch.library.opcheck(torch.ops.tilescope.rms_norm_gelu_backward.default, (plain[0] + 1, *plain, 1e-5, wants))
    compiled = torch.compile(
        lambda: lora_linear(x * 2.0, w, a, b, 0.5).pow(2).sum(), backend="aot_eager", fullgraph=True
    )
    found = torch.autograd.grad(compiled(), (x, w, a, b))
    for one, other in zip(found, torch.autograd.grad(_lora(x * 2.0, w, a, b).pow(2).sum(), (x, w, a, b)), strict=True):
        close(one, other, 1e-4)


if __name__ == "__main__":
    main(globals())
