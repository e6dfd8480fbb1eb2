"""Kernels that are PyTorch operators, in Triton's interpreter."""

import warnings
from unittest import mock

import torch
import torch.nn.functional as F
from interpreted import (
    INF,
    NAN,
    SPECS,
    against_reference,
    close,
    compare,
    draw,
    few_multiprocessors,
    grads,
    poisoned,
    targets,
    told_apart,
    unusual,
)
from tilescope_kernels import (
    add_rms_norm,
    conv2d,
    cross_entropy,
    dropout,
    geglu,
    gelu,
    group_norm,
    histogram,
    histogram_naive,
    layer_norm,
    layer_norm_linear,
    linear_cross_entropy,
    lora_linear,
    online_max,
    ragged_attention,
    rms_norm,
    rms_norm_gelu_linear,
    rope,
    row_sum,
    softmax,
    swiglu,
    vector_add,
)
from tilescope_kernels import scaled_dot_product_attention as sdpa
from tilescope_kernels.elementwise import rope as rotations

ROWS = ("9x333-fp32", "1x1024-fp32", "7x781-fp32", "40x8-fp32", "37x33-fp32")
#: Small workloads of each kernel, the first of which is ragged where it can be, and has every config.
SMALL = {
    **dict.fromkeys(("vector_add", "add_relu_mul"), ("5000-fp32", "1-fp32", "17-fp32", "2048-fp32")),
    **dict.fromkeys(("gelu", "dropout"), ("4099-fp32",)),
    **dict.fromkeys(("swiglu", "geglu", "row_sum", "online_max"), ROWS[:1]),
    "rope": ("2x7x3x5x20-fp32",),
    "softmax": ("9x333-fp32", "5x1-fp32", "7x781-fp32", "3x1024-fp32", "37x5-fp32", "2x4096-fp32"),
    "histogram": ("4099x100x50-int32",),
    **dict.fromkeys(("layer_norm", "add_rms_norm"), ROWS),
    # Reread beside the sums (over 8192 columns), and in parts (over 16384).
    "rms_norm": (*ROWS, "3x9000-fp32", "5x16400-fp32"),
    "group_norm": ("2x3x4x37-fp32",),
    "cross_entropy": ("9x333-fp32", "1x1-fp32", "3x9000-fp32", "5x10-fp32"),
    "linear_cross_entropy": ("37x13x37-fp32",),
}


def check_small_workloads_and_that_every_element_is_written():
    with poisoned(), few_multiprocessors():
        for name, workloads in SMALL.items():
            for workload in workloads:
                against_reference(name, workload)
        against_reference("histogram", *SMALL["histogram"], impl="naive")
        for workload in SMALL["cross_entropy"]:
            against_reference("cross_entropy", workload, impl="two_passes")


def check_every_config():
    for name, (workload, *_) in SMALL.items():
        for config in told_apart(SPECS[name].implementations["triton"].configs):
            against_reference(name, workload, config=config)


def check_dropout_of_any_share_shape_and_seed():
    seed = torch.full((1,), 987654321987)  # more than 32 bits
    x = draw(6, 3, 401).transpose(0, 1)
    for p in (0.0, 0.3, 1.0):
        close(dropout(x, p, seed=seed), SPECS["dropout"].reference(x.contiguous(), p, seed))
    share = (dropout(torch.ones(1 << 16), 0.3, seed=seed) == 0).double().mean()
    assert abs(share - 0.3) < 5 * (0.21 / (1 << 16)) ** 0.5, share  # five standard deviations
    # Infinities and NaN that are dropped leave nothing behind.
    assert dropout(torch.tensor([INF, NAN]), 1.0, seed=seed).tolist() == [0.0, 0.0]
    assert dropout(x, 0.5, training=False) is x
    assert dropout(x[:0], 0.5).shape == x[:0].shape
    torch.manual_seed(3)
    first = [dropout(x, 0.5), dropout(x, 0.5)]
    torch.manual_seed(3)
    assert torch.equal(first[0], dropout(x, 0.5)) and not torch.equal(*first)
    # The same elements each way, and once more.
    leaf = x.clone().requires_grad_()
    out = dropout(leaf, 0.4, seed=seed)
    (slope,) = torch.autograd.grad(out.square().sum(), leaf, create_graph=True)
    close(slope, 2 * x / 0.36 * (out != 0))
    close(*grads(slope.sum(), [leaf]), (out != 0) * 2 / 0.36)


