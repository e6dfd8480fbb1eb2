"""LayerNorm into a linear layer, and RMSNorm through GELU into a linear layer. Their gradients: ``norm_linear_gradients``.

The norm runs before cuBLAS's product. Normalizing tiles in the product's main loop costs more than writing the normalized rows and reading
them back, because every tile of columns repeats it between shared memory and tensor cores.
"""

from __future__ import annotations

import math
from typing import Any

import torch
import torch.nn.functional as F

from tilescope_kernels._shared.checks import check_tensors, use_triton
from tilescope_kernels._shared.operators import as_rows, operator, pack, unpack
from tilescope_kernels.norms.norm_linear_gradients import differentiate_layer_norm, differentiate_rms_norm, normed_rows
from tilescope_kernels.spec import FORWARD, Config, Cost, Draw, Implementation, Workload, declare, drawn

#: The norm's warps.
CONFIGS = tuple({"num_warps": warps} for warps in (4, 8, 16))
#: Bytes of the longest row, which stays in registers between its statistics and its use.
_HELD = 131072


def _product_of_normed(
    x: torch.Tensor, norm_weight: torch.Tensor | None, norm_bias: torch.Tensor | None, weight: torch.Tensor,
    bias: torch.Tensor | None, eps: float, rms_gelu: bool, config: str,
) -> torch.Tensor:  # fmt: skip
    """The result (M, N) of x (M, K), with stride 1 along K, and weight (N, K)."""
    if x.shape[0] == 0 or weight.shape[0] == 0:
        return x.new_empty(x.shape[0], weight.shape[0])
    normed = normed_rows(x, norm_weight, norm_bias, eps, rms_gelu, **(unpack(config) or {}))
    return torch.mm(normed, weight.T) if bias is None else torch.addmm(bias, normed, weight.T)


@operator(
    "layer_norm_linear", autocast="lower", fake=lambda x, _, __, weight, *___: x.new_empty(x.shape[0], weight.shape[0])
)
def _layer_norm_linear(
    x: torch.Tensor, norm_weight: torch.Tensor | None, norm_bias: torch.Tensor | None, weight: torch.Tensor,
    bias: torch.Tensor | None, eps: float, config: str,
) -> torch.Tensor:  # fmt: skip
    return _product_of_normed(x, norm_weight, norm_bias, weight, bias, eps, False, config)


_layer_norm_linear.gradient(lambda *arguments: arguments[:4])(differentiate_layer_norm)


@operator(
    "rms_norm_gelu_linear", autocast="lower", fake=lambda x, _, weight, *__: x.new_empty(x.shape[0], weight.shape[0])
)
def _rms_norm_gelu_linear(
    x: torch.Tensor, norm_weight: torch.Tensor | None, weight: torch.Tensor, bias: torch.Tensor | None, eps: float,
    config: str,
) -> torch.Tensor:  # fmt: skip
    return _product_of_normed(x, norm_weight, None, weight, bias, eps, True, config)


_rms_norm_gelu_linear.gradient(lambda *arguments: arguments[:3])(differentiate_rms_norm)


def _check(weight: torch.Tensor, bias: torch.Tensor | None, **others: torch.Tensor | None) -> int:
    """Check the arguments of both functions and return the columns of x. ``others`` are x and the norm's parameters."""
    check_tensors(**others, weight=weight, bias=bias)
    x = others["x"]
    if x is None or x.dim() == 0:
        raise ValueError("x has no dimension: give (..., columns)")
    columns = x.shape[-1]
    if weight.dim() != 2 or weight.shape[1] != columns:
        raise ValueError(f"weight has shape {tuple(weight.shape)}: give (columns out, {columns}) beside this x")
    for name, tensor in others.items():
        if name != "x" and tensor is not None and tuple(tensor.shape) != (columns,):
            raise ValueError(f"{name} has shape {tuple(tensor.shape)}: give one number a column of x, ({columns},)")
    if bias is not None and bias.shape != weight.shape[:1]:
        raise ValueError(f"bias has shape {tuple(bias.shape)}: give one number a row of weight, ({weight.shape[0]},)")
    if columns * x.element_size() > _HELD or columns == 0:
        raise ValueError(f"x has {columns} columns: give 1 to {_HELD // x.element_size()} of {x.dtype}")
    return columns


