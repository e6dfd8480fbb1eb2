"""Attention to keys and values in pages on a GPU against fp64: lengths, pages, columns, dtypes, special values, peers."""

import pytest
import torch
from tilescope_kernels import paged_attention
from tilescope_kernels.attention.paged import SPEC, _composed

from . import on_gpu
from .checks import INF, NAN, relative_error
from .on_gpu import draw

pytestmark = [*on_gpu.MARKS, on_gpu.INDUCTOR]
DTYPES = {"fp32": torch.float32, "fp16": torch.float16, "bf16": torch.bfloat16}


def caches(lengths, page, kv_heads, columns, dtype=torch.bfloat16):
    """A cache, its table and its lengths. What no sequence has is NaN, or no page."""
    counts = [-(-length // page) for length in lengths]
    pages = [draw(sum(counts) + 3, page, kv_heads, columns, dtype=dtype, seed=seed) for seed in (1, 2)]
    order = torch.randperm(sum(counts) + 3, generator=torch.Generator().manual_seed(0))
    table = torch.full((len(lengths), max(counts) + 2), -(2**30), dtype=torch.int32)
    used = 0
    for i, (length, count) in enumerate(zip(lengths, counts, strict=True)):
        table[i, :count] = order[used : used + count]
        used += count
        if length % page:
            for one in pages:
                one[table[i, count - 1], length % page :] = NAN
    for one in pages:
        one[order[used:].cuda()] = NAN
    return *pages, table.cuda(), torch.tensor(lengths, dtype=torch.int32, device="cuda")


def compare(q, given, tolerance, causal=False, **options):
    k, v, table, lengths = given
    expected = _composed(q.double(), k.double(), v.double(), table, lengths, causal, q.shape[3] ** -0.5)
    for _ in range(3):  # the third makes the launches of the second again
        actual = paged_attention(q, *given, is_causal=causal, **options)
        assert relative_error(actual, expected) <= tolerance
        actual.fill_(NAN)


@pytest.mark.parametrize("dtype", list(DTYPES))
@pytest.mark.parametrize("page", [1, 24, 64])
@pytest.mark.parametrize(
    ("lengths", "heads"),
    [((1000, 0, 65, 1, 4097), (2, 4, 1)), ((30000,), (1, 1, 3)), ((129,) * 40, (8, 1, 1)), ((700, 3, 1), (2, 8, 16))],
)
def test_lengths_and_pages(lengths, heads, page, dtype):
    kv_heads, group, queries = heads
    given = caches(lengths, page, kv_heads, 128, DTYPES[dtype])
    q = draw(len(lengths), kv_heads * group, queries, 128, dtype=DTYPES[dtype])
    for causal in (False, True):
        compare(q, given, SPEC.tolerance[dtype], causal)


@pytest.mark.parametrize("dtype", list(DTYPES))
@pytest.mark.parametrize("columns", [1, 16, 80, 256])
def test_columns(columns, dtype):
    for page in (16, 128):
        given = caches((1000, 517, 3), page, 2, columns, DTYPES[dtype])
        compare(draw(3, 6, 2, columns, dtype=DTYPES[dtype]), given, SPEC.tolerance[dtype], True)


def test_strides():
    k, v, table, lengths = caches((1000, 517, 3), 16, 2, 64)
    joint = torch.stack((k.transpose(1, 2), v.transpose(1, 2)), 1)
    k, v = (joint[:, i].transpose(1, 2) for i in range(2))
    q = draw(3, 1, 3, 8, 64)[:, :, 1].transpose(1, 2)
    compare(q, (k, v, torch.cat((table, table), 1)[:, : table.shape[1]], lengths), SPEC.tolerance["bf16"])
    odd = [torch.cat((t, t), -1)[..., 63:127] for t in (k, v)]  # rows that do not start at 16 bytes
    compare(q, (*odd, table, lengths), SPEC.tolerance["bf16"])


def test_special_values():
    k, v, table, lengths = caches((1000, 3000), 16, 2, 128)
    q = draw(2, 8, 2, 128)
    clean = paged_attention(q, k, v, table, lengths)
    q[0, 0, 0], q[0, 1, 0] = NAN, INF
    v[table[0, 7], 3, 1, 5] = NAN
    actual = paged_attention(q, k, v, table, lengths)
    assert torch.equal(actual[1], clean[1])
    assert actual[0, 0, 0].isnan().all() and actual[0, 1, 0].isnan().all() and actual[0, 4:, :, 5].isnan().all()
    assert torch.equal(actual[0, 2:4], clean[0, 2:4]) and actual[0, 4:, :, :5].isfinite().all()


def test_paged_graph_takes_other_lengths_and_pages():
    k, v, table, lengths = caches((1000, 3000), 16, 2, 128)
    q = draw(2, 8, 1, 128)

    def call():
        return paged_attention(q, k, v, table, lengths)

    call()
    torch.cuda.set_sync_debug_mode("error")
    try:
        first, second = call(), call()
    finally:
        torch.cuda.set_sync_debug_mode("default")
    assert torch.equal(first, second)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured = call()
    for numbers in ((1000, 3000), (17, 0), (1, 2999)):
        lengths.copy_(lengths.new_tensor(numbers))
        graph.replay()
        assert torch.equal(captured, call())
    table.copy_(table.flip(0))
    lengths.fill_(999)
    graph.replay()
    assert torch.equal(captured, call()) and not torch.equal(captured, first)


def test_a_cache_beyond_32_bit_offsets():
    if torch.cuda.mem_get_info()[0] < 24 << 30:
        pytest.skip("needs 24 GB of GPU memory")
    pages = 2**31 // (16 * 8 * 128) + 5
    k, v = (torch.zeros(pages, 16, 8, 128, device="cuda", dtype=torch.bfloat16) for _ in range(2))
    k[-3:], v[-3:] = draw(3, 16, 8, 128), draw(3, 16, 8, 128, seed=1)
    table = torch.arange(pages - 3, pages, device="cuda", dtype=torch.int32)[None]
    lengths = table.new_tensor([40])
    q = draw(1, 32, 1, 128)
    near = paged_attention(q, k[-3:].clone(), v[-3:].clone(), table - (pages - 3), lengths)
    assert torch.equal(paged_attention(q, k, v, table, lengths), near)