def check_group_norm_shapes_and_cuts():
    with poisoned():
        # A group in a tile; channels and positions cut, both ragged; one channel a group and one group; one position.
        for shape in ("3x7x6x81", "1x2x2x9000", "2x2x35x300", "2x6x1x16", "2x1x5x5000", "2x2x4x1"):
            against_reference("group_norm", f"{shape}-fp32")
        against_reference("group_norm", "2x2x3x1000-fp16")
    x, weight, bias = draw(2, 6, 4, 5, seed=2) + 1000.0, draw(6), draw(6, seed=1)
    for given in ((None, None), (weight, None), (None, bias), (weight, bias)):
        doubles = [None if one is None else one.double() for one in given]
        close(group_norm(x, 3, *given), F.group_norm(x.double(), 3, *doubles), 1e-4)
    wide = draw(2, 4, 5, 6).to(memory_format=torch.channels_last)
    close(group_norm(wide, 2), F.group_norm(wide.double(), 2))
    flat = draw(5, 8)
    close(group_norm(flat, 2, eps=1e-2), F.group_norm(flat.double(), 2, eps=1e-2))
    leaf, twin = draw(2, 4, 9, grad=True), draw(2, 4, 9).double().requires_grad_()
    group_norm(leaf, 2).pow(3).sum().backward()  # no weight, so no sums
    F.group_norm(twin, 2).pow(3).sum().backward()
    close(leaf.grad, twin.grad, 1e-5)
    empty, w, b = (draw(*shape, grad=True) for shape in ((0, 6, 7), (6,), (6,)))
    group_norm(empty, 3, w, b).sum().backward()
    assert not w.grad.any() and not b.grad.any() and empty.grad.shape == empty.shape
    row = torch.ones(1, 2, 40)
    row[0, 1, 3] = INF
    assert group_norm(row, 2)[0, 0].abs().max() == 0 and not torch.isfinite(group_norm(row, 2)[0, 1]).any()


