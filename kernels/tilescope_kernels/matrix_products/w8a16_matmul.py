"""``x @ (weight * scale).T`` of 16-bit activations and INT8 weights (W8A16), converted in registers.

INT8 is exact in fp16 and bf16, and a scale belongs to a row of weights, so it is applied in the epilogue. Tiles are computed
as ``weight @ x.T``, because wgmma takes the left operand from the registers in which it was converted, but the right one only
from shared memory. On Hopper, products of many rows use ``w8a16_hopper``.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_wait

from tilescope_kernels._shared.checks import check_no_grad, check_tensors, use_triton
from tilescope_kernels._shared.launching import capability, cdiv, launch, multiprocessors, shared_memory
from tilescope_kernels._shared.one_byte import check_operands
from tilescope_kernels._shared.operators import as_rows, operator, pack, unpack
from tilescope_kernels._shared.reach import is_far
from tilescope_kernels._shared.tile_order import tile_origin
from tilescope_kernels.matrix_products import w8a16_hopper
from tilescope_kernels.matrix_products.aligned_rows import padded
from tilescope_kernels.spec import Config, Cost, Draw, Implementation, Workload, declare, drawn


@triton.jit
def w8a16_matmul_kernel(
    y_ptr, x_ptr, weight_ptr, scale_ptr, M, N, K, x_stride, weight_stride,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, GROUP_N: tl.constexpr, EVEN_K: tl.constexpr, FAR: tl.constexpr,
):  # fmt: skip
    """Compute a tile of y per program.

    Weights are the left operand, which Hopper's tensor cores take from registers. ``FAR``: rows lie so far apart that offsets within
    a tile need int64.
    """
    start_n, start_m = tile_origin(tl.program_id(0), N, M, BLOCK_N, BLOCK_M, GROUP_N)
    n = tl.arange(0, BLOCK_N)
    m = tl.arange(0, BLOCK_M)
    k = tl.arange(0, BLOCK_K)
    of_n, of_m = (n.to(tl.int64), m.to(tl.int64)) if FAR else (n, m)
    weight_ptr += start_n.to(tl.int64) * weight_stride + of_n[:, None] * weight_stride + k[None, :]
    x_ptr += start_m.to(tl.int64) * x_stride + of_m[None, :] * x_stride + k[:, None]
    valid_n, valid_m = (start_n + n < N)[:, None], (start_m + m < M)[None, :]
    total = tl.zeros((BLOCK_N, BLOCK_M), tl.float32)
    for start_k in range(0, K, BLOCK_K):
        if EVEN_K:
            weight = tl.load(weight_ptr + start_k, mask=valid_n, other=0)
            x = tl.load(x_ptr + start_k, mask=valid_m, other=0.0)
        else:
            weight = tl.load(weight_ptr + start_k, mask=valid_n & (k[None, :] < K - start_k), other=0)
            x = tl.load(x_ptr + start_k, mask=valid_m & (k[:, None] < K - start_k), other=0.0)
        # "ieee": fp32 operands are multiplied as fp32, not rounded to tf32.
        total = tl.dot(weight.to(x.dtype), x, total, input_precision="ieee")
    total *= tl.load(scale_ptr + start_n + n, mask=start_n + n < N, other=0.0)[:, None]
    y_tile = y_ptr + (start_m + m)[:, None].to(tl.int64) * N + (start_n + n)[None, :]
    tl.store(y_tile, total.T.to(y_ptr.dtype.element_ty), mask=(start_m + m < M)[:, None] & (start_n + n < N)[None, :])


@triton.jit
def w8a16_few_rows_kernel(
    y_ptr, x_ptr, weight_ptr, scale_ptr, M, N, K, x_stride, weight_stride,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, SPLIT: tl.constexpr, EVEN_K: tl.constexpr,
):  # fmt: skip
    """Compute a tile of few rows per program, over one of SPLIT parts of K, ``program_id(1)``.

    Weights are the right operand here: the small tensor core instructions of this shape then read 8 of them at once from
    shared memory instead of 2. With several parts y is (SPLIT, M, N) in fp32, not scaled.
    """
    n = tl.program_id(0) * BLOCK_N + tl.arange(0, BLOCK_N)
    m = tl.program_id(2) * BLOCK_M + tl.arange(0, BLOCK_M)[:, None]
    k = tl.arange(0, BLOCK_K)[None, :]
    # A part of K is whole blocks, so that no two parts share one.
    part = tl.cdiv(tl.cdiv(K, BLOCK_K), SPLIT) * BLOCK_K
    first = tl.program_id(1) * part
    weight_ptr += n[:, None].to(tl.int64) * weight_stride + k
    x_ptr += m.to(tl.int64) * x_stride + k
    total = tl.zeros((BLOCK_M, BLOCK_N), tl.float32)
    for start_k in range(first, min(first + part, K), BLOCK_K):
        if EVEN_K:
            weight = tl.load(weight_ptr + start_k, mask=n[:, None] < N, other=0, eviction_policy="evict_first")
            x = tl.load(x_ptr + start_k, mask=m < M, other=0.0)
        else:
            weight = tl.load(weight_ptr + start_k, mask=(n[:, None] < N) & (k < K - start_k), other=0)
            x = tl.load(x_ptr + start_k, mask=(m < M) & (k < K - start_k), other=0.0)
        total = tl.dot(x, weight.to(x.dtype).T, total, input_precision="ieee")
    if SPLIT == 1:
        total *= tl.load(scale_ptr + n, mask=n < N, other=0.0)[None, :]
    y_ptr += tl.program_id(1).to(tl.int64) * M * N + m.to(tl.int64) * N + n[None, :]
    tl.store(y_ptr, total.to(y_ptr.dtype.element_ty), mask=(m < M) & (n[None, :] < N))


@triton.jit
def w8a16_sum_kernel(
    y_ptr, partial_ptr, scale_ptr, size, N, SPLIT: tl.constexpr, BLOCK: tl.constexpr, PDL: tl.constexpr
):
    """Add up the parts of y in a fixed order, which is deterministic, and scale the sum."""
    if PDL:
        gdc_wait()
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = offsets < size
    total = tl.zeros((BLOCK,), tl.float32)
    for part in tl.static_range(SPLIT):
        total += tl.load(partial_ptr + part * size + offsets, mask=mask, other=0.0)
    total *= tl.load(scale_ptr + offsets % N, mask=mask, other=0.0)
    tl.store(y_ptr + offsets, total.to(y_ptr.dtype.element_ty), mask=mask)


def _config(m: int, n: int, k: int, warps: int, stages: int, split: int = 1) -> dict[str, int]:
    blocks = {"BLOCK_M": m, "BLOCK_N": n, "BLOCK_K": k, "GROUP_N": 8, "SPLIT": split}
    return {**blocks, "num_warps": warps, "num_stages": stages}


#: Configs for more than 16 rows at 16 bits.
TUNED = tuple(
    _config(*parts)
    for parts in (
        (256, 128, 64, 8, 4), (256, 128, 64, 8, 3), (128, 128, 64, 8, 4), (128, 128, 64, 4, 4), (64, 128, 64, 4, 4), (32, 64, 128, 4, 4),
        (64, 64, 64, 4, 3),
    )
)  # fmt: skip
#: For up to 16 rows, which are bound by reading the weights: K is split so that every SM reads.
SMALL = tuple(
    _config(16, n, k, warps, stages, split)
    for n, k, warps, stages in ((64, 256, 4, 4), (64, 128, 4, 4), (32, 256, 2, 4), (32, 256, 4, 4), (32, 128, 4, 6))
    for split in (1, 2, 4, 8)
)
#: For fp32, which runs on CUDA cores, and for tiny products of unaligned rows, whose elements each have an address and a mask:
#: registers bound the tile.
NARROW = _config(32, 64, 32, 4, 2)
CONFIGS = (*TUNED, *SMALL, NARROW)
#: Most rows for ``w8a16_few_rows_kernel``.
_FEW = 16
#: The longest K for which tiles of 16x32 without a split are faster, if an SM has at most two.
_SHORT = 1280


def _operands(config: Mapping[str, int]) -> int:
    """Bytes of shared memory for all stages of a config: 16-bit x and INT8 weights."""
    return (2 * config["BLOCK_M"] + config["BLOCK_N"]) * config["BLOCK_K"] * config["num_stages"]


def _chosen(x: torch.Tensor, weight: torch.Tensor) -> Mapping[str, int]:
    """The config if none is given."""
    (m, k), n = x.shape, weight.shape[0]
    if x.dtype == torch.float32 or k % 16:
        return NARROW
    if k <= _SHORT and triton.cdiv(m, 16) * triton.cdiv(n, 32) <= 2 * multiprocessors(x):
        return SMALL[-4]
    if m <= _FEW:
        # Split until every SM has two programs, with at least eight blocks of K each.
        wanted = 2 * multiprocessors(x) / triton.cdiv(n, SMALL[0]["BLOCK_N"])
        deep = k // (8 * SMALL[0]["BLOCK_K"])
        return max(
            (known for known in SMALL[:4] if known["SPLIT"] <= max(1, min(wanted, deep))), key=lambda c: c["SPLIT"]
        )
    if triton.cdiv(m, 256) * triton.cdiv(n, 128) < multiprocessors(x):
        return TUNED[-1]
    return next(config for config in TUNED if _operands(config) < shared_memory(x))


#: Elements of y per program of ``w8a16_sum_kernel``.
_SUMMED = 512


def _add_parts(y: torch.Tensor, parts: torch.Tensor, scale: torch.Tensor) -> None:
    """Write the sum of ``parts`` (SPLIT, M, N), scaled, to y (M, N)."""
    size, n = y.numel(), y.shape[1]
    # Programmatic dependent launch: the kernel starts early and waits for the parts.
    pdl = capability(y) >= 90
    launch(
        w8a16_sum_kernel, (cdiv(size, _SUMMED),), y, parts, scale, size, n,
        SPLIT=parts.shape[0], BLOCK=_SUMMED, PDL=pdl, **({"launch_pdl": True} if pdl else {}),
    )  # fmt: skip


def _few_rows(
    x: torch.Tensor, weight: torch.Tensor, scale: torch.Tensor, y: torch.Tensor, config: Mapping[str, int]
) -> None:
    """Write the product of few rows to ``y``, in one or two launches."""
    (m, k), n, split = x.shape, weight.shape[0], config["SPLIT"]
    out = torch.empty((split, m, n), dtype=torch.float32, device=x.device) if split > 1 else y
    options = {name: value for name, value in config.items() if name != "GROUP_N"}
    launch(
        w8a16_few_rows_kernel, (triton.cdiv(n, config["BLOCK_N"]), split, triton.cdiv(m, config["BLOCK_M"])),
        out, x, weight, scale, m, n, k, x.stride(0), weight.stride(0), EVEN_K=k % config["BLOCK_K"] == 0, **options,
    )  # fmt: skip
    if split > 1:
        _add_parts(y, out, scale)


@operator("w8a16_matmul", fake=lambda x, weight, *_: x.new_empty(x.shape[0], weight.shape[0]))
def _w8a16_matmul(x: torch.Tensor, weight: torch.Tensor, scale: torch.Tensor, config: str) -> torch.Tensor:
    x, weight = (x, weight) if config else padded(x, weight)
    (m, k), n = x.shape, weight.shape[0]
    y = torch.empty((m, n), dtype=x.dtype, device=x.device)
    if not config and m > _FEW and (chosen := w8a16_hopper.plan(x, weight)):
        w8a16_hopper.write_product(x, weight, y, scale, chosen)
        return y
    given = unpack(config) or _chosen(x, weight)
    if given["BLOCK_M"] <= _FEW:
        _few_rows(x, weight, scale, y, given)
        return y
    options = {name: value for name, value in given.items() if name != "SPLIT"}
    strides = x.stride(0), weight.stride(0)
    tiles = triton.cdiv(m, given["BLOCK_M"]) * triton.cdiv(n, given["BLOCK_N"])
    launch(
        w8a16_matmul_kernel, (tiles,), y, x, weight, scale, m, n, k, *strides,
        EVEN_K=k % given["BLOCK_K"] == 0, FAR=is_far(*strides), **options,
    )  # fmt: skip
    return y


def w8a16_matmul(
    x: torch.Tensor, weight: torch.Tensor, scale: torch.Tensor, *, config: Config | None = None
) -> torch.Tensor:
    """``x @ (weight * scale).T`` as ``torch.nn.functional.linear``: (..., K) to (..., N) in the dtype of ``x``.

    ``x`` is bf16, fp16 or fp32, ``weight`` (N, K) int8 and ``scale`` (N, 1) fp32, as ``quantize(weight)`` gives them.
    Accumulates in fp32; the result is deterministic. Not differentiable. ``config`` is one of ``CONFIGS``; by default the shapes
    choose. Raises ValueError, naming the argument, for what is not supported.
    """
    if not use_triton():
        return reference(x, weight, scale)
    check_tensors(x=x)
    check_no_grad("w8a16_matmul", x=x)
    check_operands((torch.int8,), dims=2, beside=x, weight=weight)
    check_operands((torch.float32,), beside=x, scale=scale)
    n, k = weight.shape
    if x.dim() == 0 or x.shape[-1] != k:
        raise ValueError(f"x has shape {tuple(x.shape)}: give (..., {k}), as many columns as weight has")
    if tuple(scale.shape) != (n, 1):
        raise ValueError(f"scale has shape {tuple(scale.shape)}: give {(n, 1)}, one a row of weight")
    if x.numel() == 0 or n == 0:
        return x.new_zeros((*x.shape[:-1], n))
    weight = weight if weight.stride(1) == 1 else weight.contiguous()
    y = _w8a16_matmul(as_rows(x, k), weight, scale.contiguous(), pack(config))
    return y.reshape(*x.shape[:-1], n)


def reference(x: torch.Tensor, weight: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
    """The reference in plain PyTorch, in fp32 or, where ``x`` is fp64, in fp64."""
    wide = torch.float64 if x.dtype == torch.float64 else torch.float32
    return torch.nn.functional.linear(x.to(wide), weight.to(wide) * scale.to(wide)).to(x.dtype)


def precise(x: torch.Tensor, weight: torch.Tensor, scale: torch.Tensor, dequantized: torch.Tensor) -> torch.Tensor:
    """Call ``reference`` with the spec's arguments."""
    return reference(x, weight, scale)


