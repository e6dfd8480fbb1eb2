"""LayerNorm into a linear layer, and RMSNorm through GELU into a linear layer. Their gradients: ``norm_linear_gradients``.

Fusion saves little here: at 8192 x 4096 into 4096 columns, writing the normalized rows and reading them back takes a twelfth
of the product's time. Normalizing tiles in the product's main loop costs more than that, because every tile of columns repeats
it between shared memory and tensor cores. So:

- LayerNorm is linear apart from two numbers per row, and can move to the product's epilogue:
  ``LN(x) @ W.T = rstd * (x @ (W * g).T - mean * (W @ g)) + W @ b``. A pass over x for the statistics and one over W for
  ``W * g`` replace the pass that reads and writes x: less traffic if x has more than twice the rows of W. The normalized rows
  are not rounded to 16 bits. ``W * g`` is, but W @ g is summed after the rounding, so the mean cancels up to the error of that
  sum. For other shapes the norm runs before cuBLAS's product.
- GELU is not linear, so RMSNorm and GELU run before the product, in chunks of rows that can stay in L2 for it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import torch
import torch.nn.functional as F
from triton.tools.tensor_descriptor import TensorDescriptor

from tilescope_kernels._shared.checks import check_tensors, use_triton
from tilescope_kernels._shared.launching import cdiv, launch, multiprocessors, next_power_of_2
from tilescope_kernels._shared.operators import as_rows, operator, pack, unpack
from tilescope_kernels._shared.reach import is_far
from tilescope_kernels.norms.norm_linear_gradients import differentiate_layer_norm, differentiate_rms_norm
from tilescope_kernels.norms.norm_linear_kernels import (
    norm_linear_kernel,
    norm_linear_prepare_kernel,
    normed_rows_kernel,
)
from tilescope_kernels.spec import FORWARD, Config, Cost, Draw, Implementation, Workload, declare, drawn


def _config(m: int, n: int, k: int, warps: int, stages: int, tma: int) -> dict[str, int]:
    blocks = {"BLOCK_M": m, "BLOCK_N": n, "BLOCK_K": k, "GROUP_M": 8, "TMA": tma}
    return {**blocks, "num_warps": warps, "num_stages": stages}


#: The norm before the product, on ``CHUNK`` rows at a time, 0 for all.
AHEAD = tuple({"CHUNK": chunk, "num_warps": warps} for chunk in (0, 2048, 4096, 1056, 2112) for warps in (8, 4, 16))

#: The norm in the product's epilogue: the product's tiles.
BEHIND = tuple(
    _config(*parts)
    for parts in (
        (128, 256, 64, 8, 3, 1), (256, 128, 64, 8, 3, 1), (128, 128, 64, 8, 4, 1), (128, 128, 64, 4, 4, 1),
        (128, 256, 32, 8, 4, 1), (128, 128, 64, 4, 3, 1), (128, 256, 64, 8, 3, 0), (256, 128, 64, 8, 3, 0),
        (128, 128, 64, 8, 4, 0), (128, 128, 64, 4, 3, 0), (128, 64, 64, 4, 4, 1), (64, 128, 64, 4, 4, 1),
        (64, 64, 64, 4, 4, 1), (64, 64, 64, 4, 4, 0),
    )
)  # fmt: skip

#: fp32 products run on the CUDA cores, where registers bound the tile.
_FULL_PRECISION = _config(64, 64, 16, 8, 2, 0)

CONFIGS = (*BEHIND, *AHEAD)
#: Bytes of the longest row, which stays in registers between its statistics and its use.
_HELD = 131072


def _tma_serves(x: torch.Tensor, columns_out: int) -> bool:
    """Whether TMA can access x, W * g and y: Hopper or later, 16-bit elements, rows of a multiple of 16 bytes that do not repeat."""
    if x.element_size() != 2 or (x.is_cuda and torch.cuda.get_device_capability(x.device)[0] < 9):
        return False
    extents = (x.stride(0), x.shape[1], columns_out)
    return x.data_ptr() % 16 == 0 and x.stride(0) > 0 and not any(extent % 8 for extent in extents)


def _default(x: torch.Tensor, columns_out: int) -> Mapping[str, int]:
    """The default config.

    A norm before the product moves x twice more. A norm in the epilogue reads x once more, and W, of ``columns_out`` rows, is
    read and written. Small products get smaller tiles, so that every SM has one.
    """
    if x.shape[0] <= 2 * columns_out:
        return AHEAD[0]
    if x.dtype == torch.float32:
        return _FULL_PRECISION
    tma = _tma_serves(x, columns_out)
    if cdiv(x.shape[0], 128) * cdiv(columns_out, 256) < multiprocessors(x):
        return _config(64, 64, 64, 4, 4, tma)
    return BEHIND[0] if tma else _config(128, 128, 64, 4, 3, 0)


def _ahead(
    x: torch.Tensor, norm_weight: torch.Tensor | None, norm_bias: torch.Tensor | None, weight: torch.Tensor,
    bias: torch.Tensor | None, eps: float, rms_gelu: bool, config: Mapping[str, int],
) -> torch.Tensor:  # fmt: skip
    """The norm before the product: rows are normalized chunk by chunk into one buffer and multiplied from there."""
    (m, k), n = x.shape, weight.shape[0]
    y = torch.empty((m, n), dtype=x.dtype, device=x.device)
    step = min(m, config["CHUNK"] or m)
    buffer = torch.empty((step, k), dtype=x.dtype, device=x.device)
    for start in range(0, m, step):
        part, out = x[start : start + step], y[start : start + step]
        normed = buffer[: part.shape[0]]
        launch(
            normed_rows_kernel, (part.shape[0],),
            normed, part, norm_weight, norm_bias, x.stride(0), k, eps, RMS_GELU=rms_gelu,
            BLOCK=next_power_of_2(k), num_warps=config["num_warps"],
        )  # fmt: skip
        if bias is None:
            torch.mm(normed, weight.T, out=out)
        else:
            torch.addmm(bias, normed, weight.T, out=out)
    return y


def _behind(
    x: torch.Tensor, norm_weight: torch.Tensor | None, norm_bias: torch.Tensor | None, weight: torch.Tensor,
    bias: torch.Tensor | None, eps: float, config: Mapping[str, int],
) -> torch.Tensor:  # fmt: skip
    """The norm in the epilogue: x times the folded weight, corrected with each row's statistics."""
    (m, k), n = x.shape, weight.shape[0]
    y = torch.empty((m, n), dtype=x.dtype, device=x.device)
    blocks = {name: value for name, value in config.items() if name != "TMA"}
    tma = config["TMA"] and _tma_serves(x, n)
    if config["TMA"] > tma:
        raise ValueError("config has TMA=1, which these operands or this GPU do not allow: use one with TMA=0")
    mean, rstd = (torch.empty(m, dtype=torch.float32, device=x.device) for _ in range(2))
    sums, shift = (torch.empty(n, dtype=torch.float32, device=x.device) for _ in range(2))
    folded = torch.empty((n, k), dtype=x.dtype, device=x.device)
    block_m, block_n, block_k = (blocks[name] for name in ("BLOCK_M", "BLOCK_N", "BLOCK_K"))
    operands = ((y, block_m, block_n), (x, block_m, block_k), (folded, block_n, block_k))
    tiles = cdiv(m, block_m) * cdiv(n, block_n)
    block = next_power_of_2(k)
    # A separate launch, because tiles of the product need its results for whole rows.
    launch(
        norm_linear_prepare_kernel, (m + n,),
        mean, rstd, folded, sums, shift, x, weight, norm_weight, norm_bias, bias, x.stride(0), weight.stride(0),
        m, k, eps, BLOCK=block, num_warps=max(1, min(16, block // 512)),
    )  # fmt: skip
    launch(
        norm_linear_kernel, (min(tiles, multiprocessors(x)) if tma else tiles,),
        y, x, folded,
        *(TensorDescriptor(t, list(t.shape), [t.stride(0), 1], [rows, columns]) if tma else None
          for t, rows, columns in operands),
        mean, rstd, sums, shift, m, n, k, x.stride(0), EVEN_K=k % block_k == 0, FAR=not tma and is_far(x.stride(0), n), **blocks,
    )  # fmt: skip
    return y


@operator(
    "layer_norm_linear", autocast="lower", fake=lambda x, _, __, weight, *___: x.new_empty(x.shape[0], weight.shape[0])
)
def _layer_norm_linear(
    x: torch.Tensor, norm_weight: torch.Tensor | None, norm_bias: torch.Tensor | None, weight: torch.Tensor,
    bias: torch.Tensor | None, eps: float, config: str,
) -> torch.Tensor:  # fmt: skip
    """The result (M, N) of x (M, K), with stride 1 along K, and contiguous weight (N, K)."""
    if x.shape[0] == 0 or weight.shape[0] == 0:
        return torch.empty((x.shape[0], weight.shape[0]), dtype=x.dtype, device=x.device)
    chosen = unpack(config) or _default(x, weight.shape[0])
    if "CHUNK" in chosen:
        return _ahead(x, norm_weight, norm_bias, weight, bias, eps, False, chosen)
    return _behind(x, norm_weight, norm_bias, weight, bias, eps, chosen)


_layer_norm_linear.gradient(lambda *arguments: arguments[:4])(differentiate_layer_norm)


@operator(
    "rms_norm_gelu_linear", autocast="lower", fake=lambda x, _, weight, *__: x.new_empty(x.shape[0], weight.shape[0])
)
def _rms_norm_gelu_linear(
    x: torch.Tensor, norm_weight: torch.Tensor | None, weight: torch.Tensor, bias: torch.Tensor | None, eps: float,
    config: str,
) -> torch.Tensor:  # fmt: skip
    """The result (M, N) of x (M, K), with stride 1 along K, and weight (N, K)."""
    if x.shape[0] == 0 or weight.shape[0] == 0:
        return torch.empty((x.shape[0], weight.shape[0]), dtype=x.dtype, device=x.device)
    return _ahead(x, norm_weight, None, weight, bias, eps, True, unpack(config) or AHEAD[0])


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
    x: torch.Tensor,
    norm_weight: torch.Tensor | None,
    norm_bias: torch.Tensor | None,
    weight: torch.Tensor,
    bias: torch.Tensor | None = None,
    eps: float = 1e-5,
    *,
    config: Config | None = None,
) -> torch.Tensor:
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
    x: torch.Tensor,
    norm_weight: torch.Tensor | None,
    weight: torch.Tensor,
    bias: torch.Tensor | None = None,
    eps: float | None = None,
    *,
    config: Config | None = None,
) -> torch.Tensor:
    """``linear(gelu(rms_norm(x)), weight, bias)``, with GELU by the error function; otherwise as ``layer_norm_linear``.

    ``eps`` is fp32's machine epsilon by default. ``config`` is one of ``AHEAD``. The product is cuBLAS's.
    """
    if not use_triton():
        return gelu_reference(x, norm_weight, weight, bias, eps)
    columns = _check(weight, bias, x=x, norm_weight=norm_weight)
    eps = torch.finfo(torch.float32).eps if eps is None else eps
    y = _rms_norm_gelu_linear(as_rows(x, columns), _packed(norm_weight), weight, bias, eps, pack(config))
    return y.reshape(*x.shape[:-1], weight.shape[0])


