"""SwiGLU and GEGLU, ``activation(gate) * up`` in one pass, forward and backward, and the SwiGLU MLP.

Shazeer, "GLU Variants Improve Transformer", arXiv:2002.05202.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import torch
import torch.nn.functional as F
import triton
import triton.language as tl

from tilescope_kernels._shared.activations import activate, activate_with_derivative
from tilescope_kernels._shared.checks import check_alike, check_tensors, use_triton
from tilescope_kernels._shared.launching import BEYOND, cdiv, launch, multiprocessors
from tilescope_kernels._shared.operators import as_rows, operator, pack, shaped_as, unpack
from tilescope_kernels.spec import FORWARD, Config, Cost, Draw, Implementation, Workload, declare, drawn, peer


@triton.jit
def _forward_block(y_ptr, gate_ptr, up_ptr, offsets, mask, ACTIVATION: tl.constexpr):
    gate = tl.load(gate_ptr + offsets, mask=mask).to(tl.float32)
    up = tl.load(up_ptr + offsets, mask=mask).to(tl.float32)
    y = activate(gate, ACTIVATION) * up
    tl.store(y_ptr + offsets, y.to(y_ptr.dtype.element_ty), mask=mask)


@triton.jit
def gated_kernel(
    y_ptr, gate_ptr, up_ptr, gate_stride, up_stride, columns,
    ACTIVATION: tl.constexpr, FLAT: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """``activation(gate) * up`` of ``BLOCK`` columns of one row per program. Rows may be strided.

    ``FLAT`` tensors are a single row: without row strides the compiler knows that every block is 16-byte aligned.
    """
    blocks = tl.cdiv(columns, BLOCK)
    # Only the block's start needs 64 bits: 32-bit offsets within a block take half the registers.
    start = (tl.program_id(0) % blocks).to(tl.int64) * BLOCK
    if not FLAT:
        row = (tl.program_id(0) // blocks).to(tl.int64)
        y_ptr += row * columns
        gate_ptr += row * gate_stride
        up_ptr += row * up_stride
    y_ptr += start
    gate_ptr += start
    up_ptr += start
    offsets = tl.arange(0, BLOCK)
    # A mask whose end is no multiple of 16 bytes splits accesses into single elements: only the last block has one.
    if start + BLOCK <= columns:
        _forward_block(y_ptr, gate_ptr, up_ptr, offsets, None, ACTIVATION)
    else:
        _forward_block(y_ptr, gate_ptr, up_ptr, offsets, offsets < columns - start, ACTIVATION)


@triton.jit
def _backward_block(dgate_ptr, dup_ptr, dy_ptr, gate_ptr, up_ptr, offsets, mask, ACTIVATION: tl.constexpr):
    dy = tl.load(dy_ptr + offsets, mask=mask).to(tl.float32)
    gate = tl.load(gate_ptr + offsets, mask=mask).to(tl.float32)
    up = tl.load(up_ptr + offsets, mask=mask).to(tl.float32)
    activated, slope = activate_with_derivative(gate, ACTIVATION)
    tl.store(dgate_ptr + offsets, (dy * up * slope).to(dgate_ptr.dtype.element_ty), mask=mask)
    tl.store(dup_ptr + offsets, (dy * activated).to(dup_ptr.dtype.element_ty), mask=mask)


@triton.jit
def gated_backward_kernel(
    dgate_ptr, dup_ptr, dy_ptr, gate_ptr, up_ptr, gate_stride, up_stride, columns,
    ACTIVATION: tl.constexpr, FLAT: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """``dgate`` and ``dup`` in three reads and two writes: the activation is recomputed, not saved."""
    blocks = tl.cdiv(columns, BLOCK)
    start = (tl.program_id(0) % blocks).to(tl.int64) * BLOCK
    if not FLAT:
        row = (tl.program_id(0) // blocks).to(tl.int64)
        dgate_ptr += row * columns
        dup_ptr += row * columns
        dy_ptr += row * columns
        gate_ptr += row * gate_stride
        up_ptr += row * up_stride
    dgate_ptr += start
    dup_ptr += start
    dy_ptr += start
    gate_ptr += start
    up_ptr += start
    offsets = tl.arange(0, BLOCK)
    if start + BLOCK <= columns:
        _backward_block(dgate_ptr, dup_ptr, dy_ptr, gate_ptr, up_ptr, offsets, None, ACTIVATION)
    else:
        mask = offsets < columns - start
        _backward_block(dgate_ptr, dup_ptr, dy_ptr, gate_ptr, up_ptr, offsets, mask, ACTIVATION)


#: 2048 elements in 4 warps: two 16-byte accesses per thread and tensor at 16 bits, so 4 KB per tensor in flight per program.
CONFIGS = tuple(
    {"BLOCK": block, "num_warps": warps}
    for block, warps in ((2048, 4), (1024, 2), (1024, 4), (2048, 2), (2048, 8), (4096, 4), (4096, 8), (8192, 8))
)

#: Elements of the largest block.
_MOST_BLOCK = max(config["BLOCK"] for config in CONFIGS)

#: The kernels' codes of the activations.
_SILU, _GELU = 0, {"none": 1, "tanh": 2}


#: For small inputs, whose programs are all resident at once: more threads with fewer elements each hide latency.
_FEW = {"BLOCK": 1024, "num_warps": 8}


def _chosen(gate: torch.Tensor, config: str) -> Mapping[str, int]:
    """The requested config, or the fastest known."""
    few = gate.numel() <= 4 * _FEW["BLOCK"] * multiprocessors(gate)
    return unpack(config) or (_FEW if few else CONFIGS[0])


def _parts(*tensors: torch.Tensor) -> Iterable[tuple[torch.Tensor, ...]]:
    """The tensors, or halves of contiguous ones of nearly 2**31 elements, whose number of blocks would be negative in int32."""
    n = tensors[0].numel()
    if not BEYOND - _MOST_BLOCK < n < BEYOND or not all(tensor.is_contiguous() for tensor in tensors):
        return (tensors,)
    return zip(*(tensor.view(1, n).split(2**30, 1) for tensor in tensors), strict=True)


def _grid(gate: torch.Tensor, up: torch.Tensor, block: int) -> tuple[tuple[int], tuple[int, int, int], bool]:
    """The grid, (gate stride, up stride, columns), and whether both are contiguous and taken as one row."""
    rows, columns = gate.shape
    flat = gate.is_contiguous() and up.is_contiguous()
    if flat:
        rows, columns = 1, gate.numel()
    return (rows * cdiv(columns, block),), (gate.stride(0), up.stride(0), columns), flat


@operator("gated", autocast="widest", shards="ee e", fake=lambda gate, *_: gate.new_empty(gate.shape))
def _gated(gate: torch.Tensor, up: torch.Tensor, activation: int, config: str) -> torch.Tensor:
    y = torch.empty(gate.shape, dtype=gate.dtype, device=gate.device)
    if y.numel():
        chosen = _chosen(gate, config)
        for out, one, other in _parts(y, gate, up):
            grid, extents, flat = _grid(one, other, chosen["BLOCK"])
            launch(gated_kernel, grid, out, one, other, *extents, ACTIVATION=activation, FLAT=flat, **chosen)
    return y


@operator(
    "gated_backward",
    shards="eee ee",
    fake=lambda _, gate, *__: (gate.new_empty(gate.shape), gate.new_empty(gate.shape)),
)
def _gated_backward(
    dy: torch.Tensor, gate: torch.Tensor, up: torch.Tensor, activation: int, config: str
) -> tuple[torch.Tensor, torch.Tensor]:
    dgate, dup = (torch.empty(gate.shape, dtype=gate.dtype, device=gate.device) for _ in range(2))
    if dgate.numel():
        chosen = _chosen(gate, config)
        for *others, one, other in _parts(dgate, dup, dy, gate, up):
            grid, extents, flat = _grid(one, other, chosen["BLOCK"])
            launch(
                gated_backward_kernel, grid, *others, one, other, *extents, ACTIVATION=activation, FLAT=flat, **chosen
            )
    return dgate, dup


@_gated.gradient(lambda gate, up, *_: (gate, up))
def _differentiate(ctx: Any, dy: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    return _gated_backward(dy.contiguous(), *ctx.saved_tensors, *ctx.rest)


def _apply(gate: torch.Tensor, up: torch.Tensor, activation: int, config: Config | None) -> torch.Tensor:
    check_tensors(gate=gate, up=up)
    check_alike(gate=gate, up=up)
    columns = gate.shape[-1] if gate.dim() else 1
    return shaped_as(_gated(as_rows(gate, columns), as_rows(up, columns), activation, pack(config)), gate)


def swiglu(gate: torch.Tensor, up: torch.Tensor, *, config: Config | None = None) -> torch.Tensor:
    """``silu(gate) * up`` of two tensors of one shape (..., columns) and dtype (fp32, fp16, bf16); once differentiable.

    Computed in fp32 and rounded once. Rows may have any stride, so the two halves of a fused projection need no copy:
    ``swiglu(*projected.chunk(2, -1))``. The result is contiguous. ``config`` is one of ``CONFIGS``. Raises ValueError, naming
    the argument, for other dtypes, shapes that differ, and devices without CUDA.
    """
    if not use_triton():
        return swiglu_reference(gate, up)
    return _apply(gate, up, _SILU, config)


def geglu(
    gate: torch.Tensor, up: torch.Tensor, approximate: str = "tanh", *, config: Config | None = None
) -> torch.Tensor:
    """``gelu(gate, approximate) * up``, otherwise as ``swiglu``. ``approximate`` is ``"none"`` or ``"tanh"``."""
    if approximate not in _GELU:
        raise ValueError(f"approximate is {approximate!r}: give 'none' or 'tanh'")
    if not use_triton():
        return geglu_reference(gate, up, approximate)
    return _apply(gate, up, _GELU[approximate], config)


class SwiGLUMLP(torch.nn.Module):
    """``down(silu(gate(x)) * up(x))``: Llama's feed-forward block, with plain linear layers as projections.

    Parameters have the names of Hugging Face's ``LlamaMLP``, so that its state dict loads.
    """

    def __init__(
        self, columns: int, hidden: int, bias: bool = False, device: Any = None, dtype: torch.dtype | None = None
    ) -> None:
        super().__init__()
        self.gate_proj = torch.nn.Linear(columns, hidden, bias, device, dtype)
        self.up_proj = torch.nn.Linear(columns, hidden, bias, device, dtype)
        self.down_proj = torch.nn.Linear(hidden, columns, bias, device, dtype)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Apply the block to ``x`` (..., columns). Raises ValueError as ``swiglu`` does."""
        return self.down_proj(swiglu(self.gate_proj(x), self.up_proj(x)))


