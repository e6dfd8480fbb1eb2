"""Paged attention: a few new queries per sequence attend to a KV cache in pages, which a table assigns to sequences.

PagedAttention (Kwon et al., arXiv:2309.06180), with the keys split over programs as in ``decode``. It is bound by reading
keys and values once. The host never waits for the GPU: the kernel reads the lengths and splits each sequence's keys evenly.
There are no atomics, so the result is deterministic.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import torch
import torch.nn.functional as F
import triton
import triton.language as tl

from tilescope_kernels._shared import checks
from tilescope_kernels._shared.launching import BEYOND, cdiv, launch, multiprocessors, next_power_of_2, shared_memory
from tilescope_kernels._shared.operators import neighbours, operator, pack, rows_like, unpack
from tilescope_kernels.attention.attention import _MOST
from tilescope_kernels.attention.attention_configs import checked_scale, padded
from tilescope_kernels.attention.decode import _SPLITS, _span, attention_combine_kernel
from tilescope_kernels.spec import Config, Cost, Draw, Implementation, Workload, declare, drawn


@triton.jit
def _pages(table_ptr, start, keys, PAGE: tl.constexpr, BLOCK: tl.constexpr):
    """Page numbers of keys ``start`` to ``start + BLOCK``, a scalar if one page holds them all. 0 from ``keys`` on."""
    if PAGE % BLOCK == 0:
        return tl.load(table_ptr + start // PAGE, mask=start < keys, other=0)
    else:
        key = start + tl.arange(0, BLOCK)
        return tl.load(table_ptr + key // PAGE, mask=key < keys, other=0)


@triton.jit
def _places(pages, strides, start, PAGE: tl.constexpr, BLOCK: tl.constexpr):
    """Offsets of keys ``start`` to ``start + BLOCK`` in a cache. ``strides`` are those of a page and of a key."""
    row = (start + tl.arange(0, BLOCK)) % PAGE
    return pages.to(tl.int64) * strides[0] + row.to(tl.int64) * strides[1]


@triton.jit
def _block(ptr, places, present, COLUMNS: tl.constexpr, MASKED: tl.constexpr):
    """Load keys or values at ``places``, zeros where not ``present`` and past the last column."""
    WIDTH: tl.constexpr = padded(COLUMNS)
    column = tl.arange(0, WIDTH)[None, :]
    pointers = ptr + places[:, None] + column
    if MASKED and WIDTH > COLUMNS:
        return tl.load(pointers, mask=present[:, None] & (column < COLUMNS), other=0.0)
    elif MASKED:
        return tl.load(pointers, mask=present[:, None], other=0.0)
    elif WIDTH > COLUMNS:
        return tl.load(pointers, mask=column < COLUMNS, other=0.0)
    else:
        return tl.load(pointers)


@triton.jit
def _attend(
    total, largest, weight, q, k_ptr, v_ptr, table_ptr, k_strides, v_strides, first, last, keys, seen, score_scale,
    PAGE: tl.constexpr, BLOCK: tl.constexpr, COLUMNS: tl.constexpr, MASKED: tl.constexpr,
):  # fmt: skip
    """Update the online softmax with keys ``first`` to ``last``, as in ``flash``. ``MASKED``: a row sees its first ``seen`` keys."""
    pages = _pages(table_ptr, first, keys, PAGE, BLOCK)
    for start in tl.range(first, last, BLOCK):
        key = start + tl.arange(0, BLOCK)
        k_places = _places(pages, k_strides, start, PAGE, BLOCK)
        v_places = _places(pages, v_strides, start, PAGE, BLOCK)
        # Load the next tile's pages now, so that its keys and values need not wait for them.
        pages = _pages(table_ptr, start + BLOCK, keys, PAGE, BLOCK)
        k = _block(k_ptr, k_places, key < keys, COLUMNS, MASKED)
        scores = tl.dot(q, k.T, input_precision="ieee") * score_scale
        if MASKED:
            scores = tl.where(key[None, :] < seen[:, None], scores, float("-inf"))
        larger = tl.maximum(largest, tl.max(scores, 1))
        p = tl.exp2(scores - larger[:, None])
        shrink = tl.exp2(largest - larger)
        weight = weight * shrink + tl.sum(p, 1)
        v = _block(v_ptr, v_places, key < keys, COLUMNS, MASKED)
        total = tl.dot(p.to(v.dtype), v, total * shrink[:, None], input_precision="ieee")
        largest = larger
    return total, largest, weight


@triton.jit
def paged_attention_kernel(
    totals_ptr, sums_ptr, q_ptr, k_ptr, v_ptr, table_ptr, lengths_ptr, q_strides, k_strides, v_strides, table_stride,
    kv_heads, queries, splits, score_scale,
    GROUP: tl.constexpr, COLUMNS: tl.constexpr, CAUSAL: tl.constexpr, PAGE: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
):  # fmt: skip
    """Attend BLOCK_M rows of a group's queries to one of ``splits`` spans of a sequence's keys per program.

    Spans are equal, in whole tiles. ``totals`` and ``sums`` are as in ``attention_decode_kernel``. Consecutive programs read
    the heads of one span, which are adjacent in memory.
    """
    rows = GROUP * queries
    kv_head = tl.program_id(0) % kv_heads
    split = tl.program_id(0) // kv_heads % splits
    block = tl.program_id(0) // kv_heads // splits % tl.cdiv(rows, BLOCK_M)
    batch = (tl.program_id(0) // kv_heads // splits // tl.cdiv(rows, BLOCK_M)).to(tl.int64)
    row = block * BLOCK_M + tl.arange(0, BLOCK_M)
    column = tl.arange(0, padded(COLUMNS))[None, :]
    written = row[:, None] < rows
    if padded(COLUMNS) > COLUMNS:
        written = written & (column < COLUMNS)
    offsets = batch * q_strides[0] + (kv_head * GROUP + row // queries) * q_strides[1] + row % queries * q_strides[2]
    q = tl.load(q_ptr + offsets[:, None] + column, mask=written, other=0.0)
    keys = tl.load(lengths_ptr + batch)
    # Number of keys that all rows see, and that each row sees.
    common = keys
    seen = tl.zeros((BLOCK_M,), tl.int32) + keys
    if CAUSAL:
        common = tl.maximum(keys - queries + 1, 0)
        seen = keys - queries + 1 + row % queries
    span = tl.cdiv(tl.cdiv(keys, splits), BLOCK_N) * BLOCK_N
    first = split * span
    last = tl.minimum(first + span, keys)
    whole = first + tl.maximum(tl.minimum(last, common) - first, 0) // BLOCK_N * BLOCK_N
    # The lowest finite fp32, not -inf: all of a span's scores may be -inf, and -inf - -inf is NaN.
    largest = tl.full((BLOCK_M,), -3.4028234663852886e38, tl.float32)
    weight = tl.zeros((BLOCK_M,), tl.float32)
    total = tl.zeros((BLOCK_M, padded(COLUMNS)), tl.float32)
    table_ptr += batch * table_stride
    k_ptr += kv_head.to(tl.int64) * k_strides[2]
    v_ptr += kv_head.to(tl.int64) * v_strides[2]
    total, largest, weight = _attend(
        total, largest, weight, q, k_ptr, v_ptr, table_ptr, k_strides, v_strides, first, whole, keys, seen, score_scale,
        PAGE, BLOCK_N, COLUMNS, False,
    )  # fmt: skip
    total, largest, weight = _attend(
        total, largest, weight, q, k_ptr, v_ptr, table_ptr, k_strides, v_strides, whole, last, keys, seen, score_scale,
        PAGE, BLOCK_N, COLUMNS, True,
    )  # fmt: skip
    if split == 0:
        # The merged output of a row that sees no key is 0 / 1 = 0, not 0 / 0.
        weight = tl.where(seen > 0, weight, 1.0)
    place = ((batch * kv_heads + kv_head) * splits + split) * rows + row
    tl.store(totals_ptr + place[:, None] * COLUMNS + column, total, mask=written)
    tl.store(sums_ptr + 2 * place, largest, mask=row < rows)
    tl.store(sums_ptr + 2 * place + 1, weight, mask=row < rows)


#: Keys per tile, warps, stages, and spans per sequence (0: chosen by ``_spans``).
CONFIGS = tuple(
    dict(zip(("BLOCK_N", "num_warps", "num_stages", "SPLITS"), parts, strict=True))
    for parts in (
        (64, 4, 3, 0), (64, 4, 4, 0), (64, 4, 2, 0), (128, 4, 2, 0), (128, 4, 3, 0), (128, 8, 3, 0), (32, 4, 4, 0), (64, 2, 3, 0),
        (64, 4, 3, 1), (64, 4, 3, 4), (64, 4, 3, 8), (64, 4, 3, 16), (64, 4, 3, 33), (64, 4, 3, 64), (32, 2, 4, 0), (32, 4, 6, 0),
    )
)  # fmt: skip

#: Shortest span, in keys, of a split that only evens out lengths.
_LEAST = 1024


def _chosen(q: torch.Tensor, config: str) -> Mapping[str, int]:
    """The requested config, or the fastest known."""
    if asked := unpack(config):
        return asked
    wide = q.shape[3] > 128
    if q.dtype == torch.float32:  # on the CUDA cores
        return {"BLOCK_N": 16 if wide else 32, "num_warps": 4, "num_stages": 2, "SPLITS": 0}
    if shared_memory(q) < 163 * 1024:
        return {"BLOCK_N": 32 if wide else 64, "num_warps": 4, "num_stages": 2, "SPLITS": 0}
    return {**CONFIGS[0], "BLOCK_N": 32 if wide else 64}


def _spans(batch: int, units: int, keys: int, block: int, programs: int) -> int:
    """Spans per sequence, chosen for sequences of ``keys`` keys each. Two programs fit on each of ``programs`` SMs.

    The host does not know the lengths. If they differ, extra spans let SMs that finish short sequences take over work of long
    sequences. If all are equally long, extra spans cost a little.
    """
    alike = cdiv(keys, _span(units, keys, block, 2 * programs))
    return alike if batch == 1 else max(alike, min(8 * programs // units, keys // _LEAST, _SPLITS))


@operator("paged_attention", autocast="lower", fake=lambda q, *_: rows_like(q))
def _paged(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, table: torch.Tensor, lengths: torch.Tensor, causal: bool, scale: float,
    config: str,
) -> torch.Tensor:  # fmt: skip
    (batch, heads, queries, columns), (_, page, kv_heads, _) = q.shape, k.shape
    o = rows_like(q)
    if o.numel() == 0 or table.numel() == 0 or k.numel() == 0:
        return o.zero_()
    if max(heads * q.stride(1), queries * q.stride(2)) >= BEYOND:
        q = q.contiguous()  # offsets of heads and of queries are 32-bit
    chosen = _chosen(q, config)
    group, n = heads // kv_heads, chosen["BLOCK_N"]
    rows = group * queries
    block = min(64, max(16, next_power_of_2(rows)))
    units = batch * kv_heads * cdiv(rows, block)
    splits = chosen["SPLITS"] or _spans(batch, units, table.shape[1] * page, n, multiprocessors(q))
    totals = torch.empty((batch * kv_heads, splits, rows, columns), dtype=torch.float32, device=q.device)
    sums = torch.empty((batch * kv_heads, splits, rows, 2), dtype=torch.float32, device=q.device)
    launch(
        paged_attention_kernel, (units * splits,),
        totals, sums, q, k, v, table, lengths, *(t.stride()[:3] for t in (q, k, v)), table.stride(0),
        kv_heads, queries, splits, scale * math.log2(math.e),
        GROUP=group, COLUMNS=columns, CAUSAL=causal and queries > 1, PAGE=page, BLOCK_M=block, BLOCK_N=n,
        num_warps=chosen["num_warps"], num_stages=chosen["num_stages"],
    )  # fmt: skip
    launch(
        attention_combine_kernel, (batch * heads * queries,),
        o, totals, sums, o.stride()[:3], kv_heads, queries, splits,
        GROUP=group, COLUMNS=columns, SPLITS=next_power_of_2(splits), num_warps=min(4, next_power_of_2(splits)),
    )  # fmt: skip
    return o


def _check(
    query: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, page_table: torch.Tensor, lengths: torch.Tensor
) -> None:
    checks.check_tensors(query=query, key_cache=keys, value_cache=values)
    checks.check_no_grad("paged_attention", query=query, key_cache=keys, value_cache=values)
    if query.dim() != 4:
        raise ValueError(f"query has {query.dim()} dimensions: give (batch, heads, queries, columns)")
    batch, heads, _, columns = query.shape
    if not 1 <= columns <= _MOST:
        raise ValueError(f"query has {columns} columns a head: give 1 to {_MOST}")
    if keys.dim() != 4 or keys.shape[3] != columns or keys.shape[2] == 0 or heads % keys.shape[2]:
        raise ValueError(
            f"key_cache has shape {tuple(keys.shape)}: give (pages, keys of a page, heads, {columns}), with a number of heads that"
            f" divides query's {heads}"
        )
    checks.check_alike(key_cache=keys, value_cache=values)
    checks.check_integers(page_table=page_table, lengths=lengths)
    if page_table.dim() != 2 or len(page_table) != batch:
        raise ValueError(f"page_table has shape {tuple(page_table.shape)}: give ({batch}, pages of a sequence)")
    if lengths.shape != (batch,):
        raise ValueError(f"lengths has shape {tuple(lengths.shape)}: give ({batch},)")
    checks.check_together(query=query, page_table=page_table, lengths=lengths)


def paged_attention(
    query: torch.Tensor, key_cache: torch.Tensor, value_cache: torch.Tensor, page_table: torch.Tensor,
    lengths: torch.Tensor, *, is_causal: bool = False, scale: float | None = None, config: Config | None = None,
) -> torch.Tensor:  # fmt: skip
    """Attention of ``query`` (batch, heads, queries, columns) to each sequence's keys and values in pages; not differentiable.

    ``key_cache`` and ``value_cache`` are (pages, page size, kv_heads, columns). Each of their heads serves heads / kv_heads
    consecutive heads of ``query``. ``page_table`` (batch, pages per sequence) lists each sequence's pages in order, and
    ``lengths`` (batch,) the number of its keys; both are int32 on the GPU. Table entries past a sequence's last page, and keys
    past its length, are not read. Page numbers and lengths are not checked, because that would wait for the GPU: a length must
    not exceed the keys of a row of the table. A sequence without keys gets zeros.

    The kernel is meant for few queries: the rows of all heads that share keys form tiles of up to 64. ``is_causal`` takes the
    queries for the sequence's last tokens, whose keys are in the cache already: of n queries, query i sees keys 0 to
    length + i - n. ``scale`` is 1 / sqrt(columns) by default, and at least 0. Dtypes are fp32, fp16 and bf16, with 1 to 256
    columns, pages of any size and any strides; a last stride other than 1 costs a copy. The result is deterministic.
    ``config`` is one of ``CONFIGS``. Raises ValueError, naming the argument, for what is not supported, such as a gradient.
    """
    if checks.use_triton():
        _check(query, key_cache, value_cache, page_table, lengths)
    scale = checked_scale(scale, query)
    if not checks.use_triton():
        return _composed(query, key_cache, value_cache, page_table, lengths, is_causal, scale)
    q, k, v, table = (neighbours(tensor) for tensor in (query, key_cache, value_cache, page_table))
    return _paged(q, k, v, table, lengths.contiguous(), is_causal, scale, pack(config))


def _gathered(
    key_cache: torch.Tensor, value_cache: torch.Tensor, page_table: torch.Tensor, lengths: torch.Tensor, group: int
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Gather keys and values (batch, heads, keys, columns), 0 past a sequence's end, and a mask of valid keys (batch, keys)."""
    page = key_cache.shape[1]
    present = torch.arange(page_table.shape[1] * page, device=lengths.device) < lengths[:, None]
    pages = page_table.where(present[:, ::page], 0)
    k, v = (
        cache[pages].flatten(1, 2).masked_fill(~present[:, :, None, None], 0.0).transpose(1, 2)
        for cache in (key_cache, value_cache)
    )
    return k.repeat_interleave(group, 1), v.repeat_interleave(group, 1), present


