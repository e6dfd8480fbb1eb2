"""Attention of few queries over many keys, in Triton's interpreter."""

from unittest import mock

import torch
import torch.nn.functional as F
from interpreted import INF, NAN, close, draw, few_multiprocessors, poisoned
from tilescope_kernels import scaled_dot_product_attention as sdpa
from tilescope_kernels.attention import decode as decoding


def served(q, k, v, tolerance=1e-5, **options):
    """The result against PyTorch's in fp64, where it comes from the kernels for few queries."""
    with mock.patch.object(decoding, "decode", wraps=decoding.decode) as decode:
        actual = sdpa(q, k, v, **options)
    assert decode.call_count == 1
    close(actual, F.scaled_dot_product_attention(q.double(), k.double(), v.double(), **options), tolerance)
    return actual


def tensors(*extents, dtype=torch.float32):
    batch, kv_heads, group, queries, keys, columns = extents
    shapes = (batch, kv_heads * group, queries, columns), *[(batch, kv_heads, keys, columns)] * 2
    return [draw(*shape, seed=seed).to(dtype) for seed, shape in enumerate(shapes)]


def check_extents_and_that_every_element_is_written():
    with poisoned():
        for extents in (
            (1, 1, 1, 1, 512, 16),
            (2, 3, 1, 1, 515, 16),
            (1, 2, 4, 1, 1000, 32),
            (1, 1, 1, 3, 513, 128),
            (1, 1, 1, 2, 513, 96),
        ):
            served(*tensors(*extents), enable_gqa=True)
        # 128 rows of a group, in two tiles; and one that is not full.
        for extents in ((1, 1, 8, 16, 580, 16), (1, 1, 3, 5, 641, 64)):
            served(*tensors(*extents, dtype=torch.float16), 1e-3, enable_gqa=True)


def check_every_number_of_spans():
    q, k, v = tensors(1, 2, 2, 3, 600, 16)
    for slots in (1, 5, 30, 264):
        with mock.patch.object(decoding, "multiprocessors", lambda _, slots=slots: slots):
            served(q, k, v, enable_gqa=True)


def check_strides_and_scale():
    # A cache (batch, rows, heads, columns) that holds more rows than are in use, and queries of a joint projection.
    cache = draw(2, 700, 2, 3, 16)
    k, v = (cache[:, :555, i].transpose(1, 2) for i in range(2))
    q = draw(2, 1, 3, 6, 16, seed=1)[:, :, 1].transpose(1, 2)
    with few_multiprocessors():
        served(q, k, v, enable_gqa=True)
        served(q, k, v, enable_gqa=True, scale=0.7)
        served(q, k, v, enable_gqa=True, scale=0.0)
        served(draw(2, 3, 16, 4, seed=1).mT, draw(2, 3, 16, 600).mT, draw(2, 3, 16, 600, seed=2).mT)
        served(draw(2, 4, 1, 16, seed=1), *[draw(1, 1, 600, 16).expand(2, 4, 600, 16)] * 2)


def check_special_values():
    q, k, v = tensors(1, 1, 1, 9, 600, 16)
    q[..., 0, 0], q[..., 1, 0], q[..., 2, :] = NAN, INF, 1e18
    close(sdpa(q, k, v), F.scaled_dot_product_attention(q.double().float(), k, v), 1e-5)
    # Whole spans of keys whose scores are -inf weigh nothing; of nothing but such keys there is no mean.
    q, k = q.abs()[:, :, 4:], k.abs()
    k[:, :, 40:580] = -INF
    close(sdpa(q, k, v), F.scaled_dot_product_attention(q, k, v), 1e-5)
    v[:, :, 590, 3] = NAN
    close(sdpa(q, k, v), F.scaled_dot_product_attention(q, k, v), 1e-5)
    assert sdpa(q, torch.full_like(k, -INF), v).isnan().all()
    # Scores that differ by more than fp32 can raise 2 to, in spans of their own.
    k = torch.zeros_like(k)
    k[:, :, 300] = 1e4
    close(sdpa(q, k, v.nan_to_num()), v.nan_to_num()[:, :, 300:301].expand_as(q), 1e-6)


def check_what_goes_another_way():
    """Causal masks, wanted gradients, given configs, many queries, few keys: the same results as ever."""
    q, k, v = tensors(1, 2, 1, 4, 600, 16)
    with mock.patch.object(decoding, "decode", side_effect=AssertionError):
        causal = F.scaled_dot_product_attention(q.double(), k.double(), v.double(), is_causal=True)
        close(sdpa(q, k, v, is_causal=True), causal, 1e-5)
        few = k[:, :, :511], v[:, :, :511]
        close(sdpa(q, *few), F.scaled_dot_product_attention(q, *few), 1e-5)
        wide = draw(1, 2, 17, 16)
        close(sdpa(wide, k, v), F.scaled_dot_product_attention(wide, k, v), 1e-5)
        config = {"BLOCK_M": 32, "BLOCK_N": 32, "num_warps": 4, "num_stages": 2, "TMA": 0, "SPECIALIZED": 0}
        close(sdpa(q, k, v, config=config), F.scaled_dot_product_attention(q, k, v), 1e-5)
        leaf, twin = v.clone().requires_grad_(), v.double().requires_grad_()
        sdpa(q, k, leaf).square().sum().backward()
        F.scaled_dot_product_attention(q.double(), k.double(), twin).square().sum().backward()
        close(leaf.grad, twin.grad, 1e-5)
    with torch.no_grad():
        served(q, k, leaf)


def check_empty():
    q, k, v = tensors(1, 1, 1, 1, 600, 16)
    assert sdpa(q[:, :, :0], k, v).shape == (1, 1, 0, 16)
    assert sdpa(q[:0], k[:0], v[:0]).shape == (0, 1, 1, 16)
