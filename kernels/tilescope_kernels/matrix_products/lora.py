"""Linear layer with a low-rank update (LoRA, Hu et al., arXiv:2106.09685): ``x @ W.T + alpha * (x @ A.T) @ B.T``.

The update extends the product's loop over K by the rank: ``alpha * x @ A.T`` and B are multiplied into the same accumulator
after x and W, so y is written once and never read. A first launch computes ``alpha * x @ A.T``. It reads x, which the
product then reads again, from L2 if it fits. With ``INLINE`` every tile computes it beside the product instead: x is read
once, but at rank 64 a tile of 256 columns does 64 / 256 more work.

Gradients are products by cuBLAS, except that of x where many rows are not 16-byte aligned. ``x @ A.T`` is recomputed rather than saved.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
import torch.nn.functional as F
import triton
import triton.language as tl

from tilescope_kernels._shared.checks import check_tensors, use_triton
from tilescope_kernels._shared.descriptors import workspace
from tilescope_kernels._shared.launching import BEYOND, launch, multiprocessors, shared_memory
from tilescope_kernels._shared.operators import as_rows, operator, pack, unpack
from tilescope_kernels._shared.reach import is_far, slabs
from tilescope_kernels._shared.tile_order import programs, tile_origin
from tilescope_kernels.matrix_products.aligned_rows import padded
from tilescope_kernels.matrix_products.matmul import matmul
from tilescope_kernels.matrix_products.scaled_matmul import pointer_operands, tma_serves
from tilescope_kernels.spec import FORWARD, Config, Cost, Draw, Implementation, Workload, declare, drawn


@triton.jit
def lora_down_kernel(
    down_ptr, x_ptr, a_ptr, alpha, M, K, R, x_stride, a_stride,
    BLOCK_M: tl.constexpr, BLOCK_K: tl.constexpr, RANK: tl.constexpr, EVEN_K: tl.constexpr, FAR: tl.constexpr,
):  # fmt: skip
    """Compute ``alpha * x @ A.T`` (M, R) of BLOCK_M rows per program."""
    start_m = tl.program_id(0) * BLOCK_M
    down = tl.zeros((BLOCK_M, RANK), tl.float32)
    for start_k in range(0, K, BLOCK_K):
        x, a = pointer_operands(
            x_ptr, a_ptr, M, R, K, x_stride, a_stride, start_m, 0 * start_m, start_k, BLOCK_M, RANK, BLOCK_K, EVEN_K, FAR,
        )  # fmt: skip
        down = tl.dot(x, a, down, input_precision="ieee")
    m = start_m + tl.arange(0, BLOCK_M)[:, None]
    r = tl.arange(0, RANK)[None, :]
    tl.store(down_ptr + m * R + r, (alpha * down).to(down_ptr.dtype.element_ty), mask=(m < M) & (r < R))


@triton.jit
def lora_linear_kernel(
    y_ptr, x_ptr, weight_ptr, a_ptr, b_ptr, down_ptr, alpha, M, N, K, R, x_stride, weight_stride, a_stride, b_stride,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, GROUP_M: tl.constexpr, RANK: tl.constexpr,
    TMA: tl.constexpr, HALVES: tl.constexpr, INLINE: tl.constexpr, EVEN_K: tl.constexpr, FAR: tl.constexpr,
):  # fmt: skip
    """Compute tiles ``program, program + programs, ...`` through tensor descriptors (``TMA``), or a tile per program.

    ``down_ptr`` holds the result of ``lora_down_kernel``, unless ``INLINE``. ``RANK`` is R padded to a size that ``tl.dot``
    takes. ``HALVES``: a tile is stored in two halves, which needs half the shared memory. ``FAR``: offsets within a tile need int64.
    """
    if TMA:
        x_tiles = tl.make_tensor_descriptor(x_ptr, [M, K], [x_stride, 1], [BLOCK_M, BLOCK_K])
        weight_tiles = tl.make_tensor_descriptor(weight_ptr, [N, K], [weight_stride, 1], [BLOCK_N, BLOCK_K])
        a_tiles = tl.make_tensor_descriptor(a_ptr, [R, K], [a_stride, 1], [RANK, BLOCK_K])
        b_tiles = tl.make_tensor_descriptor(b_ptr, [N, R], [b_stride, 1], [BLOCK_N, RANK])
        y_tiles = tl.make_tensor_descriptor(y_ptr, [M, N], [N, 1], [BLOCK_M, BLOCK_N // (1 + HALVES)])
        if not INLINE:
            down_tiles = tl.make_tensor_descriptor(down_ptr, [M, R], [R, 1], [BLOCK_M, RANK])
        tiles = tl.cdiv(M, BLOCK_M) * tl.cdiv(N, BLOCK_N)
        for tile in tl.range(tl.program_id(0), tiles, tl.num_programs(0), flatten=INLINE == 0):
            start_m, start_n = tile_origin(tile, M, N, BLOCK_M, BLOCK_N, GROUP_M)
            total = tl.zeros((BLOCK_M, BLOCK_N), tl.float32)
            low = tl.zeros((BLOCK_M, RANK), tl.float32)
            for step in range(0, tl.cdiv(K, BLOCK_K)):
                x = x_tiles.load([start_m, step * BLOCK_K])
                weight = weight_tiles.load([start_n, step * BLOCK_K])
                total = tl.dot(x, weight.T, total)
                if INLINE:
                    low = tl.dot(x, a_tiles.load([0, step * BLOCK_K]).T, low)
            down = (alpha * low).to(y_ptr.dtype.element_ty) if INLINE else down_tiles.load([start_m, 0])
            total = tl.dot(down, b_tiles.load([start_n, 0]).T, total)
            if HALVES:
                left, right = total.reshape(BLOCK_M, 2, BLOCK_N // 2).permute(0, 2, 1).split()
                y_tiles.store([start_m, start_n], left.to(y_ptr.dtype.element_ty))
                y_tiles.store([start_m, start_n + BLOCK_N // 2], right.to(y_ptr.dtype.element_ty))
            else:
                y_tiles.store([start_m, start_n], total.to(y_ptr.dtype.element_ty))
    else:
        start_m, start_n = tile_origin(tl.program_id(0), M, N, BLOCK_M, BLOCK_N, GROUP_M)
        total = tl.zeros((BLOCK_M, BLOCK_N), tl.float32)
        low = tl.zeros((BLOCK_M, RANK), tl.float32)
        m = start_m + tl.arange(0, BLOCK_M)[:, None]
        n = start_n + tl.arange(0, BLOCK_N)[None, :]
        r = tl.arange(0, RANK)
        of_a = r.to(tl.int64) if FAR else r
        for start_k in range(0, K, BLOCK_K):
            x, weight = pointer_operands(
                x_ptr, weight_ptr, M, N, K, x_stride, weight_stride, start_m, start_n, start_k, BLOCK_M, BLOCK_N, BLOCK_K, EVEN_K, FAR,
            )  # fmt: skip
            total = tl.dot(x, weight, total, input_precision="ieee")
            if INLINE:
                k = start_k + tl.arange(0, BLOCK_K)[:, None]
                valid = (r[None, :] < R) & (k < K)
                a = tl.load(a_ptr + of_a[None, :] * a_stride + k, mask=valid, other=0.0)
                low = tl.dot(x, a, low, input_precision="ieee")
        if INLINE:
            down = (alpha * low).to(y_ptr.dtype.element_ty)
        else:
            down = tl.load(down_ptr + m * R + r[None, :], mask=(m < M) & (r[None, :] < R), other=0.0)
        b = tl.load(b_ptr + n * b_stride + r[:, None], mask=(n < N) & (r[:, None] < R), other=0.0)
        total = tl.dot(down, b, total, input_precision="ieee")
        tl.store(y_ptr + m.to(tl.int64) * N + n, total.to(y_ptr.dtype.element_ty), mask=(m < M) & (n < N))


def _config(m: int, n: int, k: int, warps: int, stages: int, *flags: int) -> dict[str, int]:
    """``flags`` are TMA, HALVES and INLINE, 0 if omitted."""
    tma, halves, inline = (*flags, 0, 0, 0)[:3]
    blocks = {"BLOCK_M": m, "BLOCK_N": n, "BLOCK_K": k, "GROUP_M": 8, "TMA": tma, "HALVES": halves, "INLINE": inline}
    return {**blocks, "num_warps": warps, "num_stages": stages}


#: Configs at 16 bits, after ``lora_down_kernel``.
TUNED = tuple(
    _config(*parts)
    for parts in (
        (128, 256, 64, 8, 3, 1), (128, 256, 64, 8, 3, 1, 1), (256, 128, 64, 8, 3, 1), (256, 128, 64, 8, 3, 1, 1),
        (128, 128, 64, 8, 4, 1), (128, 128, 64, 4, 4, 1), (128, 256, 64, 8, 3), (128, 128, 64, 8, 3),
        (128, 128, 64, 4, 3), (64, 128, 64, 4, 4), (64, 64, 64, 4, 4), (64, 64, 64, 4, 3),
    )
)  # fmt: skip
#: For few tiles, for up to one tile of 128x128 an SM, and for up to one and a half of 128x256.
_SMALL, _MIDDLE, _SQUARE = TUNED[10], TUNED[9], (TUNED[8], TUNED[10])
#: Configs with INLINE. The update's accumulator needs registers too, so tiles of 128x256 suit the smallest ranks only.
_INLINE = tuple(
    _config(*parts)
    for parts in (
        (128, 256, 64, 8, 3, 1, 1, 1), (256, 128, 64, 8, 3, 1, 1, 1), (128, 128, 64, 8, 4, 1, 0, 1),
        (128, 128, 64, 8, 3, 1, 0, 1), (128, 128, 64, 8, 3, 0, 0, 1), (64, 128, 64, 4, 3, 0, 0, 1),
        (64, 64, 64, 4, 4, 0, 0, 1), (16, 32, 256, 2, 5, 0, 0, 1),
    )
)  # fmt: skip
#: For fp32, which runs on CUDA cores, and for tiny products of unaligned rows, whose elements each have an address and a mask:
#: registers bound the tile.
NARROW = _config(32, 64, 32, 4, 2)
CONFIGS = (*TUNED, *_INLINE, NARROW)
#: For few rows, which every tile reads anyway: at most a tile of 64x64 an SM, and more. For up to 16 rows, at most one of 16x32 an SM.
_FEW_ROWS, _FEWEST_ROWS = (_INLINE[6], _INLINE[5]), _INLINE[7]

#: Configs of ``lora_down_kernel``: few rows per tile for many tiles, and enough stages to saturate HBM. Ranks above 64 need
#: the second to fit 99 KB of shared memory; the third is for fp32 and unaligned rows.
_DOWN = {"BLOCK_M": 32, "BLOCK_K": 128, "num_warps": 4, "num_stages": 4}
_DOWN_DEEP = {"BLOCK_M": 32, "BLOCK_K": 64, "num_warps": 4, "num_stages": 4}
_DOWN_NARROW = {"BLOCK_M": 16, "BLOCK_K": 32, "num_warps": 4, "num_stages": 2}
#: Largest rank: the update must fit beside the tile.
_MOST = 128


def _tma_serves(
    x: torch.Tensor, weight: torch.Tensor, lora_a: torch.Tensor, lora_b: torch.Tensor, y: torch.Tensor
) -> bool:
    """Whether TMA can load the operands: Hopper or later, 16-bit elements, 16-byte aligned rows."""
    return x.element_size() == 2 and tma_serves(x, weight, y) and tma_serves(lora_a, lora_b, y)


def _fits(known: Mapping[str, int], x: torch.Tensor, rank: int) -> bool:
    """Whether a config's tiles at 16 bits fit the shared memory of the GPU of ``x``."""
    m, n, k = known["BLOCK_M"], known["BLOCK_N"], known["BLOCK_K"]
    padded = _padded(rank)
    operands = (m + n + padded * known["INLINE"]) * k * known["num_stages"]
    update = (m * (1 - known["INLINE"]) + n) * padded
    return 2 * (operands + update + m * n * known["TMA"] // (1 + known["HALVES"])) <= shared_memory(x) - 1024


def _padded(rank: int) -> int:
    """``RANK``: the rank padded to a power of two, at least 16, which is the least that ``tl.dot`` takes."""
    return max(16, triton.next_power_of_2(rank))


def _chosen(x: torch.Tensor, n: int, rank: int, tma: bool) -> Mapping[str, int]:
    """The config if none is given."""
    if x.dtype == torch.float32 or x.shape[1] % 8:
        return NARROW
    programs = multiprocessors(x)
    if tma and x.shape[1] % 16:  # Triton loads such rows piecemeal through pointers
        return TUNED[5]

    def tiles(high: int, wide: int) -> int:
        return triton.cdiv(x.shape[0], high) * triton.cdiv(n, wide)

    if x.shape[0] <= 64 and rank <= 16:
        fewest = x.shape[0] <= 16 and tiles(16, 32) <= programs and _fits(_FEWEST_ROWS, x, rank)
        return _FEWEST_ROWS if fewest else _FEW_ROWS[tiles(64, 64) > programs]
    if tiles(64, 64) <= 2 * programs:
        return _SMALL if tma or rank > 32 else _FEW_ROWS[0]
    if tiles(128, 128) < programs:
        return _MIDDLE
    large = TUNED if tiles(128, 256) >= 1.5 * programs else _SQUARE
    return next(known for known in large if known["TMA"] <= tma and _fits(known, x, rank))


def _down(x: torch.Tensor, lora_a: torch.Tensor, alpha: float) -> torch.Tensor:
    """``alpha * x @ lora_a.T`` of matrices with stride 1 along a row."""
    (m, k), rank = x.shape, lora_a.shape[0]
    down = torch.empty((m, rank), dtype=x.dtype, device=x.device)
    padded = _padded(rank)
    tile = _DOWN_NARROW if x.dtype == torch.float32 or k % 8 else _DOWN if padded <= 64 else _DOWN_DEEP
    launch(
        lora_down_kernel, (triton.cdiv(m, tile["BLOCK_M"]),),
        down, x, lora_a, alpha, m, k, rank, x.stride(0), lora_a.stride(0), RANK=padded,
        EVEN_K=k % tile["BLOCK_K"] == 0, FAR=is_far(x.stride(0), lora_a.stride(0)), **tile,
    )  # fmt: skip
    return down


@operator("lora_linear", autocast="lower", fake=lambda x, weight, *_: x.new_empty(x.shape[0], weight.shape[0]))
def _lora_linear(
    x: torch.Tensor, weight: torch.Tensor, lora_a: torch.Tensor, lora_b: torch.Tensor, alpha: float, config: str
) -> torch.Tensor:
    y = torch.empty((x.shape[0], weight.shape[0]), dtype=x.dtype, device=x.device)
    # Offsets in ``alpha * x @ A.T`` are 32-bit.
    most = BEYOND // lora_a.shape[0] // 128 * 128
    for of_y, of_x in slabs(most, y, x):
        _write_result(of_y, of_x, weight, lora_a, lora_b, alpha, config)
    return y


def _write_result(
    y: torch.Tensor, x: torch.Tensor, weight: torch.Tensor, lora_a: torch.Tensor, lora_b: torch.Tensor, alpha: float, config: str
) -> None:  # fmt: skip
    x, weight, lora_a = (x, weight, lora_a) if config else padded(x, weight, lora_a)
    (m, k), (n, rank) = x.shape, lora_b.shape
    tma = _tma_serves(x, weight, lora_a, lora_b, y)
    given = unpack(config) or _chosen(x, n, rank, tma)
    if given["TMA"] and not tma:
        raise ValueError("config has TMA=1, which these operands or this GPU do not allow: use one with TMA=0")
    down = None if given["INLINE"] else _down(x, lora_a, alpha)
    strides = [matrix.stride(0) for matrix in (x, weight, lora_a, lora_b)]
    triton.set_allocator(workspace)
    launch(
        lora_linear_kernel, programs(m, n, given, x), y, x, weight, lora_a, lora_b, down, alpha, m, n, k, rank, *strides,
        RANK=_padded(rank), EVEN_K=k % given["BLOCK_K"] == 0, FAR=is_far(*strides), **given,
    )  # fmt: skip


@_lora_linear.gradient(lambda *arguments: arguments[:4])
def _differentiate(ctx: Any, dy: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
    x, weight, lora_a, lora_b = ctx.saved_tensors
    alpha, _ = ctx.rest
    wants_dx, wants_dw, wants_da, wants_db, _, _ = ctx.needs_input_grad
    dx = da = None
    dy = dy.contiguous()
    if wants_dx or wants_da:
        up = dy @ (alpha * lora_b)
        # Both products are added up before the larger one is rounded. cuBLAS is slow where many rows are not 16-byte aligned.
        is_askew = dy.element_size() == 2 and dy.shape[0] > 64 and (dy.shape[1] % 8 or weight.stride(0) % 8)
        if wants_dx and is_askew and not torch.is_grad_enabled():
            dx = matmul(torch.cat([dy, up], 1), torch.cat([weight, lora_a]))
        elif wants_dx:
            dx = torch.addmm(up @ lora_a, dy, weight)
        da = up.T @ x if wants_da else None
    db = dy.T @ (x @ (alpha * lora_a).T) if wants_db else None
    return dx, dy.T @ x if wants_dw else None, da, db


def lora_linear(
    x: torch.Tensor, weight: torch.Tensor, lora_a: torch.Tensor, lora_b: torch.Tensor, alpha: float = 1.0, *, config: Config | None = None,
) -> torch.Tensor:  # fmt: skip
    """``x @ weight.T + alpha * (x @ lora_a.T) @ lora_b.T``, as a linear layer with a LoRA adapter (arXiv:2106.09685).

    ``x`` (..., K), ``weight`` (N, K), ``lora_a`` (R, K) and ``lora_b`` (N, R) have one dtype (bf16, fp16, fp32); R is at
    most 128. Accumulates in fp32; ``alpha * x @ lora_a.T`` is rounded to the dtype. Differentiable in all four.
    ``config`` is one of ``CONFIGS``; by default the shapes choose. Raises ValueError, naming the argument, for what is not supported.
    """
    if not use_triton():
        return reference(x, weight, lora_a, lora_b, alpha)
    check_tensors(x=x, weight=weight, lora_a=lora_a, lora_b=lora_b)
    for name, tensor in (("weight", weight), ("lora_a", lora_a), ("lora_b", lora_b)):
        if tensor.dim() != 2:
            raise ValueError(f"{name} has {tensor.dim()} dimensions: give 2")
    (n, k), rank = weight.shape, lora_a.shape[0]
    if x.dim() == 0 or x.shape[-1] != k:
        raise ValueError(f"x has shape {tuple(x.shape)}: give (..., {k}), as many columns as weight has")
    if lora_a.shape[1] != k or not 1 <= rank <= _MOST:
        raise ValueError(f"lora_a has shape {tuple(lora_a.shape)}: give (rank, {k}), the rank from 1 to {_MOST}")
    if tuple(lora_b.shape) != (n, rank):
        raise ValueError(f"lora_b has shape {tuple(lora_b.shape)}: give {(n, rank)}, weight's rows and lora_a's rank")
    if x.numel() == 0 or n == 0:
        return reference(x, weight, lora_a, lora_b, alpha)  # nothing to launch; gradients are zero
    weight, lora_a = (t if t.stride(1) == 1 else t.contiguous() for t in (weight, lora_a))
    y = _lora_linear(as_rows(x, k), weight, lora_a, lora_b.contiguous(), float(alpha), pack(config))
    return y.reshape(*x.shape[:-1], n)


def reference(
    x: torch.Tensor, weight: torch.Tensor, lora_a: torch.Tensor, lora_b: torch.Tensor, alpha: float
) -> torch.Tensor:
    """The reference in plain PyTorch: three products and two elementwise operations."""
    return F.linear(x, weight) + alpha * F.linear(F.linear(x, lora_a), lora_b)


@drawn
def inputs(draw: Draw, m: int, n: int, k: int, rank: int) -> dict[str, Any]:
    """``x`` (m, k) standard normal, weights scaled so that the layer's and the update's results are as large as ``x``.

    ``weight`` is frozen, as in training of a LoRA adapter.
    """
    deep = max(k, 1) ** -0.5
    x, weight, lora_a = draw(m, k, grad=True), draw(n, k, scale=deep), draw(rank, k, scale=deep, grad=True)
    lora_b = draw(n, rank, scale=rank**-0.5, grad=True)
    return {"x": x, "weight": weight, "lora_a": lora_a, "lora_b": lora_b, "alpha": 0.5}


def cost(workload: Workload, direction: str) -> Cost:
    """2M(NK + KR + RN) operations on tensor cores at 16 bits and one for alpha; x, W, A and B read once, y written.

    The 2MR elements that ``lora_down_kernel`` writes and the product reads do not count. Backward leaves W frozen: dx takes
    three products, dA and dB one each, and alpha scales once.
    """
    m, n, k, rank = workload.dims.values()
    operands, update = m * k + n * k + rank * k + n * rank, m * k + rank * k + n * rank
    passes, read, written = (1, operands, m * n) if direction == FORWARD else (2, operands + m * n, update)
    flops, size = 2 * m * (n * k + passes * (k * rank + rank * n)) + m * rank, workload.itemsize
    return Cost(flops, read * size, written * size, workload.pipe)


SPEC = declare(
    "lora_linear", "a linear layer with a low-rank update", "m n k rank",
    "small 512x512x512x16-bf16, medium 2048x2048x2048x16-bf16, large 4096x4096x4096x16-bf16, "
    "large-64 4096x4096x4096x64-bf16, ragged 1023x517x769x24-fp16, huge 8192x8192x8192x64-bf16, "
    "empty 0x512x512x16-bf16",
    triton=Implementation(lora_linear, "the update as the end of the product's sum", CONFIGS),
    eager=Implementation(reference, "three products (cuBLAS) and two elementwise operations"),
    reference=reference, inputs=inputs, cost=cost, tolerance={"fp32": 1e-5, "fp16": 9e-4, "bf16": 7e-3},
    passes="forward backward",
)  # fmt: skip