def layer_norm_reference(
    x: torch.Tensor,
    norm_weight: torch.Tensor | None,
    norm_bias: torch.Tensor | None,
    weight: torch.Tensor,
    bias: torch.Tensor | None = None,
    eps: float = 1e-5,
) -> torch.Tensor:
    """The reference in plain PyTorch."""
    return F.linear(F.layer_norm(x, x.shape[-1:], norm_weight, norm_bias, eps), weight, bias)


def gelu_reference(
    x: torch.Tensor,
    norm_weight: torch.Tensor | None,
    weight: torch.Tensor,
    bias: torch.Tensor | None = None,
    eps: float | None = None,
) -> torch.Tensor:
    """The reference in plain PyTorch."""
    return F.linear(F.gelu(F.rms_norm(x, x.shape[-1:], norm_weight, eps)), weight, bias)


@drawn
def layer_norm_inputs(draw: Draw, m: int, n: int, k: int) -> dict[str, Any]:
    """``x`` (m, k), a norm weight around 1 and a norm bias, ``weight`` (n, k) that preserves the variance, and ``bias``."""
    return {
        "x": draw(m, k, grad=True),
        "norm_weight": draw(k, scale=0.2, shift=1.0, grad=True),
        "norm_bias": draw(k, scale=0.2, grad=True),
        "weight": draw(n, k, scale=1.0 / math.sqrt(max(1, k)), grad=True),
        "bias": draw(n, grad=True),
        "eps": 1e-5,
    }


