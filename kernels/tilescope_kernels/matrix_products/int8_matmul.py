"""INT8 matrix products: exact in INT32, or scaled in the epilogue."""

from __future__ import annotations

from typing import Any

import torch

from tilescope_kernels._shared.checks import FLOATING, use_triton
from tilescope_kernels._shared.one_byte import check_operands
from tilescope_kernels._shared.operators import operator, pack, unpack
from tilescope_kernels.matrix_products import scaled_matmul
from tilescope_kernels.matrix_products.bytes_product import bytes_product
from tilescope_kernels.spec import Config, Cost, Draw, Implementation, Workload, declare, drawn

CONFIGS = scaled_matmul.sweep(4)
SCALED_CONFIGS = scaled_matmul.sweep(2)


@operator("int8_matmul", fake=lambda a, b, _, __, dtype, ___: a.new_empty(a.shape[0], b.shape[0], dtype=dtype))
def _int8_matmul(
    a: torch.Tensor, b: torch.Tensor, scale_a: torch.Tensor | None, scale_b: torch.Tensor | None, dtype: torch.dtype, config: str,
) -> torch.Tensor:  # fmt: skip
    """Product of ``a`` (M, K) and ``b`` (N, K)."""
    c = torch.empty((a.shape[0], b.shape[0]), dtype=dtype, device=a.device)
    scales = (None, None) if scale_a is None or scale_b is None else (scale_a, scale_b)
    bytes_product(c, a, b, scales, True, unpack(config))
    return c


def int8_matmul(
    a: torch.Tensor, b: torch.Tensor, scale_a: torch.Tensor | None = None, scale_b: torch.Tensor | None = None, *,
    dtype: torch.dtype = torch.bfloat16, config: Config | None = None,
) -> torch.Tensor:  # fmt: skip
    """``a @ b`` of int8 matrices (M, K) and (K, N): exact in int32 or, with scales, in ``dtype`` (bf16, fp16, fp32).

    Both fp32 scales are scalars (), or ``scale_a`` is (M, 1) and ``scale_b`` (1, N). More than 131,071 products of -128 * -128
    overflow int32, as in ``torch._int_mm``. Operands without stride 1 along K are copied, so ``b`` should be
    ``weight.T``. Not differentiable. ``config`` is one of ``CONFIGS``, with scales of ``SCALED_CONFIGS``; by default the
    shapes choose. Raises ValueError, naming the argument, for what is not supported.
    """
    if dtype not in FLOATING:
        raise ValueError(f"dtype is {dtype}: give torch.bfloat16, torch.float16 or torch.float32")
    if (scale_a is None) != (scale_b is None):
        missing = "scale_a" if scale_a is None else "scale_b"
        raise ValueError(f"{missing} is None and the other scale is not: give both or neither")
    out = torch.int32 if scale_a is None else dtype
    if not use_triton():
        return reference(a, b, scale_a, scale_b).to(out)
    check_operands((torch.int8,), dims=2, a=a)
    check_operands((torch.int8,), dims=2, beside=a, b=b)
    (m, k), n = a.shape, b.shape[1]
    if b.shape[0] != k:
        raise ValueError(f"b has {b.shape[0]} rows but a has {k} columns: they must be equal")
    if scale_a is not None and scale_b is not None:
        check_operands((torch.float32,), beside=a, scale_a=scale_a, scale_b=scale_b)
        shapes = (tuple(scale_a.shape), tuple(scale_b.shape))
        if shapes not in (((), ()), ((m, 1), (1, n))):
            raise ValueError(
                f"scale_a and scale_b have shapes {shapes[0]} and {shapes[1]}: give () and (), or {(m, 1)} and {(1, n)}"
            )
        scale_a, scale_b = scale_a.contiguous(), scale_b.contiguous()
    if m == 0 or n == 0 or k == 0:
        return torch.zeros((m, n), dtype=out, device=a.device)
    a, columns = (t if t.stride(1) == 1 else t.contiguous() for t in (a, b.T))
    return _int8_matmul(a, columns, scale_a, scale_b, out, pack(config))


