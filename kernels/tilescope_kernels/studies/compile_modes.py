"""How much do torch.compile's modes speed up a feed-forward block with a fused kernel, and how long do they compile?

``MODES`` compares default, reduce-overhead (CUDA graphs) and max-autotune on one SwiGLU MLP. ``REGIONS`` compares a stack of
MLPs compiled as one graph with a layer compiled once and called for each: less to compile, fewer chances to fuse.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F

from tilescope_kernels.elementwise.gated import CONFIGS, swiglu, swiglu_reference
from tilescope_kernels.spec import Config, Cost, Draw, Implementation, Workload, compiled, declare, drawn


def _mlp(
    activated: Callable[..., torch.Tensor], x: torch.Tensor, gate: torch.Tensor, up: torch.Tensor, down: torch.Tensor
) -> torch.Tensor:
    """``SwiGLUMLP`` as a function of its three weights."""
    return F.linear(activated(F.linear(x, gate), F.linear(x, up)), down)


def fused_mlp(
    x: torch.Tensor, gate: torch.Tensor, up: torch.Tensor, down: torch.Tensor, config: Config | None = None
) -> torch.Tensor:
    """``down(swiglu(gate(x), up(x)))`` with the Triton kernel between cuBLAS's products.

    ``x`` (tokens, columns), ``gate`` and ``up`` (hidden, columns), ``down`` (columns, hidden). ``config`` is the kernel's.
    """
    return _mlp(functools.partial(swiglu, config=config), x, gate, up, down)


def plain_mlp(x: torch.Tensor, gate: torch.Tensor, up: torch.Tensor, down: torch.Tensor) -> torch.Tensor:
    """The reference in plain PyTorch."""
    return _mlp(swiglu_reference, x, gate, up, down)


def _stack(
    layer: Callable[..., torch.Tensor], x: torch.Tensor, gate: torch.Tensor, up: torch.Tensor, down: torch.Tensor
) -> torch.Tensor:
    for weights in zip(gate, up, down, strict=True):
        x = x + layer(F.rms_norm(x, x.shape[-1:]), *weights)
    return x


def fused_stack(
    x: torch.Tensor, gate: torch.Tensor, up: torch.Tensor, down: torch.Tensor, config: Config | None = None
) -> torch.Tensor:
    """``x = x + mlp(rms_norm(x))`` for every layer. Weights are as for ``fused_mlp``, with a leading dimension of layers."""
    return _stack(functools.partial(fused_mlp, config=config), x, gate, up, down)


def plain_stack(x: torch.Tensor, gate: torch.Tensor, up: torch.Tensor, down: torch.Tensor) -> torch.Tensor:
    """The reference in plain PyTorch."""
    return _stack(plain_mlp, x, gate, up, down)


def _residual(x: torch.Tensor, gate: torch.Tensor, up: torch.Tensor, down: torch.Tensor) -> torch.Tensor:
    return x + fused_mlp(F.rms_norm(x, x.shape[-1:]), gate, up, down)


_layer = compiled(_residual)


def regional_stack(x: torch.Tensor, gate: torch.Tensor, up: torch.Tensor, down: torch.Tensor) -> torch.Tensor:
    """Compile one layer and call it for each. All have the same shapes, so it compiles once."""
    for weights in zip(gate, up, down, strict=True):
        x = _layer(x, *weights)
    return x


@drawn
def inputs(draw: Draw, tokens: int, columns: int, hidden: int, *layers: int) -> dict[str, Any]:
    """``x`` (tokens, columns), standard normal, and weights that preserve its variance, for every layer if there are several."""

    def weight(rows: int, inner: int) -> torch.Tensor:
        return draw(*layers, rows, inner, scale=1.0 / math.sqrt(max(1, inner)))

    x, gate, up = draw(tokens, columns), weight(hidden, columns), weight(hidden, columns)
    return {"x": x, "gate": gate, "up": up, "down": weight(columns, hidden)}


def _cost(workload: Workload, layers: int, residual: int) -> Cost:
    tokens, columns, hidden, *_ = workload.dims.values()
    # Three products, and SiLU and a multiplication per hidden element between them.
    flops = layers * tokens * (6 * columns * hidden + 6 * hidden + residual * columns)
    read, size = tokens * columns + 3 * layers * columns * hidden, workload.itemsize
    return Cost(flops, read * size, tokens * columns * size, workload.pipe)


def mlp_cost(workload: Workload, direction: str) -> Cost:
    """Reads x and three weights and writes the result. Intermediate tensors are not counted."""
    return _cost(workload, 1, 0)


def stack_cost(workload: Workload, direction: str) -> Cost:
    """As ``mlp_cost``, for every layer, plus four operations per element for RMSNorm and one for the residual addition."""
    return _cost(workload, workload.dims["layers"], 5)


TOLERANCE = {"fp32": 2e-6, "fp16": 2e-3, "bf16": 1.4e-2}

#: Modes that replay a CUDA graph.
_GRAPHS = {
    "reduce-overhead": "fused kernel, replayed as a CUDA graph",
    "max-autotune": "fused kernel, products autotuned, CUDA graph",
}
MODES = declare(
    "mlp_compile_modes", "the modes of torch.compile on a SwiGLU MLP with a fused kernel", "tokens columns hidden",
    "small 16x1024x2816-bf16, medium 512x2048x5632-bf16, large 8192x4096x14336-bf16, ragged 517x769x1023-fp16",
    triton=Implementation(fused_mlp, "fused kernel, not compiled", CONFIGS),
    eager=Implementation(plain_mlp, "silu and product apart, not compiled"),
    compile=Implementation(compiled(plain_mlp), "torch.compile of eager"),
    default=Implementation(compiled(fused_mlp), "fused kernel, torch.compile's default mode"),
    **{mode: Implementation(compiled(fused_mlp, mode), summary) for mode, summary in _GRAPHS.items()},
    reference=plain_mlp, inputs=inputs, cost=mlp_cost, tolerance=TOLERANCE,
)  # fmt: skip

REGIONS = declare(
    "mlp_compile_regions", "SwiGLU MLPs compiled as one graph against one layer at a time",
    "tokens columns hidden layers",
    "small 16x1024x2816x8-bf16, medium 512x2048x5632x16-bf16, large 4096x4096x14336x16-bf16, ragged 517x769x1023x3-fp16",
    triton=Implementation(fused_stack, "fused kernel, not compiled", CONFIGS),
    eager=Implementation(plain_stack, "silu and product apart, not compiled"),
    compile=Implementation(compiled(fused_stack), "fused kernel, all layers compiled as one graph"),
    regional=Implementation(regional_stack, "fused kernel, one layer compiled and called for each"),
    reference=plain_stack, inputs=inputs, cost=stack_cost,
    # Errors accumulate over the layers.
    tolerance={"fp32": 2e-6, "fp16": 2.5e-3, "bf16": 3e-2},
)  # fmt: skip