def gelu_inputs(workload: Workload, device: Any) -> dict[str, Any]:
    """As ``layer_norm_inputs``, without the norm's bias."""
    drawn = layer_norm_inputs(workload, device)
    return {name: value for name, value in drawn.items() if name != "norm_bias"}


def _cost(workload: Workload, direction: str, norm: int, vectors: int) -> Cost:
    """2MNK operations per product (backward has two), MN for the bias or its gradient, and ``norm`` per element of x.

    The norm has ``vectors`` parameters of K elements.
    """
    m, n, k = workload.dims.values()
    size = workload.itemsize
    products = 1 if direction == FORWARD else 2
    operands, result = m * k + n * k + vectors * k, m * n
    return Cost(
        flops=products * 2 * m * n * k + m * n + norm * m * k,
        bytes_read=(operands + (n if direction == FORWARD else result)) * size,
        bytes_written=(result if direction == FORWARD else operands + n) * size,
        pipe=workload.pipe,
    )


def layer_norm_cost(workload: Workload, direction: str) -> Cost:
    """LayerNorm takes 7 operations per element forward and 13 backward, as in ``layer_norm``."""
    return _cost(workload, direction, 7 if direction == FORWARD else 13, 2)


def gelu_cost(workload: Workload, direction: str) -> Cost:
    """RMSNorm takes 4 operations per element forward and 9 backward, as in ``rms_norm``, and GELU by the error function 5.

    Backward recomputes GELU (5, and one for its argument), and takes 4 for the derivative of the error function and 3 for
    the product rule and dy.
    """
    return _cost(workload, direction, 9 if direction == FORWARD else 22, 1)