def swiglu_reference(gate: torch.Tensor, up: torch.Tensor) -> torch.Tensor:
    """The reference in plain PyTorch."""
    return F.silu(gate) * up


def geglu_reference(gate: torch.Tensor, up: torch.Tensor, approximate: str = "tanh") -> torch.Tensor:
    """The reference in plain PyTorch."""
    return F.gelu(gate, approximate=approximate) * up


def _spec(
    name: str, summary: str, function: Any, reference: Any, liger: str, operations: tuple[int, int], **more: str
) -> Any:
    """``operations`` are those per element of the activation, and those that its derivative adds. The function takes ``more``."""

    @drawn
    def inputs(draw: Draw, rows: int, columns: int) -> dict[str, Any]:
        """``gate`` and ``up`` of rows x columns, standard normal."""
        return {"gate": draw(rows, columns, grad=True), "up": draw(rows, columns, grad=True), **more}

    def cost(workload: Workload, direction: str) -> Cost:
        """Forward reads gate and up and writes y; backward reads dy, gate and up and writes dgate and dup.

        One multiplication joins gate and up, three distribute dy.
        """
        (activation, derivative), n, size = operations, workload.elements, workload.bytes
        if direction == FORWARD:
            return Cost(flops=(activation + 1) * n, bytes_read=2 * size, bytes_written=size)
        return Cost(flops=(activation + derivative + 3) * n, bytes_read=3 * size, bytes_written=2 * size)

    module = f"liger_kernel.ops.{name}:Liger{liger}Function.apply"
    return declare(
        name, summary, "rows columns",
        "small 128x1024-bf16, medium 2048x5632-bf16, large 8192x14336-bf16, ragged 1823x781-fp32",
        triton=Implementation(function, "one pass", CONFIGS),
        eager=Implementation(reference, f"{summary.split('(', maxsplit=1)[0]}, then the product"),
        liger=peer("liger-kernel", module, f"Liger-Kernel's {liger}", "gate", "up"),
        reference=reference, inputs=inputs, cost=cost, tolerance={"fp32": 2e-7, "fp16": 8e-4, "bf16": 6e-3},
        passes="forward backward",
    )  # fmt: skip


#: SiLU: negate, exponential, add, divide, multiply. Its derivative: two for the slope, two for the product rule.
SWIGLU = _spec("swiglu", "silu(gate) * up", swiglu, swiglu_reference, "SiLUMul", (5, 4))
#: GELU by tanh takes nine operations and its derivative eight more, as in ``gelu``.
GEGLU = _spec("geglu", "gelu(gate) * up, by tanh", geglu, geglu_reference, "GELUMul", (9, 8), approximate="tanh")
