"""Attention, in Triton's interpreter."""

from unittest import mock

import torch
import torch.nn.functional as F
from interpreted import INF, NAN, SPECS, against_reference, close, compare, draw, poisoned, told_apart
from tilescope_kernels import scaled_dot_product_attention as sdpa
from tilescope_kernels.attention import attention_configs, flash_split
from torch.nn.attention import SDPBackend, sdpa_kernel

BOTH = ("attention", "causal_attention")


def leaves(*shapes, dtype=torch.float32):
    return [draw(*shape, seed=seed).to(dtype).requires_grad_() for seed, shape in enumerate(shapes)]


def both_passes(ours, tolerance=1e-5, attn_mask=(None, None), config=None, **options):
    """The result and the gradients of q, k and v against PyTorch's in fp64."""
    mask, twin = attn_mask

    def call(q, k, v):
        return sdpa(q, k, v, mask, **options, config=config)

    compare(call, lambda q, k, v: F.scaled_dot_product_attention(q, k, v, twin, **options), ours, tolerance, times=2.0)


def check_small_workloads_and_that_every_element_is_written():
    with poisoned():
        for name in BOTH:
            against_reference(name, "1x1x1x1x1x16-fp32", backward=False)  # the gradients by one key are 0
            for extents in ("1x1x2x3x2x16", "2x2x1x64x64x64", "1x1x3x40x70x16", "1x2x2x70x40x32", "1x1x1x33x33x128"):
                against_reference(name, f"{extents}-fp32")


def check_every_config():
    # fp16, which descriptors serve and the interpreter computes rightly. It does not serve Gluon.
    every = SPECS["attention"].implementations["triton"].configs
    for place, config in enumerate(told_apart([config for config in every if not config["SPECIALIZED"]])):
        ours = leaves((1, 1, 150, 16), (1, 1, 140, 16), (1, 1, 140, 16), dtype=torch.float16)
        both_passes(ours, 1e-3, is_causal=bool(place % 2), config=config)


def check_any_number_of_columns():
    with poisoned():
        for columns, causal in ((1, False), (5, True), (24, False), (96, True), (200, False), (256, True)):
            ours = leaves((1, 2, 35, columns), (1, 1, 50, columns), (1, 1, 50, columns))
            both_passes(ours, is_causal=causal, enable_gqa=True)
        for columns in (24, 256):  # through descriptors
            ours = leaves((1, 2, 70, columns), (1, 2, 40, columns), (1, 2, 40, columns), dtype=torch.float16)
            both_passes(ours, 1e-3, is_causal=True)


def check_masks():
    """Booleans and numbers, broadcast, of any strides; the queries that see nothing get zeros and give no gradient."""
    with poisoned():
        for columns, kv_heads, dtype, tolerance in ((16, 1, torch.float32, 1e-5), (24, 2, torch.float16, 1e-3)):
            hidden = draw(2, 1, 70, 50) > 0.3
            hidden[:, :, 3], hidden[:, :, 60:] = False, False
            added = draw(2, 70, 50, seed=4).to(dtype)
            added[1, :, 40:], added[0, 9] = -INF, -INF
            for mask in (hidden, hidden[1, 0].T.contiguous().T, added, added[:, :1], draw(1, 50, seed=5)):
                shapes = (2, 2, 70, columns), (2, kv_heads, 50, columns), (2, kv_heads, 50, columns)
                ours = leaves(*shapes, dtype=dtype)
                twin = mask if mask.dtype == torch.bool else mask.double()
                both_passes(ours, tolerance, attn_mask=(mask, twin), enable_gqa=True)


def _math(q, k, v, mask):
    with sdpa_kernel(SDPBackend.MATH):
        return F.scaled_dot_product_attention(q, k, v, mask)


def check_masks_of_large_numbers():
    """Libraries hide keys with the lowest finite number: a row of nothing else is the mean of its values, as the sums of its numbers are
    equal. Those sums are PyTorch's in fp32, and so are the gradients, which need the number of such keys."""
    fp32, bf16, fp16 = (torch.finfo(dtype) for dtype in (torch.float32, torch.bfloat16, torch.float16))
    for low, dtype, tolerance in (
        (fp32.min, torch.float32, 1e-5), (bf16.min, torch.float32, 1e-5), (-1e9, torch.float32, 1e-5), (fp16.min, torch.float16, 4e-3),
    ):  # fmt: skip
        mask = torch.zeros(70, 50)
        # All keys, more than a tile of them, in part beside keys that are not there, and a key before all others.
        mask[3], mask[4, :45], mask[5, 7:], mask[6] = low, low, low, low
        mask[6, 20:], mask[7, 9], mask[64:, :30] = -INF, -low, low
        mask = mask.to(dtype)
        for parts in (None, (1, 1, 1), (1, 3, 3)):
            ours = leaves((1, 2, 70, 16), (1, 2, 50, 16), (1, 2, 50, 16), dtype=dtype)
            twins = [tensor.detach().float().requires_grad_() for tensor in ours]
            several = mock.patch.object(attention_configs, "few", lambda *_, parts=parts: parts is not None)
            # PyTorch's fused backend on a CPU rounds the number of a row's keys away.
            wanted = _math(*twins, mask.float())
            with several, mock.patch.object(flash_split, "_parts", lambda *_, parts=parts: parts), poisoned():
                actual = sdpa(*ours, mask)
                close(actual, wanted, tolerance)
                upstream = draw(*actual.shape, seed=9)
                found = torch.autograd.grad(actual, ours, upstream.to(dtype))
            for one, other in zip(found, torch.autograd.grad(wanted, twins, upstream), strict=True):
                close(one, other, 2 * tolerance)