WORKLOADS = (
    Workload({"m": 512, "n": 128, "k": 512}, "bf16", label="small"),
    Workload({"m": 2048, "n": 2048, "k": 2048}, "bf16", label="medium"),
    Workload({"m": 16384, "n": 4096, "k": 4096}, "bf16", label="large"),
    Workload({"m": 517, "n": 769, "k": 1023}, "fp16", label="ragged"),
    Workload({"m": 32768, "n": 1024, "k": 4096}, "bf16", label="narrow"),
    Workload({"m": 4096, "n": 14336, "k": 4096}, "bf16", label="broad"),
    Workload({"m": 0, "n": 1024, "k": 1024}, "bf16", label="empty"),
)
TOLERANCE = {"fp32": 1e-5, "fp16": 9e-4, "bf16": 7e-3}

LAYER_NORM_LINEAR = declare(
    "layer_norm_linear",
    "linear(layer_norm(x))",
    "m n k",
    "small 512x128x512-bf16, medium 2048x2048x2048-bf16, large 16384x4096x4096-bf16, ragged 517x769x1023-fp16, "
    "narrow 32768x1024x4096-bf16, broad 4096x14336x4096-bf16, empty 0x1024x1024-bf16",
    triton=Implementation(layer_norm_linear, "the norm behind the product, or ahead of cuBLAS's", CONFIGS),
    eager=Implementation(layer_norm_reference, "layer_norm, then linear (cuBLAS)"),
    reference=layer_norm_reference,
    inputs=layer_norm_inputs,
    cost=layer_norm_cost,
    tolerance=TOLERANCE,
    passes="forward backward",
)

RMS_NORM_GELU_LINEAR = declare(
    "rms_norm_gelu_linear",
    "linear(gelu(rms_norm(x)))",
    "m n k",
    "small 512x128x512-bf16, medium 2048x2048x2048-bf16, large 16384x4096x4096-bf16, ragged 517x769x1023-fp16, "
    "narrow 32768x1024x4096-bf16, broad 4096x14336x4096-bf16, empty 0x1024x1024-bf16",
    triton=Implementation(rms_norm_gelu_linear, "norm and GELU in one pass, then cuBLAS", AHEAD),
    eager=Implementation(gelu_reference, "rms_norm, gelu, then linear (cuBLAS)"),
    reference=gelu_reference,
    inputs=gelu_inputs,
    cost=gelu_cost,
    tolerance=TOLERANCE,
    passes="forward backward",
)