def rotation(batch, tokens, columns):
    angles = draw(batch, tokens, columns // 2, seed=5).repeat(1, 1, 2)
    return angles.cos(), angles.sin()


def turned(q, k, cos, sin, **options):
    """Both outputs against the reference."""
    for one, other in zip(rope(q, k, cos, sin, **options), SPECS["rope"].reference(q, k, cos, sin), strict=True):
        close(one, other)


def check_rope_shapes_strides_and_tables():
    for batch, q_heads, k_heads, tokens, columns in ((1, 1, 1, 1, 2), (2, 20, 3, 5, 12), (2, 3, 9, 4, 128)):
        for shared in (1, batch):
            q, k = draw(batch, q_heads, tokens, columns), draw(batch, tokens, k_heads, columns, seed=1).transpose(1, 2)
            turned(q, k, *rotation(shared, tokens, columns))
    windows = draw(1, 2, 15).unfold(-1, 12, 1)  # that overlap, in steps of one
    turned(windows, windows, *rotation(1, 4, 12))
    # One table for all batches, the other for each.
    q, k, (cos, sin) = draw(3, 2, 4, 12), draw(3, 1, 4, 12, seed=1), rotation(3, 4, 12)
    for tables in ((cos[:1], sin), (cos, sin[1:2]), (cos[:1].expand(3, 4, 12), sin)):
        turned(q, k, *tables)
    # Heads in several launches, the last ones with heads of k alone.
    with mock.patch.object(rotations, "SECOND_AXIS", 1):
        turned(draw(2, 5, 4, 12), draw(2, 21, 4, 12, seed=1), *rotation(2, 4, 12), config={"HEADS": 8, "num_warps": 1})
    # Tables whose halves differ, as the formula allows.
    tables = draw(1, 4, 128, seed=6), draw(1, 4, 128, seed=7)
    doubles = [table.double() for table in tables]
    compare(
        lambda q, k: rope(q, k, *tables), lambda q, k: SPECS["rope"].reference(q, k, *doubles),
        (draw(2, 3, 4, 128), draw(2, 1, 4, 128)), 1e-6, times=1.0,
    )  # fmt: skip


def check_reductions_of_any_shape():
    for shape in ((1, 1), (7, 5), (3, 9000), (2, 3, 70), (9, 3), (9, 2051)):
        x = draw(*shape)
        close(row_sum(x), x.double().sum(-1), 1e-5)
        largest, lse = online_max(x)
        assert torch.equal(largest, x.amax(-1))
        close(lse, x.double().logsumexp(-1))
    x = draw(40, 30).T
    close(row_sum(x), x.double().sum(-1), 1e-6)
    close(online_max(x[:, ::2])[1], x[:, ::2].double().logsumexp(-1))
    for columns in (1, 7, 9, 1003):  # rows that start at every distance from 16 bytes
        half = draw(9, columns).half()
        assert torch.equal(online_max(half)[0], half.amax(-1))
        close(online_max(half)[1], half.double().logsumexp(-1), 1e-3)
    assert torch.equal(row_sum(torch.empty(3, 0)), torch.zeros(3))
    assert row_sum(torch.empty(0, 3)).shape == online_max(torch.empty(0, 3))[0].shape == (0,)


def check_online_max_special_values():
    for columns in (3000, 3001):
        x = unusual(columns)
        x[5, 7], x[5, 8] = -INF, INF
        x[6, columns - 1], x[7, 0] = NAN, INF
        for actual, wanted in zip(online_max(x), (x.amax(-1), x.logsumexp(-1)), strict=True):
            torch.testing.assert_close(actual, wanted, equal_nan=True)


def check_histogram_counts_what_is_in_range():
    x = torch.randint(-5, 50, (7, 999), generator=torch.Generator().manual_seed(0), dtype=torch.int32)
    wanted = torch.tensor([int((x == value).sum()) for value in range(40)], dtype=torch.int32)
    assert torch.equal(histogram(x, 40), wanted)
    assert torch.equal(histogram_naive(x.T, 40), wanted)
    for bins in (0, 1):
        assert torch.equal(histogram(x, bins), wanted[:bins])
    assert not histogram(x[:0], 40).any()


def check_norms_take_fp32_weights_beside_16_bits():
    """As under autocast, where parameters are fp32: gradients have the dtype of what they belong to."""
    x, residual, weight, bias = draw(6, 40).half(), draw(6, 40, seed=1), draw(40, seed=2), draw(40, seed=3)
    compare(
        lambda x, w, b: layer_norm(x, 40, w, b), lambda x, w, b: F.layer_norm(x, (40,), w, b), (x, weight, bias), 2e-3, times=2.0
    )  # fmt: skip
    compare(
        lambda x, w: rms_norm(x, 40, w, 1e-6), lambda x, w: F.rms_norm(x, (40,), w, 1e-6), (x, weight), 2e-3, times=2.0
    )
    # Gradients of fp32 tensors have fp32's error, that of x is rounded.
    compare(add_rms_norm, SPECS["add_rms_norm"].reference, (x, residual, weight), 1e-6, wanted=[1, 2], times=10.0)
    compare(add_rms_norm, SPECS["add_rms_norm"].reference, (x, residual, weight), 1e-6, wanted=[0], times=1000.0)
    assert [out.dtype for out in add_rms_norm(x, residual, weight)] == [torch.float32, torch.float32]
    try:
        layer_norm(x, 40, weight.bfloat16())
    except ValueError as error:
        assert "weight is torch.bfloat16 but x is torch.float16" in str(error)
    else:
        raise AssertionError("bf16 beside fp16 was taken")


def check_functions_compile_whole():
    """Forward and backward under ``torch.compile(fullgraph=True)``, without generating code."""
    x, y, w = draw(6, 10, grad=True), draw(6, 10, seed=1, grad=True), draw(10, seed=2, grad=True)
    q, k = draw(2, 3, 5, 12, grad=True), draw(2, 2, 5, 12, seed=1, grad=True)
    ends = torch.tensor([0, 2, 5], dtype=torch.int32)
    head, target, cos, sin = draw(7, 10, seed=4, grad=True), targets(6, 7), *rotation(1, 5, 12)

    def everything():
        normed = rms_norm(swiglu(x, y) + geglu(y, x) + gelu(x), 10, w)
        q_out, k_out = rope(q, k, cos, sin)
        q_in, k_in = rope(q * 2.0, k * 2.0, cos, sin, inplace=True)
        loss = cross_entropy(normed, target) + cross_entropy(normed, target, gradient_in_forward=True)
        loss = loss + linear_cross_entropy(normed, head, target)
        loss = loss + conv2d(q, q[:1, :, :2, :2]).sum() + sdpa(q, q, q, is_causal=True).square().sum()
        packed = [tensor[0].transpose(0, 1) for tensor in (q, q, q)]
        loss = loss + ragged_attention(*packed, ends, ends, 5, 5, is_causal=True).square().sum()
        loss = loss + lora_linear(x, head, x[:3], head[:, :3]).square().sum()
        loss = loss + layer_norm_linear(x, w, None, head).square().sum() + rms_norm_gelu_linear(x, w, head).sum()
        loss = loss + softmax(add_rms_norm(x, layer_norm(y, 10, w), w)[0]).square().sum()
        reductions = vector_add(x.detach(), x.detach()).sum(1) + row_sum(x.detach()) + online_max(x.detach())[1]
        return loss + (q_out * q_in).sum() + (k_out + k_in).square().sum(), reductions, histogram(target.int(), 7)

    compiled = torch.compile(everything, backend="aot_eager", fullgraph=True)
    leaves = [x, y, w, q, k, head]
    with warnings.catch_warnings():
        # Of dynamo's own making.
        warnings.filterwarnings("ignore", "<class 'torch.autograd.function.Function'> should not be instantiated")
        results = compiled()
    for one, other in zip(results, everything(), strict=True):
        close(one, other)
    for one, other in zip(grads(compiled()[0], leaves), grads(everything()[0], leaves), strict=True):
        close(one, other)
