"""Attention of packed sequences on a GPU against fp64: lengths, columns, dtypes, special values, peers."""

from itertools import accumulate

import pytest
import torch
from tilescope_kernels import ragged_attention
from tilescope_kernels.attention.ragged import SPEC, _composed

from . import checks, on_gpu
from .checks import INF, NAN
from .on_gpu import draw

pytestmark = [*on_gpu.MARKS, on_gpu.INDUCTOR]
DTYPES = {"fp32": torch.float32, "fp16": torch.float16, "bf16": torch.bfloat16}
LENGTHS = {
    "same": ((300, 1, 0, 517, 64), (300, 1, 0, 517, 64)),
    "more_keys": ((300, 1, 0, 128, 64, 3), (1000, 1, 7, 517, 65, 0)),
    "more_queries": ((300, 129, 5, 517), (3, 128, 0, 257)),
    "many": ((17,) * 300, (17,) * 300),
}


def packed(lengths, shape, dtype=torch.bfloat16, more=0):
    (queries, keys), (heads, kv_heads, columns) = lengths, shape
    shapes = (sum(queries) + more, heads), *[(sum(keys) + more, kv_heads)] * 2
    return [draw(*shape, columns, dtype=dtype, seed=seed) for seed, shape in enumerate(shapes)]


def bounds(lengths):
    return torch.tensor([0, *accumulate(lengths)], dtype=torch.int32, device="cuda")


def compare(tensors, queries, keys, tolerance, *, is_causal, **options):
    where, scale = (bounds(queries), bounds(keys)), tensors[0].shape[2] ** -0.5
    for _ in range(3):  # the third makes the launches of the second again
        checks.compare(
            lambda *qkv: ragged_attention(*qkv, *where, max(queries), max(keys), is_causal=is_causal, **options),
            lambda *qkv: _composed(*qkv, *where, is_causal, scale), tensors, tolerance,
        )  # fmt: skip


@pytest.mark.parametrize("dtype", list(DTYPES))
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("lengths", LENGTHS)
def test_lengths(lengths, causal, dtype):
    tensors = packed(LENGTHS[lengths], (6, 2, 128) if causal else (4, 4, 64), DTYPES[dtype], more=70)
    compare(tensors, *LENGTHS[lengths], SPEC.tolerance[dtype], is_causal=causal)


@pytest.mark.parametrize("dtype", list(DTYPES))
@pytest.mark.parametrize("columns", [1, 16, 80, 256])
def test_columns(columns, dtype):
    tensors = packed(LENGTHS["more_keys"], (4, 2, columns), DTYPES[dtype])
    for causal in (False, True):
        compare(tensors, *LENGTHS["more_keys"], SPEC.tolerance[dtype], is_causal=causal)


def test_strides():
    joint = draw(817, 3, 4, 128)
    compare(joint.unbind(1), (300, 517), (300, 517), SPEC.tolerance["bf16"], is_causal=True)
    # Rows whose starts are not 16-byte aligned, which descriptors cannot reach.
    odd = [draw(817, 4, 65, seed=seed)[..., 1:] for seed in range(3)]
    compare(odd, (300, 517), (300, 517), SPEC.tolerance["bf16"], is_causal=True)
    heads_apart = [draw(4, 817, 64, seed=seed).transpose(0, 1) for seed in range(3)]
    compare(heads_apart, (300, 517), (300, 517), SPEC.tolerance["bf16"], is_causal=False)


@pytest.mark.parametrize(("columns", "causal"), [(64, False), (128, True)])
def test_special_values_stay_in_their_sequence(columns, causal):
    lengths = (300, 100, 517)
    results = []
    for spoiled in (False, True):
        ours = packed((lengths, lengths), (4, 2, columns))
        upstream = draw(917, 4, columns, seed=9)
        if spoiled:
            for tensor in (*ours, upstream):
                tensor[300:350], tensor[350:400] = NAN, INF
        ours = [tensor.requires_grad_() for tensor in ours]
        o = ragged_attention(*ours, *[bounds(lengths)] * 2, 517, 517, is_causal=causal)
        results.append([o, *torch.autograd.grad(o, ours, upstream)])
    for one, other in zip(*results, strict=True):
        assert torch.equal(one[:300], other[:300]) and torch.equal(one[400:], other[400:])
        assert one.isfinite().all() and other[300:400].isnan().any()


def test_in_a_graph_with_other_bounds():
    tensors = packed([(1000,)] * 2, (4, 4, 64))
    where = bounds((400, 500))

    def call():
        return ragged_attention(*tensors, where, where, 1000, 1000, is_causal=True)

    call()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured = call()
    for lengths in ((400, 500), (1, 999), (0, 0)):
        where.copy_(bounds(lengths))
        graph.replay()
        assert torch.equal(captured, call())
        assert not captured[sum(lengths) :].any()
