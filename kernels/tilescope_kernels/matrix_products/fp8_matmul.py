"""FP8 (e4m3) matrix products with scales per operand, per row of ``a`` and column of ``b``, or per block.

On Hopper, products of many tiles with scales per block use ``fp8_blocks_hopper``.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import torch
import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents

from tilescope_kernels._shared.checks import FLOATING, use_triton
from tilescope_kernels._shared.descriptors import tiles
from tilescope_kernels._shared.launching import capability, launch, multiprocessors, shared_memory
from tilescope_kernels._shared.one_byte import check_operands
from tilescope_kernels._shared.operators import operator, pack, unpack
from tilescope_kernels._shared.reach import is_far
from tilescope_kernels._shared.tile_order import tile_origin
from tilescope_kernels.matrix_products import fp8_blocks_hopper, scaled_matmul
from tilescope_kernels.matrix_products.bytes_product import bytes_product
from tilescope_kernels.matrix_products.scaled_matmul import pointer_operands
from tilescope_kernels.matrix_products.split_k import add_parts
from tilescope_kernels.quantization.quantize_kernels import GROUP
from tilescope_kernels.spec import Config, Cost, Draw, Implementation, KernelSpec, Workload, declare, drawn

_GROUP = tl.constexpr(GROUP)


@triton.jit(do_not_specialize=["M"])
def fp8_matmul_blocks_kernel(
    a_tiles, b_tiles, a_ptr, b_ptr, c_ptr, parts_ptr, scale_a_ptr, scale_b_ptr, M, N, K, stride_am, stride_bn, stride_cm,
    scale_am, scale_ak, scale_bk, scale_bn, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, GROUP_M: tl.constexpr, SPLITS: tl.constexpr,
    EVEN_K: tl.constexpr, FAR: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """Compute a tile of c per program or, of ``SPLITS`` parts along K, one part, which goes to ``parts`` (programs, BLOCK_M, BLOCK_N).

    128 products along K share scales, so their sum is scaled and then accumulated in fp32. A tile's columns, at most 128, share a scale
    of b. Operands come through descriptors, or through pointers where those are None. Fewer than 64 rows are the columns of a transposed
    tile: tensor cores of Hopper multiply 64 rows. ``PDL``: programmatic dependent launch.
    """
    if PDL:
        gdc_launch_dependents()
    TURNED: tl.constexpr = BLOCK_M < 64
    start_m, start_n = tile_origin(tl.program_id(0) // SPLITS, M, N, BLOCK_M, BLOCK_N, GROUP_M)
    m = tl.arange(0, BLOCK_M)
    n = tl.arange(0, BLOCK_N)[None, :]
    valid = start_m + m < M
    scale_rows = scale_a_ptr + (start_m + m) * scale_am
    scale_columns = scale_b_ptr + start_n // _GROUP * scale_bn
    total = tl.zeros((BLOCK_N, BLOCK_M), tl.float32) if TURNED else tl.zeros((BLOCK_M, BLOCK_N), tl.float32)
    steps = tl.cdiv(K, _GROUP)
    each = tl.cdiv(steps, SPLITS)
    first = tl.program_id(0) % SPLITS * each
    for step in range(first, tl.minimum(steps, first + each)):
        k = step * _GROUP
        scale = tl.load(scale_rows + step * scale_ak, mask=valid, other=0.0) * tl.load(scale_columns + step * scale_bk)
        if a_tiles is None:
            a, b = pointer_operands(
                a_ptr, b_ptr, M, N, K, stride_am, stride_bn, start_m, start_n, k, BLOCK_M, BLOCK_N, _GROUP, EVEN_K, FAR,
            )  # fmt: skip
            total += tl.dot(a, b) * scale[:, None]
        elif TURNED:
            a, b = a_tiles.load([start_m, k]), b_tiles.load([start_n, k])
            total += tl.dot(b, a.T) * scale[None, :]
        else:
            a, b = a_tiles.load([start_m, k]), b_tiles.load([start_n, k])
            total += tl.dot(a, b.T) * scale[:, None]
    if TURNED:
        total = total.T
    if SPLITS > 1:
        part = parts_ptr + tl.program_id(0).to(tl.int64) * (BLOCK_M * BLOCK_N) + m[:, None] * BLOCK_N + n
        tl.store(part, total, mask=valid[:, None])
    else:
        c_tile = c_ptr + (start_m + m)[:, None].to(tl.int64) * stride_cm + start_n + n
        tl.store(c_tile, total.to(c_ptr.dtype.element_ty), mask=valid[:, None] & (start_n + n < N))


CONFIGS = scaled_matmul.sweep(2)


def _block_config(m: int, n: int, warps: int, stages: int, tma: int, splits: int = 1) -> dict[str, int]:
    tile = {"BLOCK_M": m, "BLOCK_N": n, "GROUP_M": 8, "TMA": tma, "SPLITS": splits}
    return {**tile, "num_warps": warps, "num_stages": stages}


#: With ``TMA`` and through pointers, all for the Triton kernel; the Hopper kernel has none and runs only where no config is given.
BLOCK_CONFIGS = tuple(
    _block_config(*parts)
    for parts in (
        (64, 128, 4, 4, 1), (128, 64, 8, 4, 1), (64, 128, 4, 4, 1, 2), (64, 128, 4, 4, 1, 4), (128, 64, 4, 4, 1, 4),
        (16, 64, 4, 6, 1), (16, 64, 4, 6, 1, 3), (16, 64, 4, 6, 1, 6), (16, 128, 4, 4, 1), (32, 64, 4, 6, 1, 3), (32, 128, 4, 4, 1),
        (128, 128, 8, 3, 0), (128, 128, 8, 4, 0), (128, 128, 8, 2, 0), (64, 128, 4, 3, 0), (64, 128, 4, 4, 0),
        (64, 64, 4, 4, 0), (64, 64, 4, 3, 0), (128, 64, 8, 4, 0), (256, 64, 8, 3, 0),
    )
)  # fmt: skip
#: Config for few tiles, through pointers.
_SMALL = next(known for known in BLOCK_CONFIGS if known["BLOCK_M"] == known["BLOCK_N"] == 64)
#: Least steps along K of a part, with up to 32 rows and with more.
_STEPS_OF_FEW, _STEPS = 4, 12


def _fits(known: Mapping[str, int], c: torch.Tensor) -> bool:
    """Whether the operands of a config of ``BLOCK_CONFIGS`` fit the shared memory of the GPU of ``c``."""
    return (known["BLOCK_M"] + known["BLOCK_N"]) * GROUP * known["num_stages"] <= shared_memory(c) - 1024


def _in_parts(m: int, n: int, k: int, programs: int) -> dict[str, int] | None:
    """The config of few rows, or of few tiles that are split along K, so that every SM has two or three parts; else None."""
    steps = triton.cdiv(k, GROUP)
    if m <= 32:
        rows, resident = 16 if m <= 16 else 32, 3 * programs
        if triton.cdiv(n, 64) > resident:
            return _block_config(rows, 128, 4, 4, 1)
        splits = min(resident // triton.cdiv(n, 64), steps // _STEPS_OF_FEW)
        return _block_config(rows, 64, 4, 6, 1, max(1, splits))
    splits = min(2 * programs // (triton.cdiv(m, 64) * triton.cdiv(n, 128)), steps // _STEPS)
    return _block_config(64, 128, 4, 4, 1, max(1, splits)) if m <= 64 or splits > 1 else None


@operator("fp8_matmul", fake=lambda a, b, _, __, dtype, *___: a.new_empty(a.shape[0], b.shape[0], dtype=dtype))
def _fp8_matmul(
    a: torch.Tensor, b: torch.Tensor, scale_a: torch.Tensor, scale_b: torch.Tensor, dtype: torch.dtype, fast: bool, config: str,
) -> torch.Tensor:  # fmt: skip
    """Product of ``a`` (M, K) and ``b`` (N, K)."""
    c = torch.empty((a.shape[0], b.shape[0]), dtype=dtype, device=a.device)
    bytes_product(c, a, b, (scale_a, scale_b), fast, unpack(config))
    return c


@operator("fp8_matmul_blocks", fake=lambda a, b, _, __, dtype, ___: a.new_empty(a.shape[0], b.shape[0], dtype=dtype))
def _fp8_matmul_blocks(
    a: torch.Tensor, b: torch.Tensor, scale_a: torch.Tensor, scale_b: torch.Tensor, dtype: torch.dtype, config: str
) -> torch.Tensor:
    """Product of ``a`` (M, K) and ``b`` (N, K)."""
    (m, k), n = a.shape, b.shape[0]
    c = torch.empty((m, n), dtype=dtype, device=a.device)
    given, tma = unpack(config), scaled_matmul.tma_serves(a, b, c)
    if given is None and tma and capability(a) == 90:
        given = _in_parts(m, n, k, multiprocessors(a))
    if given is None and fp8_blocks_hopper.serves(a, b, c):
        fp8_blocks_hopper.launch(a, b, c, scale_a, scale_b)
        return c
    if given is None:
        few = m <= 64 or 2 * triton.cdiv(m, 128) * triton.cdiv(n, 128) < 3 * multiprocessors(a)
        fitting = (known for known in BLOCK_CONFIGS if known["TMA"] <= tma and _fits(known, c))
        given = _SMALL if few else next(fitting)
    if given["TMA"] and not tma:
        raise ValueError("config has TMA=1, which these operands or this GPU do not allow: use one with TMA=0")
    high, wide, splits = (given[name] for name in ("BLOCK_M", "BLOCK_N", "SPLITS"))
    count, strides = triton.cdiv(m, high) * triton.cdiv(n, wide), (a.stride(0), b.stride(0), c.stride(0))
    parts = torch.empty((count * splits, high, wide), dtype=torch.float32, device=a.device) if splits > 1 else None
    # Programmatic dependent launch: the second launch starts early and waits for the parts.
    pdl = splits > 1 and capability(a) >= 90
    launch(
        fp8_matmul_blocks_kernel, (count * splits,), *((tiles(a, high, GROUP).of(a), tiles(b, wide, GROUP).of(b)) if given["TMA"] else (None, None)),
        a, b, c, parts, scale_a, scale_b, m, n, k, *strides, *scale_a.stride(), *scale_b.stride(),
        EVEN_K=k % GROUP == 0, FAR=is_far(*strides), PDL=pdl, **{name: value for name, value in given.items() if name != "TMA"},
    )  # fmt: skip
    if parts is not None:
        add_parts(c, parts, 0, {**given, "C_COLUMNS": False, "SCALES": 0}, pdl=pdl)
    return c


def fp8_matmul(
    a: torch.Tensor, b: torch.Tensor, scale_a: torch.Tensor, scale_b: torch.Tensor, *,
    dtype: torch.dtype = torch.bfloat16, use_fast_accum: bool = True, config: Config | None = None,
) -> torch.Tensor:  # fmt: skip
    """``(a * scale_a) @ (b * scale_b)`` of e4m3 matrices (M, K) and (K, N), in ``dtype`` (bf16, fp16, fp32).

    The fp32 scales are both (), or (M, 1) and (1, N), or for blocks of 1x128 and 128x128 (M, ceil(K / 128)) and (ceil(K /
    128), ceil(N / 128)), as ``quantize(w, ..., "tile")`` gives for ``w = b.T``, transposed. Operands without stride 1 along K
    are copied, so ``b`` should be ``weight.T``.

    With ``use_fast_accum`` Hopper's tensor cores accumulate with 14 bits, as with ``torch._scaled_mm``; without it only 128
    products at a time, whose sums are added in fp32, as cuBLAS does. Blocks always accumulate in fp32. Not differentiable.
    ``config`` is one of ``CONFIGS``, for blocks of ``BLOCK_CONFIGS``; by default the shapes choose. Raises ValueError, naming
    the argument, for what is not supported.
    """
    if dtype not in FLOATING:
        raise ValueError(f"dtype is {dtype}: give torch.bfloat16, torch.float16 or torch.float32")
    if not use_triton():
        return reference(a, b, scale_a, scale_b).to(dtype)
    check_operands((torch.float8_e4m3fn,), dims=2, a=a)
    check_operands((torch.float8_e4m3fn,), dims=2, beside=a, b=b)
    check_operands((torch.float32,), beside=a, scale_a=scale_a, scale_b=scale_b)
    (m, k), n = a.shape, b.shape[1]
    if b.shape[0] != k:
        raise ValueError(f"b has {b.shape[0]} rows but a has {k} columns: they must be equal")
    blocks = triton.cdiv(k, GROUP)
    shapes = (tuple(scale_a.shape), tuple(scale_b.shape))
    accepted = (((), ()), ((m, 1), (1, n)), ((m, blocks), (blocks, triton.cdiv(n, GROUP))))
    if shapes not in accepted:
        raise ValueError(
            f"scale_a and scale_b have shapes {shapes[0]} and {shapes[1]}: give () and (), "
            f"{accepted[1][0]} and {accepted[1][1]}, or {accepted[2][0]} and {accepted[2][1]}"
        )
    if m == 0 or n == 0 or k == 0:
        return torch.zeros((m, n), dtype=dtype, device=a.device)
    a, columns = (t if t.stride(1) == 1 else t.contiguous() for t in (a, b.T))
    if shapes in accepted[:2]:
        return _fp8_matmul(a, columns, scale_a.contiguous(), scale_b.contiguous(), dtype, use_fast_accum, pack(config))
    return _fp8_matmul_blocks(a, columns, scale_a, scale_b, dtype, pack(config))


def reference(a: torch.Tensor, b: torch.Tensor, scale_a: torch.Tensor, scale_b: torch.Tensor) -> torch.Tensor:
    """The reference in plain PyTorch: in fp32, rounded to bf16, or in fp64 if ``a`` is fp64."""
    wide = torch.float64 if a.dtype == torch.float64 else torch.float32
    if scale_a.dim() == 2 and (scale_a.shape[1] > 1 or scale_b.shape != (1, b.shape[1])):
        scale_a = scale_a.repeat_interleave(GROUP, 1)[:, : a.shape[1]]
        scale_b = scale_b.repeat_interleave(GROUP, 0).repeat_interleave(GROUP, 1)[: b.shape[0], : b.shape[1]]
    product = (a.to(wide) * scale_a.to(wide)) @ (b.to(wide) * scale_b.to(wide))
    return product if wide == torch.float64 else product.bfloat16()


def eager(a: torch.Tensor, b: torch.Tensor, scale_a: torch.Tensor, scale_b: torch.Tensor) -> torch.Tensor:
    """Operands converted to bf16, cuBLAS, then the scales."""
    product = a.bfloat16() @ b.bfloat16()
    return (product.float() * (scale_a * scale_b)).bfloat16()


def eager_blocks(a: torch.Tensor, b: torch.Tensor, scale_a: torch.Tensor, scale_b: torch.Tensor) -> torch.Tensor:
    """Operands dequantized to bf16, then cuBLAS."""
    wide_a = scale_a.repeat_interleave(GROUP, 1)[:, : a.shape[1]]
    wide_b = scale_b.repeat_interleave(GROUP, 0).repeat_interleave(GROUP, 1)[: b.shape[0], : b.shape[1]]
    return (a.float() * wide_a).bfloat16() @ (b.float() * wide_b).bfloat16()


def cublas(a: torch.Tensor, b: torch.Tensor, scale_a: torch.Tensor, scale_b: torch.Tensor) -> torch.Tensor:
    """``torch._scaled_mm``, with fast accumulation where that is an option."""
    fast = scale_a.dim() == 0 or scale_a.shape[1] == 1
    return torch._scaled_mm(a, b, scale_a, scale_b, out_dtype=torch.bfloat16, use_fast_accum=fast)


def _scale_shapes(scales: str, m: int, n: int, k: int) -> tuple[tuple[int, ...], tuple[int, ...]]:
    blocks = triton.cdiv(k, GROUP)
    shapes = {"tensor": ((), ()), "rows": ((m, 1), (1, n)), "blocks": ((blocks, m), (triton.cdiv(n, GROUP), blocks))}
    return shapes[scales]


def _spec(name: str, scales: str, summary: str, plain: Any, configs: tuple[dict[str, int], ...]) -> KernelSpec:
    def fused(
        a: torch.Tensor, b: torch.Tensor, scale_a: torch.Tensor, scale_b: torch.Tensor, config: Config | None = None
    ) -> torch.Tensor:
        return fp8_matmul(a, b, scale_a, scale_b, config=config)

    @drawn
    def inputs(draw: Draw, m: int, n: int, k: int) -> dict[str, Any]:
        """``a`` (m, k) and ``b`` (k, n), the transpose of a weight (n, k): standard normal, rounded to e4m3.

        Scales are between 0.01 and 0.02. Those of blocks are contiguous along m and along k, as cuBLAS takes them.
        """
        operands = {"a": draw(m, k), "b": draw(n, k).T}
        for place, shape in zip("ab", _scale_shapes(scales, m, n, k), strict=True):
            scale = draw.empty(shape)
            if draw.numbers is not None:
                scale.uniform_(0.01, 0.02, generator=draw.numbers)
            operands[f"scale_{place}"] = scale.T if scales == "blocks" else scale
        return operands

    def cost(workload: Workload, direction: str) -> Cost:
        """2MNK operations on tensor cores and the scaling; operands and scales read once, the bf16 result written."""
        m, n, k = workload.dims.values()
        count = sum(map(math.prod, _scale_shapes(scales, m, n, k)))
        return Cost(flops=2 * m * n * k, bytes_read=m * k + k * n + 4 * count, bytes_written=2 * m * n, pipe="fp8")

    return declare(
        name, summary, "m n k",
        # The ragged extents are the most irregular that torch._scaled_mm takes.
        "small 512x512x512-fp8, medium 2048x2048x2048-fp8, large 4096x4096x4096-fp8, "
        f"ragged 1023x528x{1024 if scales == 'blocks' else 1040}-fp8, huge 8192x8192x8192-fp8, empty 0x512x512-fp8",
        triton=Implementation(fused, "FP8 on tensor cores, scaled at the end", configs),
        eager=Implementation(plain, "converted to bf16, then cuBLAS"),
        cublas=Implementation(cublas, "torch._scaled_mm"),
        reference=reference, inputs=inputs, cost=cost,
        tolerance={"fp8": 6e-3},  # by rounding the result to bf16
        targets=("sm_89", "sm_90", "sm_100", "sm_120"),  # whose tensor cores take e4m3
    )  # fmt: skip


SPEC = _spec("fp8_matmul", "tensor", "FP8 a @ b with a scale an operand", eager, CONFIGS)
ROWS_SPEC = _spec("fp8_matmul_rows", "rows", "FP8 a @ b with a scale a row and a column", eager, CONFIGS)
BLOCKS_SPEC = _spec(
    "fp8_matmul_blocks", "blocks", "FP8 a @ b with scales of 1x128 and 128x128", eager_blocks, BLOCK_CONFIGS
)
