"""GELU, exact and by tanh, forward and backward, in one pass each.

Hendrycks and Gimpel, "Gaussian Error Linear Units", arXiv:1606.08415.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import torch
import torch.nn.functional as F
import triton
import triton.language as tl

from tilescope_kernels._shared.activations import activate, activate_with_derivative
from tilescope_kernels._shared.checks import check_tensors, use_triton
from tilescope_kernels._shared.launching import cdiv, launch, multiprocessors
from tilescope_kernels._shared.operators import operator, pack, unpack
from tilescope_kernels.spec import FORWARD, Config, Cost, Draw, Implementation, Workload, declare, drawn


@triton.jit
def _forward_block(y_ptr, x_ptr, offsets, mask, ACTIVATION: tl.constexpr):
    x = tl.load(x_ptr + offsets, mask=mask).to(tl.float32)
    tl.store(y_ptr + offsets, activate(x, ACTIVATION).to(y_ptr.dtype.element_ty), mask=mask)


@triton.jit
def gelu_kernel(y_ptr, x_ptr, n, ACTIVATION: tl.constexpr, BLOCK: tl.constexpr):
    """GELU of ``BLOCK`` of ``n`` contiguous elements per program, computed in fp32."""
    # Only the block's start needs 64 bits: 32-bit offsets within a block take half the registers.
    start = tl.program_id(0).to(tl.int64) * BLOCK
    offsets = tl.arange(0, BLOCK)
    # A mask whose end is no multiple of 16 bytes splits accesses into single elements: only the last block has one.
    if start + BLOCK <= n:
        _forward_block(y_ptr + start, x_ptr + start, offsets, None, ACTIVATION)
    else:
        _forward_block(y_ptr + start, x_ptr + start, offsets, offsets < n - start, ACTIVATION)


@triton.jit
def _backward_block(dx_ptr, dy_ptr, x_ptr, offsets, mask, ACTIVATION: tl.constexpr):
    dy = tl.load(dy_ptr + offsets, mask=mask).to(tl.float32)
    x = tl.load(x_ptr + offsets, mask=mask).to(tl.float32)
    _, slope = activate_with_derivative(x, ACTIVATION)
    tl.store(dx_ptr + offsets, (dy * slope).to(dx_ptr.dtype.element_ty), mask=mask)


@triton.jit
def gelu_backward_kernel(dx_ptr, dy_ptr, x_ptr, n, ACTIVATION: tl.constexpr, BLOCK: tl.constexpr):
    """``dx = dy * gelu'(x)`` of ``BLOCK`` of ``n`` contiguous elements per program."""
    start = tl.program_id(0).to(tl.int64) * BLOCK
    offsets = tl.arange(0, BLOCK)
    if start + BLOCK <= n:
        _backward_block(dx_ptr + start, dy_ptr + start, x_ptr + start, offsets, None, ACTIVATION)
    else:
        _backward_block(dx_ptr + start, dy_ptr + start, x_ptr + start, offsets, offsets < n - start, ACTIVATION)


#: 2048 elements in 4 warps: two 16-byte accesses per thread and tensor at 16 bits, so 4 KB per tensor in flight per program.
CONFIGS = tuple(
    {"BLOCK": block, "num_warps": warps}
    for block, warps in ((2048, 4), (1024, 2), (1024, 4), (2048, 2), (2048, 8), (4096, 4), (4096, 8), (8192, 8))
)

#: The config where every program has an SM to itself.
_FEW = {"BLOCK": 512, "num_warps": 4}

#: Values of ``approximate``, and the kernels' codes of the activations.
APPROXIMATE = {"none": 1, "tanh": 2}


def _default(x: torch.Tensor) -> Mapping[str, int]:
    return _FEW if x.numel() <= 2048 * multiprocessors(x) else CONFIGS[0]


