"""Matrix products with few tiles or with unaligned rows: small tiles, split-K, and copies to aligned rows.

A small result leaves SMs without a tile. Here tiles are small, with many steps along K in flight. Where even those are too few, tiles are
split along K. So are the last tiles of a large product, which would be a wave of their own (Stream-K with whole waves first: Osama,
Merrill, Cecka, Garland and Owens, arXiv:2301.03598). A second launch adds the parts up in a fixed order, so the result is deterministic.

Rows that TMA cannot load are copied first (``aligned_rows``), and a large result is copied from aligned rows. Operands are 16-bit, or FP8
or INT8 with few tiles (``bytes_product``).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from tilescope_kernels._shared.descriptors import tiles
from tilescope_kernels._shared.launching import BEYOND, capability, cdiv, launch, multiprocessors, shared_memory
from tilescope_kernels._shared.plans import Write
from tilescope_kernels._shared.tile_order import _scaled, kind, tile_origin
from tilescope_kernels.matrix_products.aligned_rows import aligned, columns, copy_rows, is_aligned, room, rooms

#: Least multiply-adds, with rows counted as at least 16: of 16-bit operands, of these with up to 64 rows, and of unaligned ones.
_LEAST, _LEAST_FEW, _LEAST_COPIED = 2**26, 2**23, 2**24
#: Most elements of b for narrow tiles of few rows.
_LITTLE = 2**21


@triton.jit
def _places(c_ptr, stride_c, start_m, start_n, m, n, C_COLUMNS: tl.constexpr):
    """Pointers to elements of a tile of c."""
    if C_COLUMNS:
        return c_ptr + tl.cast(start_n, tl.int64) * stride_c + start_m + n * stride_c + m
    else:
        return c_ptr + tl.cast(start_m, tl.int64) * stride_c + start_n + m * stride_c + n


@triton.jit(do_not_specialize=["M", "N", "K", "stride_c", "first_tile", "pieces"])
def matmul_split_kernel(
    a_tiles, b_tiles, c_tiles, c_ptr, parts_ptr, scale_a_ptr, scale_b_ptr, M, N, K, stride_c, first_tile, pieces,
    A_COLUMNS: tl.constexpr, B_COLUMNS: tl.constexpr, C_COLUMNS: tl.constexpr, SCALES: tl.constexpr, IMPRECISE: tl.constexpr, INTEGER: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, GROUP_M: tl.constexpr, SPLITS: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """Compute parts ``program, program + programs, ...`` of the tiles from ``first_tile`` on, ``SPLITS`` parts a tile.

    With one part a tile goes to c: through ``c_tiles``, or through pointers if it is None because c's rows are not aligned.
    Several parts go to ``parts`` (pieces, BLOCK_M, BLOCK_N), unscaled, in fp32 or int32 (``INTEGER``). ``IMPRECISE`` is the
    number of FP8 products that tensor cores add up before fp32 registers do, None for any. ``PDL``: programmatic dependent
    launch. The rest is as in ``matmul_kernel`` and ``scaled_matmul_kernel``.
    """
    if PDL:
        gdc_launch_dependents()
    sums: tl.constexpr = tl.int32 if INTEGER else tl.float32
    steps = tl.cdiv(K, BLOCK_K)
    each = tl.cdiv(steps, SPLITS)
    m = tl.arange(0, BLOCK_M)[:, None]
    n = tl.arange(0, BLOCK_N)[None, :]
    for piece in tl.range(tl.program_id(0), pieces, tl.num_programs(0), flatten=True):
        start_m, start_n = tile_origin(first_tile + piece // SPLITS, M, N, BLOCK_M, BLOCK_N, GROUP_M)
        first = piece % SPLITS * each
        total = tl.zeros((BLOCK_M, BLOCK_N), sums)
        for step in range(0, tl.minimum(each, steps - first)):
            k = (first + step) * BLOCK_K
            a = a_tiles.load([k, start_m]).T if A_COLUMNS else a_tiles.load([start_m, k])
            b = b_tiles.load([start_n, k]).T if B_COLUMNS else b_tiles.load([k, start_n])
            total = tl.dot(a, b, total, max_num_imprecise_acc=IMPRECISE, out_dtype=sums)
        if SPLITS > 1:
            part = parts_ptr + tl.cast(piece, tl.int64) * (BLOCK_M * BLOCK_N) + m * BLOCK_N + n
            tl.store(part, total, mask=start_m + m < M)
        else:
            c = _scaled(total, scale_a_ptr, scale_b_ptr, start_m, start_n, M, N, SCALES).to(c_ptr.dtype.element_ty)
            if c_tiles is None:
                c_tile = _places(c_ptr, stride_c, start_m, start_n, m, n, C_COLUMNS)
                tl.store(c_tile, c, mask=(start_m + m < M) & (start_n + n < N))
            elif C_COLUMNS:
                c_tiles.store([start_n, start_m], c.T)
            else:
                c_tiles.store([start_m, start_n], c)


@triton.jit
def add_parts_kernel(
    c_ptr, parts_ptr, scale_a_ptr, scale_b_ptr, M, N, stride_c, whole,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, GROUP_M: tl.constexpr, SPLITS: tl.constexpr, ROWS: tl.constexpr,
    C_COLUMNS: tl.constexpr, SCALES: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """Add up the parts of ROWS rows of a tile of c per program, and scale the sum."""
    if PDL:
        gdc_wait()
    index = tl.program_id(0) // (BLOCK_M // ROWS)
    row = tl.program_id(0) % (BLOCK_M // ROWS) * ROWS
    start_m, start_n = tile_origin(whole + index, M, N, BLOCK_M, BLOCK_N, GROUP_M)
    m = row + tl.arange(0, ROWS)[:, None]
    n = tl.arange(0, BLOCK_N)[None, :]
    mask = (start_m + m < M) & (start_n + n < N)
    parts_ptr += tl.cast(index, tl.int64) * (SPLITS * BLOCK_M * BLOCK_N) + m * BLOCK_N + n
    total = tl.load(parts_ptr, mask=mask, other=0)
    for part in tl.static_range(1, SPLITS):
        total += tl.load(parts_ptr + part * BLOCK_M * BLOCK_N, mask=mask, other=0)
    c = _scaled(total, scale_a_ptr, scale_b_ptr, start_m + row, start_n, M, N, SCALES)
    c_tile = _places(c_ptr, stride_c, start_m, start_n, m, n, C_COLUMNS)
    tl.store(c_tile, c.to(c_ptr.dtype.element_ty), mask=mask)


def plan_of(m: int, n: int, k: int, warps: int, stages: int, splits: int = 1, scratch: int = 0) -> dict[str, int]:
    """Tile, warps, stages, parts of a split tile, and SCRATCH: whether an unaligned result goes through aligned rows."""
    blocks = {"BLOCK_M": m, "BLOCK_N": n, "BLOCK_K": k, "GROUP_M": 8, "SPLITS": splits, "SCRATCH": scratch}
    return {**blocks, "num_warps": warps, "num_stages": stages}


#: Tiles by their rows, and by the most rows of a product: rows, columns, elements of a step along K, warps, stages.
LARGE = {64: (64, 128, 128, 4, 4), 128: (128, 128, 64, 4, 6)}
_TILES = {
    16: ((16, 64, 256, 4, 5), (16, 128, 128, 4, 5), (16, 256, 128, 8, 3)),
    64: ((64, 64, 128, 4, 6), LARGE[64]),
    BEYOND: ((64, 64, 128, 4, 6), LARGE[64], LARGE[128]),
}


def smallest_tile(tiles: Mapping[int, tuple[tuple[int, ...], ...]], m: int, n: int, programs: int) -> tuple[int, ...]:
    """The smallest tile of which no SM has two; of few rows else the tile whose waves compute the fewest elements, the largest of several."""
    served = next(each for most, each in tiles.items() if m <= most)
    turned = served[0][1] < 64

    def waves(tile: tuple[int, ...]) -> int:
        high, wide = tile[1::-1] if turned else tile[:2]
        return cdiv(cdiv(m, high) * cdiv(n, wide), programs)

    if m > 64:
        return next((tile for tile in served if waves(tile) == 1), served[1])
    return min(served[::-1], key=lambda tile: waves(tile) * tile[0] * tile[1])


def _few(m: int, n: int, k: int, programs: int) -> dict[str, int]:
    """Plan for few tiles or few rows."""
    tiles = cdiv(m, 64) * cdiv(n, 64)
    # Split if at most a quarter of the SMs have a tile: half of the SMs saturate HBM, so two parts do not pay for a launch.
    splits = max(1, min(64, programs // tiles, k // 512)) if programs >= 4 * tiles and k >= 1536 else 1
    if m > 64 and programs >= 2 * tiles and k >= 4096:
        splits = max(splits, 2)
    if m <= 16 and splits == 1 and n * k <= _LITTLE and cdiv(n, 32) <= programs:
        return plan_of(16, 32, 256, 4, 3)
    if n <= 32:
        return plan_of(64, 16 if n <= 16 else 32, 256, 4, 5, splits)
    return plan_of(*smallest_tile(_TILES, m, n, programs), splits)


def plan(a: torch.Tensor, b: torch.Tensor) -> dict[str, int] | None:
    """Plan for a 16-bit product with few tiles or with unaligned rows; None where this does not pay."""
    (m, k), n = a.shape, b.shape[1]
    if a.element_size() != 2 or capability(a) < 90 or shared_memory(a) < 227 * 1024:
        return None
    whole = is_aligned(a) and is_aligned(b) and n % 8 == 0
    least = _LEAST_COPIED if not whole else _LEAST if m > 64 else _LEAST_FEW
    if n < 16 or k < 64 or max(m, 16) * max(n, 16) * k < least:
        return None
    programs = multiprocessors(a)
    few = m <= 64 or cdiv(m, 128 if whole else 64) * cdiv(n, 128) <= programs
    # Copying b takes longer than a product with few rows, and copying a longer than one with few columns.
    if (whole and not few) or (m <= 64 and not (few and is_aligned(b))) or (n < 64 and not (few and is_aligned(a))):
        return None
    if not few:
        large = cdiv(m, 128) * cdiv(n, 256) >= programs
        return plan_of(128, 256, 64, 8, 3, 4, 1) if large else plan_of(128, 128, 64, 8, 4)
    return _few(m, n, k, programs)


def writer(
    a: torch.Tensor, b: torch.Tensor, c: torch.Tensor, plan: Mapping[str, int],
    scales: tuple[torch.Tensor, torch.Tensor] | tuple[None, None] = (None, None), fast: bool = True,
) -> Write:  # fmt: skip
    """What writes products of matrices like these by a plan, times ``scales`` of operands or of rows and columns.

    Unless ``fast``, tensor cores add up at most 128 FP8 products before fp32 registers do.
    """
    copies = not (is_aligned(a) and is_aligned(b))
    a, b = rooms(a, b)
    (m, k), n = a.shape, b.shape[1]
    tile_m, tile_n, tile_k, splits = (plan[name] for name in ("BLOCK_M", "BLOCK_N", "BLOCK_K", "SPLITS"))
    count, programs = cdiv(m, tile_m) * cdiv(n, tile_n), multiprocessors(a)
    whole = count if splits == 1 else count // programs * programs
    integer = a.dtype == torch.int8
    tiling = {
        "C_COLUMNS": columns(c),
        "SCALES": kind(scales),
        **{name: plan[name] for name in ("BLOCK_M", "BLOCK_N", "GROUP_M")},
    }
    # Programmatic dependent launch: the second launch starts early and waits for the parts.
    pdl = capability(a) >= 90
    scratch = bool(plan["SCRATCH"]) and not is_aligned(c)
    out = room(c) if scratch else c
    a_columns, b_columns = columns(a), columns(b)
    a_tiles, b_tiles = tiles(a, tile_m, tile_k, a_columns), tiles(b, tile_k, tile_n, b_columns)
    c_tiles = tiles(out, tile_m, tile_n, columns(out)) if is_aligned(out) else None
    numbers, others = (*scales, m, n, k, max(out.stride())), count - whole
    pieces = others * splits
    constants = {
        "A_COLUMNS": a_columns, "B_COLUMNS": b_columns, "BLOCK_K": tile_k, "IMPRECISE": None if fast else 128, "INTEGER": integer,
        **tiling, "num_warps": plan["num_warps"], "num_stages": plan["num_stages"],
    }  # fmt: skip

    def write(a: torch.Tensor, b: torch.Tensor, c: torch.Tensor) -> None:
        a, b = aligned(a, b) if copies else (a, b)
        out, operands = room(c) if scratch else c, (a_tiles.of(a), b_tiles.of(b))
        if whole:
            given = *operands, c_tiles and c_tiles.of(out), out, None, *numbers, 0, whole
            launch(matmul_split_kernel, (min(whole, programs),), *given, SPLITS=1, PDL=False, **constants)
        if others:
            parts = torch.empty(
                (pieces, tile_m, tile_n), dtype=torch.int32 if integer else torch.float32, device=a.device
            )
            given = *operands, None, out, parts, *numbers, whole, pieces
            launch(matmul_split_kernel, (min(pieces, programs),), *given, SPLITS=splits, PDL=pdl, **constants)
            add_parts(out, parts, whole, {"SPLITS": splits, **tiling}, scales, pdl)
        if scratch:
            copy_rows(c, out)

    return write


def add_parts(
    c: torch.Tensor, parts: torch.Tensor, whole: int, tiling: Mapping[str, Any],
    scales: tuple[torch.Tensor, torch.Tensor] | tuple[None, None] = (None, None), pdl: bool = False,
    elements: int = 2048,
) -> None:  # fmt: skip
    """Add up ``parts`` (tiles * splits, rows, columns) of the tiles from ``whole`` on, by ``tiling``'s parameters of the kernel.

    A program has so many ``elements``, of narrow tiles 256.
    """
    pieces, high, wide = parts.shape
    # Few elements per program, so that small results have many programs.
    rows = min(high, max(1, (256 if wide <= 64 else elements) // wide))
    names = ("BLOCK_M", "BLOCK_N", "GROUP_M", "SPLITS", "C_COLUMNS", "SCALES")
    launch(
        add_parts_kernel, (pieces // tiling["SPLITS"] * (high // rows),), c, parts, *scales, *c.shape, max(c.stride()), whole,
        ROWS=rows, PDL=pdl, **{name: tiling[name] for name in names},
        num_warps=max(1, min(4, rows * wide // 256)), **({"launch_pdl": True} if pdl else {}),
    )  # fmt: skip