def _composed(
    query: torch.Tensor, key_cache: torch.Tensor, value_cache: torch.Tensor, page_table: torch.Tensor, lengths: torch.Tensor,
    is_causal: bool, scale: float,
) -> torch.Tensor:  # fmt: skip
    k, v, present = _gathered(key_cache, value_cache, page_table, lengths, query.shape[1] // key_cache.shape[2])
    visible = present[:, None, None]
    if is_causal:
        key, row = (torch.arange(t.shape[2], device=query.device) for t in (k, query))
        visible = key <= (lengths[:, None, None] - query.shape[2] + row[:, None])[:, None]
    scores = (query @ k.mT * scale).masked_fill(~visible, -math.inf)
    return scores.softmax(-1).masked_fill(~visible, 0.0) @ v


def reference(
    query: torch.Tensor, key_cache: torch.Tensor, value_cache: torch.Tensor, page_table: torch.Tensor,
    lengths: torch.Tensor,
) -> torch.Tensor:  # fmt: skip
    """Gather keys and values, then compute attention in plain PyTorch, one operation at a time."""
    return _composed(query, key_cache, value_cache, page_table, lengths, False, 1 / math.sqrt(query.shape[3]))


def _sdpa(
    query: torch.Tensor, key_cache: torch.Tensor, value_cache: torch.Tensor, page_table: torch.Tensor,
    lengths: torch.Tensor,
) -> torch.Tensor:  # fmt: skip
    group = query.shape[1] // key_cache.shape[2]
    k, v, present = _gathered(key_cache, value_cache, page_table, lengths, 1)
    return F.scaled_dot_product_attention(query, k, v, present[:, None, None], enable_gqa=group > 1)


def _numbers(workload: Workload) -> torch.Generator:
    """CPU generator of lengths and pages: the cost depends on them, so they must be the same on every device."""
    return torch.Generator().manual_seed(workload.seed)


def _lengths(workload: Workload) -> list[int]:
    """Keys of each sequence, drawn from the seed: ``keys`` for the first, at least half as many for the others."""
    batch, keys = workload.dims["batch"], workload.dims["keys"]
    drawn = torch.randint((keys + 1) // 2, keys + 1, (batch,), generator=_numbers(workload))
    return [keys, *drawn.tolist()][:batch]


@drawn
def inputs(
    draw: Draw, batch: int, kv_heads: int, group: int, queries: int, keys: int, page: int, columns: int
) -> dict[str, Any]:
    """Standard normal queries, keys and values. The cache holds the sequences' pages only, in random order.

    ``group`` query heads share each head of keys and values. The longest sequence has ``keys`` keys.
    """
    lengths = _lengths(draw.workload)
    counts = [cdiv(length, page) if page else 0 for length in lengths]
    order = torch.randperm(sum(counts), generator=_numbers(draw.workload)).tolist()
    width = cdiv(keys, page) if page else 0
    table = [[order.pop() if place < count else 0 for place in range(width)] for count in counts]
    cache = (sum(counts), page, kv_heads, columns)
    return {
        "query": draw(batch, kv_heads * group, queries, columns),
        "key_cache": draw(*cache),
        "value_cache": draw(*cache),
        "page_table": torch.tensor(table, dtype=torch.int32, device=draw.device).reshape(batch, width),
        "lengths": torch.tensor(lengths, dtype=torch.int32, device=draw.device),
    }


def cost(workload: Workload, direction: str) -> Cost:
    """Operations of both products; bytes of the queries, the valid keys and values, the table, the lengths and the output."""
    batch, kv_heads, group, queries, keys, page, columns = workload.dims.values()
    size, present = batch * kv_heads * group * queries * columns * workload.itemsize, sum(_lengths(workload))
    read = size + 2 * present * kv_heads * columns * workload.itemsize + 4 * batch * (1 + cdiv(keys, page or 1))
    return Cost(4 * kv_heads * group * queries * present * columns, read, size, workload.pipe)


SPEC = declare(
    "paged_attention", "attention of few queries to keys and values in pages",
    "batch kv_heads group queries keys page columns",
    "small 2x2x1x1x512x16x64-bf16, medium 8x8x4x1x2048x16x128-bf16, large 32x8x4x1x8192x16x128-bf16, "
    "ragged 3x2x3x2x517x24x96-fp16, long 1x8x4x1x65536x16x128-bf16, pages 32x8x4x1x8192x256x128-bf16, "
    "empty 0x8x4x1x512x16x128-bf16",
    triton=Implementation(paged_attention, "the keys of a sequence split over programs, then merged", CONFIGS),
    eager=Implementation(reference, "pages gathered, then one operation at a time"),
    aten=Implementation(_sdpa, "pages gathered for PyTorch's SDPA"),
    reference=reference, inputs=inputs, cost=cost, tolerance={"fp32": 1e-5, "fp16": 1.1e-3, "bf16": 9e-3},
)  # fmt: skip
