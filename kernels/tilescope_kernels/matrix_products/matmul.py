"""``a @ b`` of two matrices: tiles, visited in groups so that their operands stay in L2.

From Hopper on 16-bit products may use another kernel (``choice``).
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from typing import Any

import torch
import triton
import triton.language as tl

from tilescope_kernels._shared.checks import check_tensors, use_triton
from tilescope_kernels._shared.descriptors import workspace
from tilescope_kernels._shared.launching import capability, cdiv, launch, multiprocessors, shared_memory
from tilescope_kernels._shared.operators import operator, pack, unpack
from tilescope_kernels._shared.plans import Write, planned
from tilescope_kernels._shared.reach import is_far
from tilescope_kernels._shared.tile_order import programs, tile_origin
from tilescope_kernels.matrix_products.aligned_rows import columns, is_aligned
from tilescope_kernels.spec import FORWARD, Config, Cost, Draw, Implementation, Workload, declare, drawn


@triton.jit
def _pointer_tile(
    a_ptr, b_ptr, c_ptr, M, N, K, stride_am, stride_ak, stride_bk, stride_bn, stride_cm, start_m, start_n,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, EVEN_K: tl.constexpr, FAR: tl.constexpr,
):  # fmt: skip
    """Compute one tile of c through pointers, for any strides and extents."""
    m = tl.arange(0, BLOCK_M)[:, None]
    n = tl.arange(0, BLOCK_N)[None, :]
    k = tl.arange(0, BLOCK_K)
    valid_m = start_m + m < M
    valid_n = start_n + n < N
    # Only a tile's origin needs int64; offsets within a tile are int32, unless its rows or columns lie far apart.
    advance = BLOCK_K
    if FAR:
        m, n, k = m.to(tl.int64), n.to(tl.int64), k.to(tl.int64)
        advance = tl.full((), BLOCK_K, tl.int64)
    a_tile = a_ptr + start_m.to(tl.int64) * stride_am + m * stride_am + k[None, :] * stride_ak
    b_tile = b_ptr + start_n.to(tl.int64) * stride_bn + k[:, None] * stride_bk + n * stride_bn
    total = tl.zeros((BLOCK_M, BLOCK_N), tl.float32)
    for start_k in range(0, K, BLOCK_K):
        # Without a tail in K the masks are loop-invariant.
        if EVEN_K:
            a = tl.load(a_tile, mask=valid_m, other=0.0)
            b = tl.load(b_tile, mask=valid_n, other=0.0)
        else:
            a = tl.load(a_tile, mask=valid_m & (k[None, :] < K - start_k), other=0.0)
            b = tl.load(b_tile, mask=valid_n & (k[:, None] < K - start_k), other=0.0)
        # "ieee": fp32 operands are multiplied as fp32, not rounded to tf32.
        total = tl.dot(a, b, total, input_precision="ieee")
        a_tile += advance * stride_ak
        b_tile += advance * stride_bk
    c_tile = c_ptr + start_m.to(tl.int64) * stride_cm + start_n + m * stride_cm + n
    tl.store(c_tile, total.to(c_ptr.dtype.element_ty), mask=valid_m & valid_n)


@triton.jit
def matmul_kernel(
    a_ptr, b_ptr, c_ptr, M, N, K, stride_am, stride_ak, stride_bk, stride_bn, stride_cm, A_COLUMNS: tl.constexpr, B_COLUMNS: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, GROUP_M: tl.constexpr,
    TMA: tl.constexpr, SPECIALIZE: tl.constexpr, EVEN_K: tl.constexpr, FAR: tl.constexpr,
):  # fmt: skip
    """Compute a tile per program or, with ``TMA``, persistently tiles ``program, program + programs, ...``.

    ``A_COLUMNS`` and ``B_COLUMNS``: the matrix is column-major, for example transposed. ``SPECIALIZE``: warp specialization
    of loads and arithmetic (Hopper, 4 warps; ignored elsewhere). ``FAR``: strides are so large that offsets within a tile need int64.
    """
    if TMA:
        if A_COLUMNS:
            a_tiles = tl.make_tensor_descriptor(a_ptr, [K, M], [stride_ak, 1], [BLOCK_K, BLOCK_M])
        else:
            a_tiles = tl.make_tensor_descriptor(a_ptr, [M, K], [stride_am, 1], [BLOCK_M, BLOCK_K])
        if B_COLUMNS:
            b_tiles = tl.make_tensor_descriptor(b_ptr, [N, K], [stride_bn, 1], [BLOCK_N, BLOCK_K])
        else:
            b_tiles = tl.make_tensor_descriptor(b_ptr, [K, N], [stride_bk, 1], [BLOCK_K, BLOCK_N])
        c_tiles = tl.make_tensor_descriptor(c_ptr, [M, N], [stride_cm, 1], [BLOCK_M, BLOCK_N])
        tiles = tl.cdiv(M, BLOCK_M) * tl.cdiv(N, BLOCK_N)
        # flatten merges this loop with the one over K, so that the next tile's loads overlap this tile's epilogue.
        for tile in tl.range(
            tl.program_id(0), tiles, tl.num_programs(0), flatten=not SPECIALIZE, warp_specialize=SPECIALIZE
        ):
            start_m, start_n = tile_origin(tile, M, N, BLOCK_M, BLOCK_N, GROUP_M)
            total = tl.zeros((BLOCK_M, BLOCK_N), tl.float32)
            for step in range(0, tl.cdiv(K, BLOCK_K)):
                # Tensor cores read a transposed tile from the same bytes in shared memory.
                k = step * BLOCK_K
                a = a_tiles.load([k, start_m]).T if A_COLUMNS else a_tiles.load([start_m, k])
                b = b_tiles.load([start_n, k]).T if B_COLUMNS else b_tiles.load([k, start_n])
                total = tl.dot(a, b, total)
            c_tiles.store([start_m, start_n], total.to(c_ptr.dtype.element_ty))
    else:
        start_m, start_n = tile_origin(tl.program_id(0), M, N, BLOCK_M, BLOCK_N, GROUP_M)
        _pointer_tile(
            a_ptr, b_ptr, c_ptr, M, N, K, stride_am, stride_ak, stride_bk, stride_bn, stride_cm, start_m, start_n,
            BLOCK_M, BLOCK_N, BLOCK_K, EVEN_K, FAR,
        )  # fmt: skip


def _config(m: int, n: int, k: int, warps: int, stages: int, tma: int = 0, specialize: int = 0) -> dict[str, int]:
    blocks = {"BLOCK_M": m, "BLOCK_N": n, "BLOCK_K": k, "GROUP_M": 8, "TMA": tma, "SPECIALIZE": specialize}
    return {**blocks, "num_warps": warps, "num_stages": stages}


#: Configs at 16 bits: large tiles first, with the most reuse, then small ones for small products.
TUNED = tuple(
    _config(*parts)
    for parts in (
        (128, 256, 64, 8, 3, 1), (256, 128, 64, 8, 3, 1), (128, 128, 64, 8, 4, 1), (128, 128, 64, 4, 4, 1, 1),
        (128, 128, 64, 4, 3, 1), (128, 256, 64, 8, 3), (128, 256, 64, 8, 4), (256, 128, 64, 8, 3), (128, 128, 64, 4, 4),
        (128, 64, 64, 4, 4), (64, 128, 64, 4, 4), (64, 64, 64, 4, 4),
    )
)  # fmt: skip

#: For few columns.
_TALL = _config(128, 64, 64, 4, 4)
#: Configs for fp32, which runs on CUDA cores: registers bound the tile. Large and small tiles, each for rows that are not multiples
#: of 64 bytes and for rows that are.
TUNED_FP32 = tuple(
    _config(*parts)
    for parts in (
        (128, 64, 16, 8, 3), (128, 64, 32, 8, 3), (64, 64, 16, 8, 3), (64, 64, 32, 4, 3),
        (64, 128, 32, 8, 3), (64, 128, 16, 8, 3),
    )
)  # fmt: skip


def _operands(config: Mapping[str, int]) -> int:
    """Bytes of shared memory for all stages of a config, at 16 bits."""
    return 2 * (config["BLOCK_M"] + config["BLOCK_N"]) * config["BLOCK_K"] * config["num_stages"]


def _sweep() -> tuple[dict[str, int], ...]:
    """Configs of the sweep, the best guess for an H200 first.

    Dropped: more than 128 accumulators per thread (they spill), fewer than 64 (the tile is too small for its warps), and
    more than 227 KB of shared memory for the operands and, with TMA, the output tile.
    """

    def fits(config: Mapping[str, int]) -> bool:
        m, n = config["BLOCK_M"], config["BLOCK_N"]
        shared = _operands(config) + 2 * m * n * config["TMA"]
        return 64 <= m * n // (32 * config["num_warps"]) <= 128 and shared <= 226 * 1024

    sizes = ((128, 256), (256, 128), (128, 128), (128, 64), (64, 128), (64, 256))
    pointers = [_config(m, n, k, w, s) for m, n in sizes for k in (32, 64) for w in (4, 8) for s in (3, 4)]
    descriptors = [_config(m, n, 64, w, s, 1) for m, n in sizes[:5] for w in (4, 8) for s in (3, 4)]
    specialized = [_config(m, n, 64, 4, s, 1, 1) for m, n in sizes[2:5] for s in (3, 4)]
    generated = filter(fits, (*descriptors, *specialized, *pointers))
    return tuple({str(config): config for config in (*TUNED, *generated, *TUNED_FP32)}.values())


CONFIGS = _sweep()


def _tma_serves(a: torch.Tensor, b: torch.Tensor) -> bool:
    """Whether TMA can load the operands: Hopper or later, 16-bit elements, 16-byte aligned rows or columns, extents from 16."""
    if a.element_size() != 2 or min(*a.shape, *b.shape) < 16 or (a.is_cuda and capability(a) < 90):
        return False
    return is_aligned(a) and is_aligned(b) and b.shape[1] % 8 == 0


def _default(a: torch.Tensor, b: torch.Tensor) -> Mapping[str, int]:
    """The config if none is given: large tiles if every SM gets one, else small ones."""
    (m, k), n, programs = a.shape, b.shape[1], multiprocessors(a)
    if a.dtype == torch.float32:
        # Half as many waves of tiles with twice the work take as long, but for an SM's part of the last wave.
        small = 1.06 * cdiv(cdiv(m, 64) * cdiv(n, 64), programs) < 2 * cdiv(cdiv(m, 128) * cdiv(n, 64), programs)
        return TUNED_FP32[(2 if small else 0) + (k % 16 == n % 16 == 0)]
    if n < 16 and k % 16 == 0 and not columns(b):
        return _TALL
    if cdiv(m, 128) * cdiv(n, 256) < programs:
        return TUNED[-1]
    # One step along K gains nothing from descriptors, unless the result is nearly all that moves.
    tma = _tma_serves(a, b) and not 16 < k < 64
    return next(config for config in TUNED if config["TMA"] <= tma and _operands(config) < shared_memory(a))


#: Multiply-adds in fp32 from which a column-major b is copied to row-major, which is faster on CUDA cores.
_COPIED = 2**30


#: What writes a product: planning that takes longer than many products.
_PLANS: dict[Hashable, Write] = {}


def _writer(a: torch.Tensor, b: torch.Tensor, c: torch.Tensor) -> Write:
    """What writes products of matrices like these to contiguous results."""
    chosen = choice(a, b)
    return chosen[0].writer(a, b, c, chosen[1]) if chosen else _tiled(a, b, c, _default(a, b))


def choice(a: torch.Tensor, b: torch.Tensor) -> tuple[Any, Any] | None:
    """The module whose ``writer`` serves the product, and its plan; None for ``matmul_kernel``."""
    if a.element_size() != 2 or capability(a) < 90:
        return None
    from tilescope_kernels.matrix_products import matmul_tilings, split_k  # noqa: PLC0415 - from Hopper on

    # A plan is None where the module's kernel does not serve the product or the next ones may be as quick.
    if pairs := matmul_tilings.plan_of_pairs(a, b):
        from tilescope_kernels.matrix_products import matmul_pairs  # noqa: PLC0415 - alone: importing either takes long

        return matmul_pairs, pairs
    if alone := matmul_tilings.plan(a, b):
        if rows := matmul_tilings.rows_of_split(matmul_tilings.Product.of(a, b)):
            return split_k, split_k.plan_of(*split_k.LARGE[rows])
        from tilescope_kernels.matrix_products import matmul_hopper  # noqa: PLC0415

        return matmul_hopper, alone
    plan = split_k.plan(a, b)
    return (split_k, plan) if plan else None


@operator("matmul", autocast="lower", fake=lambda a, b, _: a.new_empty(a.shape[0], b.shape[1]))
def _matmul(a: torch.Tensor, b: torch.Tensor, config: str) -> torch.Tensor:
    c = a.new_empty(a.shape[0], b.shape[1])
    if c.numel() == 0:
        return c
    if config:
        given = unpack(config) or {}
        if given["TMA"] and not _tma_serves(a, b):
            raise ValueError("config has TMA=1, which these operands or this GPU do not allow: use one with TMA=0")
        _tiled(a, b, c, given)(a, b, c)
        return c
    if a.dtype == torch.float32 and columns(b) and a.shape[0] * b.numel() >= _COPIED:
        b = b.contiguous()
    write: Write = planned(_PLANS, lambda: _writer(a, b, c), (a, b))
    write(a, b, c)
    return c


def _tiled(a: torch.Tensor, b: torch.Tensor, c: torch.Tensor, config: Mapping[str, int]) -> Write:
    """What writes products of matrices like these with ``matmul_kernel``."""
    (m, k), n = a.shape, b.shape[1]
    strides = (*a.stride(), *b.stride(), c.stride(0))
    grid, numbers = programs(m, n, config, a), (m, n, k, *strides)
    known = {"A_COLUMNS": columns(a), "B_COLUMNS": columns(b), "EVEN_K": k % config["BLOCK_K"] == 0, "FAR": is_far(*strides)}  # fmt: skip

    def write(a: torch.Tensor, b: torch.Tensor, c: torch.Tensor) -> None:
        if config["TMA"]:
            triton.set_allocator(workspace)
        launch(matmul_kernel, grid, a, b, c, *numbers, **known, **config)

    return write


@_matmul.gradient(lambda a, b, *_: (a, b))
def _differentiate(ctx: Any, dc: torch.Tensor) -> tuple[torch.Tensor | None, torch.Tensor | None]:
    (a, b), (config,) = ctx.saved_tensors, ctx.rest
    wants_da, wants_db, _ = ctx.needs_input_grad
    if 1 not in dc.stride():
        dc = dc.contiguous()  # The gradient of a sum has strides of 0, which TMA cannot load.
    return _matmul(dc, b.T, config) if wants_da else None, _matmul(a.T, dc, config) if wants_db else None


def matmul(a: torch.Tensor, b: torch.Tensor, *, config: Config | None = None) -> torch.Tensor:
    """``a @ b`` of matrices (M, K) and (K, N) of one dtype (fp32, fp16, bf16) and any strides; differentiable.

    Accumulates in fp32; fp32 operands are never rounded to tf32. ``config`` is one of ``CONFIGS``; by default the shapes choose. Raises
    ValueError, naming the argument, for other dtypes or numbers of dimensions, shapes that do not match, and devices without CUDA.
    """
    if not use_triton():
        return reference(a, b)
    check_tensors(a=a, b=b)
    for name, tensor in (("a", a), ("b", b)):
        if tensor.dim() != 2:
            raise ValueError(f"{name} has {tensor.dim()} dimensions: give a matrix")
    if a.shape[1] != b.shape[0]:
        raise ValueError(f"b has {b.shape[0]} rows but a has {a.shape[1]} columns: they must be equal")
    return _matmul(a, b, pack(config))


def reference(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """The reference in plain PyTorch."""
    return a @ b


@drawn
def inputs(draw: Draw, m: int, n: int, k: int) -> dict[str, Any]:
    """``a`` (m, k) and ``b`` (k, n), standard normal."""
    return {"a": draw(m, k, grad=True), "b": draw(k, n, grad=True)}


def cost(workload: Workload, direction: str) -> Cost:
    """2MNK operations, on tensor cores at 16 bits; operands read once, the result written once. Backward: two such products."""
    m, n, k = workload.dims.values()
    operands, result = (m * k + k * n) * workload.itemsize, m * n * workload.itemsize
    if direction == FORWARD:
        return Cost(flops=2 * m * n * k, bytes_read=operands, bytes_written=result, pipe=workload.pipe)
    return Cost(flops=4 * m * n * k, bytes_read=operands + result, bytes_written=operands, pipe=workload.pipe)


SPEC = declare(
    "matmul", "a @ b of two matrices", "m n k",
    "small 512x512x512-bf16, medium 2048x2048x2048-bf16, large 4096x4096x4096-bf16, ragged 1023x517x769-fp16, "
    "huge 8192x8192x8192-bf16, medium-fp32 2048x2048x2048-fp32",
    triton=Implementation(matmul, "tiles in grouped order", CONFIGS),
    eager=Implementation(reference, "torch.matmul (cuBLAS)"),
    reference=reference, inputs=inputs, cost=cost, tolerance={"fp32": 1e-5, "fp16": 8e-4, "bf16": 6e-3},
    passes="forward backward",
)  # fmt: skip