@operator("gelu", shards="e e", fake=lambda x, *_: torch.empty_like(x))
def _gelu(x: torch.Tensor, activation: int, config: str) -> torch.Tensor:
    y = x.new_empty(x.shape)
    if n := y.numel():
        chosen = unpack(config) or _default(x)
        launch(gelu_kernel, (cdiv(n, chosen["BLOCK"]),), y, x, n, ACTIVATION=activation, **chosen)
    return y


@operator("gelu_backward", shards="ee e", fake=lambda _, x, *__: torch.empty_like(x))
def _gelu_backward(dy: torch.Tensor, x: torch.Tensor, activation: int, config: str) -> torch.Tensor:
    dx = x.new_empty(x.shape)
    if n := dx.numel():
        chosen = unpack(config) or _default(x)
        launch(gelu_backward_kernel, (cdiv(n, chosen["BLOCK"]),), dx, dy, x, n, ACTIVATION=activation, **chosen)
    return dx


@_gelu.gradient(lambda x, *_: (x,))
def _differentiate(ctx: Any, dy: torch.Tensor) -> torch.Tensor:
    return _gelu_backward(dy.contiguous(), *ctx.saved_tensors, *ctx.rest)


def gelu(x: torch.Tensor, approximate: str = "none", *, config: Config | None = None) -> torch.Tensor:
    """GELU of ``x`` (fp32, fp16, bf16; any shape and strides), computed in fp32; once differentiable.

    As ``torch.nn.functional.gelu``, including infinities and NaN: ``approximate`` is ``"none"`` (by the error function) or
    ``"tanh"``. The result is contiguous. ``config`` is one of ``CONFIGS``. Raises ValueError, naming the argument, for other
    dtypes and devices without CUDA.
    """
    if approximate not in APPROXIMATE:
        raise ValueError(f"approximate is {approximate!r}: give 'none' or 'tanh'")
    if not use_triton():
        return reference(x, approximate)
    check_tensors(x=x)
    return _gelu(x.contiguous(), APPROXIMATE[approximate], pack(config))


def reference(x: torch.Tensor, approximate: str = "none") -> torch.Tensor:
    """The reference in plain PyTorch."""
    return F.gelu(x, approximate=approximate)


def eager(x: torch.Tensor, approximate: str) -> torch.Tensor:
    """The formula one operation at a time, as GPT-2's code writes it."""
    if approximate == "none":
        return 0.5 * x * (1.0 + torch.erf(x * math.sqrt(0.5)))
    return 0.5 * x * (1.0 + torch.tanh(math.sqrt(2.0 / math.pi) * (x + 0.044715 * torch.pow(x, 3.0))))


@drawn
def inputs(draw: Draw, n: int) -> dict[str, Any]:
    """``x`` of ``n`` elements, standard normal, and the tanh approximation, which most models use."""
    x = draw(n, grad=True)
    return {"x": x, "approximate": "tanh"}


def cost(workload: Workload, direction: str) -> Cost:
    """Forward reads x and writes y; backward reads dy and x and writes dx.

    Operations per element, by tanh: forward, four for u's polynomial, one to scale it, two for the logistic function's
    exponential and sum, one division, one multiplication by x. Backward: the same without the last, two for
    gate * (1 - gate), four for u', two for the product rule, one for dy.
    """
    n, size = workload.elements, workload.bytes
    if direction == FORWARD:
        return Cost(flops=9 * n, bytes_read=size, bytes_written=size)
    return Cost(flops=17 * n, bytes_read=2 * size, bytes_written=size)


SPEC = declare(
    "gelu", "GELU by tanh", "n",
    "small 65536-bf16, medium 16777216-bf16, large 67108864-bf16, ragged 1423763-bf16, large-fp32 67108864-fp32",
    triton=Implementation(gelu, "one pass", CONFIGS),
    eager=Implementation(eager, "the formula one operation at a time"),
    aten=Implementation(reference, "torch.nn.functional.gelu"),
    reference=reference, inputs=inputs, cost=cost, tolerance={"fp32": 1e-6, "fp16": 8e-4, "bf16": 6e-3},
    passes="forward backward",
)  # fmt: skip