def fused(
    x: torch.Tensor, weight: torch.Tensor, scale: torch.Tensor, dequantized: torch.Tensor, config: Config | None = None
) -> torch.Tensor:
    """Call ``w8a16_matmul`` with the spec's arguments."""
    return w8a16_matmul(x, weight, scale, config=config)


def eager(x: torch.Tensor, weight: torch.Tensor, scale: torch.Tensor, dequantized: torch.Tensor) -> torch.Tensor:
    """Weights dequantized to the dtype of ``x`` in every call, then cuBLAS."""
    return torch.nn.functional.linear(x, (weight * scale).to(x.dtype))


def cublas(x: torch.Tensor, weight: torch.Tensor, scale: torch.Tensor, dequantized: torch.Tensor) -> torch.Tensor:
    """cuBLAS with weights stored dequantized, in twice the memory."""
    return torch.nn.functional.linear(x, dequantized)


@drawn
def inputs(draw: Draw, m: int, n: int, k: int) -> dict[str, Any]:
    """``x`` (m, k) standard normal, ``weight`` (n, k) int8 with standard deviation 25, scales, and dequantized weights.

    Scales are powers of two, 1/128 to 1/32, so that the dequantized 16-bit weights are exact.
    """
    x = draw(m, k)
    weight, scale = draw.empty((n, k)), draw.empty((n, 1))
    if draw.numbers is not None:
        weight.normal_(0.0, 25.0, generator=draw.numbers)
        scale.random_(-7, -4, generator=draw.numbers).exp2_()
    codes = weight.to(torch.int8)
    return {"x": x, "weight": codes, "scale": scale, "dequantized": (codes * scale).to(x.dtype)}


def cost(workload: Workload, direction: str) -> Cost:
    """2MNK operations and one per output for the scale; x, int8 weights and scales read once, the result written once."""
    m, n, k = workload.dims.values()
    size = workload.itemsize
    read = m * k * size + n * k + 4 * n
    return Cost(flops=2 * m * n * k + m * n, bytes_read=read, bytes_written=m * n * size, pipe=workload.pipe)


SPEC = declare(
    "w8a16_matmul", "16-bit activations times INT8 weights", "m n k",
    "small 16x4096x4096-bf16, medium 16x14336x4096-bf16, large 4096x4096x4096-bf16, ragged 37x517x769-fp16, "
    "one 1x14336x4096-bf16, huge 8192x8192x8192-bf16, empty 0x512x512-bf16",
    triton=Implementation(fused, "converted on the way to the tensor cores", CONFIGS),
    eager=Implementation(eager, "dequantized, then cuBLAS"),
    cublas=Implementation(cublas, "cuBLAS with weights kept at 16 bits"),
    reference=precise, inputs=inputs, cost=cost, tolerance={"fp32": 1e-5, "fp16": 8e-4, "bf16": 6e-3},
)  # fmt: skip