def reference(
    a: torch.Tensor, b: torch.Tensor, scale_a: torch.Tensor | None = None, scale_b: torch.Tensor | None = None
) -> torch.Tensor:
    """The reference in plain PyTorch, exact in fp64: int32 without scales, else bf16, or fp64 with fp64 scales."""
    product = a.double() @ b.double()
    if scale_a is None or scale_b is None:
        return product.to(torch.int32)
    scaled = product * scale_a.double() * scale_b.double()
    return scaled if scale_a.dtype == torch.float64 else scaled.bfloat16()


def eager(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """Operands converted to fp32, cuBLAS, result converted to int32: exact for sums below 2^24."""
    return (a.float() @ b.float()).to(torch.int32)


def cublas(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """cuBLAS, through ``torch._int_mm``."""
    return torch._int_mm(a, b)


def eager_rows(a: torch.Tensor, b: torch.Tensor, scale_a: torch.Tensor, scale_b: torch.Tensor) -> torch.Tensor:
    """Operands converted to bf16, which is exact, cuBLAS, then the scales."""
    return ((a.bfloat16() @ b.bfloat16()).float() * scale_a * scale_b).bfloat16()


def cublas_rows(a: torch.Tensor, b: torch.Tensor, scale_a: torch.Tensor, scale_b: torch.Tensor) -> torch.Tensor:
    """``torch._int_mm``, then the scales."""
    return (torch._int_mm(a, b).float() * scale_a * scale_b).bfloat16()


@drawn
def inputs(draw: Draw, m: int, n: int, k: int) -> dict[str, Any]:
    """``a`` (m, k) and ``b`` (k, n), the transpose of a weight (n, k): normal with standard deviation 25."""
    return {"a": draw(m, k, scale=25.0), "b": draw(n, k, scale=25.0).T}


@drawn
def row_inputs(draw: Draw, m: int, n: int, k: int) -> dict[str, Any]:
    """As ``inputs``, with scales between 0.01 and 0.02 for the rows of a and the columns of b."""
    scale_a, scale_b = draw.empty((m, 1)), draw.empty((1, n))
    if draw.numbers is not None:
        for scale in (scale_a, scale_b):
            scale.uniform_(0.01, 0.02, generator=draw.numbers)
    return {**inputs(draw.workload, draw.device), "scale_a": scale_a, "scale_b": scale_b}


def cost(workload: Workload, direction: str) -> Cost:
    """2MNK operations on tensor cores; both operands read once, the int32 result written once."""
    m, n, k = workload.dims.values()
    return Cost(flops=2 * m * n * k, bytes_read=m * k + k * n, bytes_written=4 * m * n, pipe="int8")


def row_cost(workload: Workload, direction: str) -> Cost:
    """As ``cost``, with scales read and a bf16 result."""
    m, n, k = workload.dims.values()
    read = m * k + k * n + 4 * (m + n)
    return Cost(flops=2 * m * n * k, bytes_read=read, bytes_written=2 * m * n, pipe="int8")


#: The ragged extents are the most irregular that torch._int_mm takes.
_SIZES = (
    "small 512x512x512-int8, medium 2048x2048x2048-int8, large 4096x4096x4096-int8, ragged 1023x520x776-int8, "
    "huge 8192x8192x8192-int8, empty 0x512x512-int8"
)

SPEC = declare(
    "int8_matmul", "INT8 a @ b, exact in INT32", "m n k", _SIZES, triton=Implementation(int8_matmul, "INT8 on tensor cores", CONFIGS),
    eager=Implementation(eager, "converted to fp32, then cuBLAS"), cublas=Implementation(cublas, "torch._int_mm"),
    reference=reference, inputs=inputs, cost=cost, tolerance={"int8": 0.0},
)  # fmt: skip

ROWS_SPEC = declare(
    "int8_matmul_rows", "INT8 a @ b with a scale a row and a column", "m n k", _SIZES,
    triton=Implementation(int8_matmul, "INT8 on tensor cores, scaled at the end", SCALED_CONFIGS),
    eager=Implementation(eager_rows, "converted to bf16, then cuBLAS, then the scales"),
    cublas=Implementation(cublas_rows, "torch._int_mm, then the scales"),
    reference=reference, inputs=row_inputs, cost=row_cost,
    tolerance={"int8": 6e-3},  # by rounding the result to bf16
)  # fmt: skip
