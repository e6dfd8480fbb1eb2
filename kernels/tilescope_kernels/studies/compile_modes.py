"""How much do torch.compile's modes speed up a feed-forward block with a fused kernel, and how long do they compile?

``MODES`` compares default, reduce-overhead (CUDA graphs) and max-autotune on one SwiGLU MLP. ``REGIONS`` compares a stack of
MLPs compiled as one graph with a layer compiled once and called for each: less to compile, fewer chances to fuse.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Mapping
from typing import Any

import torch
import torch.nn.functional as F

from tilescope_kernels._shared.declarations import generator, normal
from tilescope_kernels.elementwise.gated import CONFIGS, swiglu, swiglu_reference
from tilescope_kernels.spec import Cost, Implementation, KernelSpec, Workload


def _mlp(
    activated: Callable[..., torch.Tensor], x: torch.Tensor, gate: torch.Tensor, up: torch.Tensor, down: torch.Tensor
) -> torch.Tensor:
    """``SwiGLUMLP`` as a function of its three weights."""
    return F.linear(activated(F.linear(x, gate), F.linear(x, up)), down)


def fused_mlp(
    x: torch.Tensor, gate: torch.Tensor, up: torch.Tensor, down: torch.Tensor, config: Mapping[str, int] | None = None
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
    x: torch.Tensor, gate: torch.Tensor, up: torch.Tensor, down: torch.Tensor, config: Mapping[str, int] | None = None
) -> torch.Tensor:
    """``x = x + mlp(rms_norm(x))`` for every layer. Weights are as for ``fused_mlp``, with a leading dimension of layers."""
    return _stack(functools.partial(fused_mlp, config=config), x, gate, up, down)


def plain_stack(x: torch.Tensor, gate: torch.Tensor, up: torch.Tensor, down: torch.Tensor) -> torch.Tensor:
    """The reference in plain PyTorch."""
    return _stack(plain_mlp, x, gate, up, down)


def _residual(x: torch.Tensor, gate: torch.Tensor, up: torch.Tensor, down: torch.Tensor) -> torch.Tensor:
    return x + fused_mlp(F.rms_norm(x, x.shape[-1:]), gate, up, down)


def _mode(function: Callable[..., torch.Tensor], mode: str) -> Callable[..., torch.Tensor]:
    """``torch.compile(function, mode=mode)`` with static shapes, built at the first call, because importing dynamo takes seconds."""

    @functools.cache
    def build() -> Callable[..., torch.Tensor]:
        import torch._dynamo  # noqa: PLC0415 (see above)

        # Every workload recompiles. Beyond its default limit of 8, dynamo would silently run eager code; with fullgraph it
        # raises an error instead.
        torch._dynamo.config.recompile_limit = max(torch._dynamo.config.recompile_limit, 64)
        return torch.compile(function, mode=mode, dynamic=False, fullgraph=True)

    def call(x: torch.Tensor, gate: torch.Tensor, up: torch.Tensor, down: torch.Tensor) -> torch.Tensor:
        return build()(x, gate, up, down)

    return call


_layer = _mode(_residual, "default")


def regional_stack(x: torch.Tensor, gate: torch.Tensor, up: torch.Tensor, down: torch.Tensor) -> torch.Tensor:
    """Compile one layer and call it for each. All have the same shapes, so it compiles once."""
    for weights in zip(gate, up, down, strict=True):
        x = _layer(x, *weights)
    return x


def _drawn(workload: Workload, device: Any, leading: tuple[int, ...]) -> dict[str, Any]:
    numbers = generator(workload, device)
    tokens, columns, hidden = (workload.dims[name] for name in ("tokens", "columns", "hidden"))

    def weight(rows: int, inner: int) -> torch.Tensor:
        return normal((*leading, rows, inner), workload, device, numbers, scale=1.0 / math.sqrt(max(1, inner)))

    return {
        "x": normal((tokens, columns), workload, device, numbers),
        "gate": weight(hidden, columns),
        "up": weight(hidden, columns),
        "down": weight(columns, hidden),
    }


def mlp_inputs(workload: Workload, device: Any) -> dict[str, Any]:
    """``x`` (tokens, columns), standard normal, and weights that preserve its variance."""
    return _drawn(workload, device, ())


def stack_inputs(workload: Workload, device: Any) -> dict[str, Any]:
    """As ``mlp_inputs``, with weights for every layer."""
    return _drawn(workload, device, (workload.dims["layers"],))


def _cost(workload: Workload, layers: int, residual: int) -> Cost:
    tokens, columns, hidden = (workload.dims[name] for name in ("tokens", "columns", "hidden"))
    # Three products, and SiLU and a multiplication per hidden element between them.
    flops = layers * tokens * (6 * columns * hidden + 6 * hidden + residual * columns)
    size = workload.itemsize
    return Cost(
        flops=flops,
        bytes_read=(tokens * columns + 3 * layers * columns * hidden) * size,
        bytes_written=tokens * columns * size,
        pipe=workload.dtype if workload.dtype in ("bf16", "fp16") else "fp32",
    )


def mlp_cost(workload: Workload, direction: str) -> Cost:
    """Reads x and three weights and writes the result. Intermediate tensors are not counted."""
    return _cost(workload, 1, 0)


def stack_cost(workload: Workload, direction: str) -> Cost:
    """As ``mlp_cost``, for every layer, plus four operations per element for RMSNorm and one for the residual addition."""
    return _cost(workload, workload.dims["layers"], 5)


TOLERANCE = {"fp32": 2e-6, "fp16": 2e-3, "bf16": 1.4e-2}

MODES = KernelSpec(
    name="mlp_compile_modes",
    summary="the modes of torch.compile on a SwiGLU MLP with a fused kernel",
    dims=("tokens", "columns", "hidden"),
    implementations={
        "triton": Implementation(fused_mlp, "fused kernel, not compiled", CONFIGS),
        "eager": Implementation(plain_mlp, "silu and product apart, not compiled"),
        "compile": Implementation(_mode(plain_mlp, "default"), "torch.compile of eager"),
        "default": Implementation(_mode(fused_mlp, "default"), "fused kernel, torch.compile's default mode"),
        "reduce-overhead": Implementation(
            _mode(fused_mlp, "reduce-overhead"), "fused kernel, replayed as a CUDA graph"
        ),
        "max-autotune": Implementation(
            _mode(fused_mlp, "max-autotune"), "fused kernel, products autotuned, CUDA graph"
        ),
    },
    reference=plain_mlp,
    inputs=mlp_inputs,
    workloads=(
        Workload({"tokens": 16, "columns": 1024, "hidden": 2816}, "bf16", label="small"),
        Workload({"tokens": 512, "columns": 2048, "hidden": 5632}, "bf16", label="medium"),
        Workload({"tokens": 8192, "columns": 4096, "hidden": 14336}, "bf16", label="large"),
        Workload({"tokens": 517, "columns": 769, "hidden": 1023}, "fp16", label="ragged"),
    ),
    cost=mlp_cost,
    tolerance=TOLERANCE,
)

REGIONS = KernelSpec(
    name="mlp_compile_regions",
    summary="SwiGLU MLPs compiled as one graph against one layer at a time",
    dims=("tokens", "columns", "hidden", "layers"),
    implementations={
        "triton": Implementation(fused_stack, "fused kernel, not compiled", CONFIGS),
        "eager": Implementation(plain_stack, "silu and product apart, not compiled"),
        "compile": Implementation(_mode(fused_stack, "default"), "fused kernel, all layers compiled as one graph"),
        "regional": Implementation(regional_stack, "fused kernel, one layer compiled and called for each"),
    },
    reference=plain_stack,
    inputs=stack_inputs,
    workloads=(
        Workload({"tokens": 16, "columns": 1024, "hidden": 2816, "layers": 8}, "bf16", label="small"),
        Workload({"tokens": 512, "columns": 2048, "hidden": 5632, "layers": 16}, "bf16", label="medium"),
        Workload({"tokens": 4096, "columns": 4096, "hidden": 14336, "layers": 16}, "bf16", label="large"),
        Workload({"tokens": 517, "columns": 769, "hidden": 1023, "layers": 3}, "fp16", label="ragged"),
    ),
    cost=stack_cost,
    # Errors accumulate over the layers.
    tolerance={"fp32": 2e-6, "fp16": 2.5e-3, "bf16": 3e-2},
)