def _packed(tensor: torch.Tensor | None) -> torch.Tensor | None:
    return None if tensor is None else tensor.contiguous()


def layer_norm_linear(
    x: torch.Tensor, norm_weight: torch.Tensor | None, norm_bias: torch.Tensor | None, weight: torch.Tensor,
    bias: torch.Tensor | None = None, eps: float = 1e-5, *, config: Config | None = None,
) -> torch.Tensor:  # fmt: skip
    """``linear(layer_norm(x), weight, bias)`` of x (..., columns), over the last dimension; once differentiable.

    ``norm_weight`` and ``norm_bias`` (columns) and ``bias`` (columns out) may be None; ``weight`` is (columns out,
    columns). All have one dtype (fp32, fp16, bf16). Products accumulate in fp32; those of fp32 by cuBLAS follow PyTorch's
    tf32 settings. ``config`` is one of ``CONFIGS``. Raises ValueError, naming the argument, for other dtypes, shapes that do
    not fit, rows of more than 128 KB, and devices without CUDA.
    """
    if not use_triton():
        return layer_norm_reference(x, norm_weight, norm_bias, weight, bias, eps)
    columns = _check(weight, bias, x=x, norm_weight=norm_weight, norm_bias=norm_bias)
    packed = [_packed(tensor) for tensor in (norm_weight, norm_bias, weight, bias)]
    y = _layer_norm_linear(as_rows(x, columns), *packed, eps, pack(config))
    return y.reshape(*x.shape[:-1], weight.shape[0])


def rms_norm_gelu_linear(
    x: torch.Tensor, norm_weight: torch.Tensor | None, weight: torch.Tensor, bias: torch.Tensor | None = None,
    eps: float | None = None, *, config: Config | None = None,
) -> torch.Tensor:  # fmt: skip
    """``linear(gelu(rms_norm(x)), weight, bias)``, with GELU by the error function; otherwise as ``layer_norm_linear``.

    ``eps`` is fp32's machine epsilon by default. ``config`` is one of ``CONFIGS``. The product is cuBLAS's.
    """
    if not use_triton():
        return gelu_reference(x, norm_weight, weight, bias, eps)
    columns = _check(weight, bias, x=x, norm_weight=norm_weight)
    eps = torch.finfo(torch.float32).eps if eps is None else eps
    y = _rms_norm_gelu_linear(as_rows(x, columns), _packed(norm_weight), weight, bias, eps, pack(config))
    return y.reshape(*x.shape[:-1], weight.shape[0])


def layer_norm_reference(
    x: torch.Tensor, norm_weight: torch.Tensor | None, norm_bias: torch.Tensor | None, weight: torch.Tensor,
    bias: torch.Tensor | None = None, eps: float = 1e-5,
) -> torch.Tensor:  # fmt: skip
    """The reference in plain PyTorch."""
    return F.linear(F.layer_norm(x, x.shape[-1:], norm_weight, norm_bias, eps), weight, bias)


def gelu_reference(
    x: torch.Tensor, norm_weight: torch.Tensor | None, weight: torch.Tensor, bias: torch.Tensor | None = None,
    eps: float | None = None,
) -> torch.Tensor:  # fmt: skip
    """The reference in plain PyTorch."""
    return F.linear(F.gelu(F.rms_norm(x, x.shape[-1:], norm_weight, eps)), weight, bias)