def check_windows():
    for queries, keys, window, group in (
        (70, 70, 2, 1), (70, 70, 5, 2), (150, 60, 33, 1), (60, 150, 70, 2), (70, 70, 2**31 - 1, 2),
    ):  # fmt: skip
        apart = torch.arange(queries)[:, None] - torch.arange(keys)
        seen = (apart >= 0) & (apart < window)
        with poisoned():
            compare(
                lambda *qkv, window=window: sdpa(*qkv, is_causal=True, window=window, enable_gqa=True),
                lambda *qkv, seen=seen: F.scaled_dot_product_attention(*qkv, seen, enable_gqa=True),
                leaves((1, 2 * group, queries, 16), (1, 2, keys, 16), (1, 2, keys, 16)),
            )
    # A window of one key: each query's own value, whatever the scores.
    q, k, v = (draw(1, 2, 70, 16, seed=seed) for seed in range(3))
    assert torch.equal(sdpa(q, k, v, is_causal=True, window=1), v)


def check_tiles_that_programs_share():
    """Parts of the heads, spans of the queries and of the keys: some have nothing to do."""
    for parts, queries, keys, causal in (
        ((1, 1, 1), 70, 100, False), ((3, 2, 3), 130, 40, True), ((3, 2, 3), 70, 100, False), ((1, 9, 9), 40, 130, True),
    ):  # fmt: skip
        ours = leaves((1, 3, queries, 16), (1, 1, keys, 16), (1, 1, keys, 16))
        with mock.patch.object(flash_split, "_parts", lambda *_, parts=parts: parts), poisoned():
            both_passes(ours, is_causal=causal, enable_gqa=True)


def check_strides():
    # Heads beside each other in a row, as projections leave them, and the three in one tensor.
    for columns in (16, 24):
        joint = draw(2, 40, 3, 4, columns)
        ours = [tensor.transpose(1, 2).requires_grad_() for tensor in joint.unbind(2)]
        both_passes(ours, is_causal=True)
    ours = [draw(2, 4, 16, 40, seed=seed).mT.requires_grad_() for seed in range(3)]
    both_passes(ours)
    q = draw(2, 4, 40, 16)
    both_passes([q] * 3)
    k = draw(1, 1, 40, 16, seed=1).expand(2, 4, 40, 16)
    close(sdpa(q, k, k), F.scaled_dot_product_attention(q.double(), k.double(), k.double()), 1e-6)


def check_special_values():
    k, v = draw(1, 1, 70, 16), draw(1, 1, 70, 16, seed=1)
    q = draw(1, 1, 9, 16, seed=2)
    q[..., 0, 0], q[..., 1, 0], q[..., 2, :] = NAN, INF, 1e18
    q[..., 3, :] = torch.finfo(torch.float32).max
    close(sdpa(q, k, v), F.scaled_dot_product_attention(q.double().float(), k, v), 1e-5)
    # Whole blocks of keys whose scores are -inf: they weigh nothing.
    q, k = q.abs()[:, :, 4:], k.abs()
    k[:, :, :40] = -INF
    close(sdpa(q, k, v), F.scaled_dot_product_attention(q, k, v), 1e-5)
    v[:, :, 60, 3] = NAN
    close(sdpa(q, k, v), F.scaled_dot_product_attention(q, k, v), 1e-5)


def check_empty():
    for queries, keys in ((0, 5), (5, 0), (0, 0)):
        ours = leaves((2, 3, queries, 16), (2, 3, keys, 16), (2, 3, keys, 16))
        out = sdpa(*ours)
        assert out.shape == (2, 3, queries, 16) and not out.any()
        for gradient, of in zip(torch.autograd.grad(out.sum(), ours), ours, strict=True):
            assert gradient.shape == of.shape and not gradient.any()
    nothing = torch.empty(0, 3, 4, 16)
    assert sdpa(nothing, nothing, nothing).shape == (0, 3, 4, 16)
