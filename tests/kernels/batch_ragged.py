"""Attention of packed sequences, in Triton's interpreter."""

from itertools import accumulate

import torch
import torch.nn.functional as F
from interpreted import INF, NAN, SPECS, against_reference, close, compare, draw, poisoned, told_apart
from tilescope_kernels import ragged_attention


def bounds(lengths):
    return torch.tensor([0, *accumulate(lengths)], dtype=torch.int32)


def doubles(tensors):
    return [tensor.detach().double().requires_grad_() for tensor in tensors]


def wanted(tensors, queries, keys, is_causal=False, scale=None):
    """PyTorch's function of one sequence after another; causal masks end where sequences do. Zeros after the last."""
    q, k, v = tensors
    group, results, first_q, first_k = q.shape[1] // k.shape[1], [], 0, 0
    for m, n in zip((0, *queries), (0, *keys), strict=True):
        one = [q[first_q : first_q + m], *(t[first_k : first_k + n].repeat_interleave(group, 1) for t in (k, v))]
        seen = torch.arange(n) <= torch.arange(m)[:, None] + n - m if is_causal else torch.ones(m, n, dtype=torch.bool)
        o = F.scaled_dot_product_attention(*(t.transpose(0, 1)[None] for t in one), seen, scale=scale)
        # PyTorch gives zeros to queries that see no key, too.
        results.append(o[0].transpose(0, 1))
        first_q, first_k = first_q + m, first_k + n
    return torch.cat([*results, torch.zeros_like(q[first_q:])])


def both_passes(ours, queries, keys, tolerance=1e-5, *, longest=None, config=None, **options):
    """The result and the gradients against PyTorch's in fp64, and that all of them are written."""
    where = bounds(queries), bounds(keys), *(longest or (max(queries, default=0), max(keys, default=0)))
    with poisoned():
        compare(
            lambda *qkv: ragged_attention(*qkv, *where, config=config, **options),
            lambda *qkv: wanted(qkv, queries, keys, **options), ours, tolerance, times=2.0,
        )  # fmt: skip


def packed(queries, keys, shape, dtype=torch.float32, more=0):
    heads, kv_heads, columns = shape
    shapes = (sum(queries) + more, heads), *[(sum(keys) + more, kv_heads)] * 2
    return [draw(*shape, columns, seed=seed).to(dtype).requires_grad_() for seed, shape in enumerate(shapes)]


LENGTHS = (
    ((5, 40, 1, 0, 70), (5, 40, 1, 0, 70)),
    # Keys before queries, as in a chunk of a prompt; queries that see none; no queries, no keys.
    ((5, 40, 33, 4, 0, 9), (37, 20, 1, 0, 8, 100)),
    ((1, 1, 1), (64, 65, 1)),
)


def check_lengths():
    for causal in (False, True):
        for queries, keys in LENGTHS:
            both_passes(packed(queries, keys, (2, 2, 16)), queries, keys, is_causal=causal)


def check_grouped_heads_and_rows_after_the_last_sequence():
    for causal in (False, True):
        queries, keys = LENGTHS[1]
        both_passes(packed(queries, keys, (6, 2, 16), more=80), queries, keys, is_causal=causal)
        both_passes(packed(queries, keys, (3, 1, 64), torch.float16, more=3), queries, keys, 1e-3, is_causal=causal)


def check_any_number_of_columns():
    for columns, causal in ((1, True), (24, False), (96, True), (200, False), (256, True)):
        both_passes(packed((20, 35), (50, 21), (2, 1, columns)), (20, 35), (50, 21), is_causal=causal)


def check_every_config():
    # fp16, which descriptors serve and the interpreter computes rightly.
    for config in told_apart(SPECS["ragged_attention"].implementations["triton"].configs):
        ours = packed((150, 9), (140, 30), (2, 1, 16), torch.float16)
        both_passes(ours, (150, 9), (140, 30), 1e-3, is_causal=True, config=config)


def check_longest_may_be_more_and_there_may_be_one_sequence_or_none():
    both_passes(packed((20,), (30,), (2, 2, 16)), (20,), (30,), longest=(100, 200), is_causal=True)
    for longest in ((0, 0), (5, 5)):
        both_passes(packed((), (), (2, 2, 16), more=7), (), (), longest=longest)
    both_passes(packed((0, 0), (3, 0), (2, 2, 16)), (0, 0), (3, 0))
    both_passes(packed((3, 0), (0, 0), (2, 2, 16)), (3, 0), (0, 0), longest=(3, 0))


def check_strides_and_scale():
    joint = draw(61, 3, 2, 24)
    ours = [tensor.requires_grad_() for tensor in joint.unbind(1)]
    for scale in (None, 0.3, 5.0):
        both_passes(ours, (20, 41), (20, 41), is_causal=True, scale=scale)
    both_passes([draw(2, 16, 61, seed=seed).permute(2, 0, 1).requires_grad_() for seed in range(3)], (20, 41), (20, 41))
    q, v = draw(61, 1, 16), draw(61, 1, 16, seed=1)
    means = torch.cat([part.cumsum(0) / torch.arange(1, len(part) + 1)[:, None, None] for part in v.split((20, 41))])
    close(ragged_attention(q, q, v, *[bounds((20, 41))] * 2, 41, 41, is_causal=True, scale=0.0), means)
    alternate = bounds((20, 41)).repeat_interleave(2)[::2]
    close(ragged_attention(q, q, v, alternate, alternate, 41, 41, scale=0.0)[0], v[:20].mean(0))


def check_special_values_stay_in_their_sequence():
    # Sequences shorter than a block, one of them full of NaN and infinities: its neighbours know nothing of it, either way.
    lengths = (30, 20, 50)
    for dtype, tolerance in ((torch.float32, 1e-5), (torch.float16, 1e-3)):
        for causal in (False, True):
            clean = packed(lengths, lengths, (2, 2, 16), dtype)
            spoiled = [tensor.detach().clone() for tensor in clean]
            for tensor in spoiled:
                tensor[30:40], tensor[40:50] = NAN, INF
            spoiled = [tensor.requires_grad_() for tensor in spoiled]
            upstream = draw(100, 2, 16, seed=9).to(dtype)
            upstream[30:50] = NAN
            results = []
            for ours in (clean, spoiled):
                o = ragged_attention(*ours, *[bounds(lengths)] * 2, 50, 50, is_causal=causal)
                results.append([o, *torch.autograd.grad(o, ours, upstream)])
            for one, other in zip(*results, strict=True):
                assert torch.equal(one[:30], other[:30]) and torch.equal(one[50:], other[50:])
                assert other[30:50].isnan().any()
            close(results[0][0], wanted(doubles(clean), lengths, lengths, causal), tolerance)
    # Keys whose scores are -inf weigh nothing; of nothing but such keys there is no mean.
    q, k, v = (t.detach() for t in packed(lengths, lengths, (1, 1, 16)))
    q, k = q.abs(), k.abs()
    k[50:90], k[:30] = -INF, -INF
    actual = ragged_attention(q, k, v, *[bounds(lengths)] * 2, 50, 50)
    close(actual[30:], wanted((q, k, v), lengths, lengths)[30:], 1e-5)
    assert actual[:30].isnan().all()


def check_spec():
    with poisoned():
        for extents in ("3x2x2x40x16", "2x1x1x100x64"):
            against_reference("ragged_attention", f"{extents}-fp32")
    against_reference("ragged_attention", "0x2x2x40x16-fp32")