@drawn
def layer_norm_inputs(draw: Draw, m: int, n: int, k: int) -> dict[str, Any]:
    """``x`` (m, k), a norm weight around 1 and a norm bias, ``weight`` (n, k) that preserves the variance, and ``bias``."""
    x, norm_weight = draw(m, k, grad=True), draw(k, scale=0.2, shift=1.0, grad=True)
    norm = {"norm_weight": norm_weight, "norm_bias": draw(k, scale=0.2, grad=True)}
    weight = draw(n, k, scale=1.0 / math.sqrt(max(1, k)), grad=True)
    return {"x": x, **norm, "weight": weight, "bias": draw(n, grad=True), "eps": 1e-5}


def gelu_inputs(workload: Workload, device: Any) -> dict[str, Any]:
    """As ``layer_norm_inputs``, without the norm's bias."""
    drawn = layer_norm_inputs(workload, device)
    return {name: value for name, value in drawn.items() if name != "norm_bias"}


def _cost(workload: Workload, direction: str, norm: int, vectors: int) -> Cost:
    """2MNK operations per product (backward has two), MN for the bias or its gradient, and ``norm`` per element of x.

    The norm has ``vectors`` parameters of K elements.
    """
    m, n, k = workload.dims.values()
    operands, result, rest = m * k + n * k + vectors * k, m * n, m * n + norm * m * k
    products, read, written = (1, n, result) if direction == FORWARD else (2, result, operands + n)
    size, flops = workload.itemsize, products * 2 * m * n * k + rest
    return Cost(flops, (operands + read) * size, written * size, workload.pipe)


def layer_norm_cost(workload: Workload, direction: str) -> Cost:
    """LayerNorm takes 7 operations per element forward and 13 backward, as in ``layer_norm``."""
    return _cost(workload, direction, 7 if direction == FORWARD else 13, 2)


def gelu_cost(workload: Workload, direction: str) -> Cost:
    """RMSNorm takes 4 operations per element forward and 9 backward, as in ``rms_norm``, and GELU by the error function 5.

    Backward recomputes GELU (5, and one for its argument), and takes 4 for the derivative of the error function and 3 for
    the product rule and dy.
    """
    return _cost(workload, direction, 9 if direction == FORWARD else 22, 1)


TOLERANCE = {"fp32": 1e-5, "fp16": 9e-4, "bf16": 7e-3}

LAYER_NORM_LINEAR = declare(
    "layer_norm_linear", "linear(layer_norm(x))", "m n k",
    "small 512x128x512-bf16, medium 2048x2048x2048-bf16, large 16384x4096x4096-bf16, ragged 517x769x1023-fp16, "
    "narrow 32768x1024x4096-bf16, broad 4096x14336x4096-bf16, empty 0x1024x1024-bf16",
    triton=Implementation(layer_norm_linear, "the norm in one pass, then cuBLAS", CONFIGS),
    eager=Implementation(layer_norm_reference, "layer_norm, then linear (cuBLAS)"),
    reference=layer_norm_reference, inputs=layer_norm_inputs, cost=layer_norm_cost, tolerance=TOLERANCE,
    passes="forward backward",
)  # fmt: skip

RMS_NORM_GELU_LINEAR = declare(
    "rms_norm_gelu_linear", "linear(gelu(rms_norm(x)))", "m n k",
    "small 512x128x512-bf16, medium 2048x2048x2048-bf16, large 16384x4096x4096-bf16, ragged 517x769x1023-fp16, "
    "narrow 32768x1024x4096-bf16, broad 4096x14336x4096-bf16, empty 0x1024x1024-bf16",
    triton=Implementation(rms_norm_gelu_linear, "norm and GELU in one pass, then cuBLAS", CONFIGS),
    eager=Implementation(gelu_reference, "rms_norm, gelu, then linear (cuBLAS)"),
    reference=gelu_reference, inputs=gelu_inputs, cost=gelu_cost, tolerance=TOLERANCE, passes="forward backward",
)  # fmt: skip
