"""Linear layer and cross-entropy fused, a chunk of rows at a time, so that the logits of all rows never exist at once.

cuBLAS computes the logits of a chunk (``logits_in_gradient.write_logits``), one Triton pass overwrites them with their gradient, and two more products give the
chunk's dx and add to dW. All of this happens in the forward pass, with the same three products as eager code. The scheme is
Liger-Kernel's (Hsu et al., arXiv:2410.10989). Where dW has room for the logits of more rows than a chunk, the first rows'
logits are stored there (``logits_in_gradient``).
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
import triton

from tilescope_kernels._shared.checks import check_tensors, use_triton
from tilescope_kernels._shared.operators import operator, pack, unpack, wants_grad
from tilescope_kernels.losses import logits_in_gradient
from tilescope_kernels.losses.cross_entropy import REDUCTIONS, check_loss, result_dtype, rows_loss
from tilescope_kernels.losses.logits_in_gradient import add_dw, write_dw, write_dx, write_logits
from tilescope_kernels.losses.mean import count_rows, reduced, scaled
from tilescope_kernels.spec import FORWARD, Config, Cost, Draw, Implementation, Workload, declare, drawn, peer

#: ``CHUNK`` rows of logits exist at a time, 0 for the launcher's choice. Fewer rows take less memory, but smaller products, and
#: each chunk takes a pass over dW, which also rounds it in 16 bits.
CONFIGS = tuple(
    {"CHUNK": chunk, "ACCESSES": 2, "num_warps": warps} for chunk in (0, 256, 512, 1024, 2048) for warps in (32, 16)
)


#: Rows of a chunk: a multiple of a tile of a product, and at least as many as keep the pass over dW shorter than its product.
_TILE, _LEAST = 256, 512
#: Bytes of logits that may exist at once however small ``x`` is.
_SMALL = 2**24
#: Rows of logits start at multiples of this many elements: sectors of 32 bytes in 16 bits.
_ALIGNED = 16


def _chunk(rows: int, columns: int, classes: int, itemsize: int) -> int:
    """Rows of logits to hold at a time: those of about four times the memory of ``x``.

    A chunk is rounded to tiles of the products: one of 368 rows takes as long as one of 384.
    """
    wanted = max(4 * rows * columns, _SMALL // itemsize) // classes
    return min(rows, max(_LEAST, wanted // _TILE * _TILE))


def _fake(
    x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, target: torch.Tensor, ignore_index: int,
    smoothing: float, reduction: int, dtype: torch.dtype, wants_dx: bool, wants_dw: bool, wants_db: bool, config: str,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:  # fmt: skip
    loss = x.new_empty(x.shape[0] if reduction == 0 else (), dtype=dtype)
    dx = x.new_empty(x.shape) if wants_dx else x.new_empty(0)
    dw = weight.new_empty(weight.shape) if wants_dw else x.new_empty(0)
    return loss, dx, dw, x.new_empty(weight.shape[0] if wants_db else 0)


@operator("linear_cross_entropy", autocast="lower", fake=_fake)
def _linear_cross_entropy(
    x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, target: torch.Tensor, ignore_index: int,
    smoothing: float, reduction: int, dtype: torch.dtype, wants_dx: bool, wants_dw: bool, wants_db: bool, config: str,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:  # fmt: skip
    """The loss and the gradients of x, weight and bias, empty where not wanted."""
    (rows, columns), classes = x.shape, weight.shape[0]
    chosen = unpack(config)
    asked = (chosen or {}).get("CHUNK", 0)
    chunk = min(rows, asked) if asked else _chunk(rows, columns, classes, x.element_size())
    wide = triton.cdiv(classes, _ALIGNED) * _ALIGNED
    scratch = x.new_empty(chunk * wide)
    dx = x.new_empty(x.shape) if wants_dx else x.new_empty(0)
    dw = weight.new_empty(weight.shape) if wants_dw else x.new_empty(0)
    db = torch.zeros(classes, dtype=torch.float32, device=x.device) if wants_db else None
    losses = torch.empty(rows, dtype=torch.float32, device=x.device)
    tile = {name: value for name, value in (chosen or {}).items() if name != "CHUNK"} or None
    gradient = wants_dx or wants_dw or wants_db
    count = count_rows(target, ignore_index) if gradient and reduction == 1 else None
    blocks = logits_in_gradient.plan(rows, columns, classes, scratch.numel()) if wants_dw and not asked else None
    first = 0 if blocks is None else blocks.rows
    if blocks is not None:
        # Their dx accumulates in fp32, in the memory of dx itself if it is large enough: its other rows are not written yet.
        size, total = first * columns, None
        if wants_dx and 4 * size <= dx.numel() * x.element_size():
            total = dx.view(-1)[: size * 4 // x.element_size()].view(torch.float32).view(first, columns)
        elif wants_dx:
            total = torch.empty((first, columns), dtype=torch.float32, device=x.device)
        logits_in_gradient.run(
            x[:first], weight, bias, target[:first], ignore_index, smoothing, count, blocks,
            losses, total, dw, db, scratch,
        )  # fmt: skip
        if total is not None:
            scratch[:size].view(first, columns).copy_(total)
            dx[:first] = scratch[:size].view(first, columns)
    for start in range(first, rows, max(chunk, 1)):
        part = slice(start, min(rows, start + chunk))
        size = part.stop - start
        logits = scratch[: size * wide].view(size, wide)[:, :classes]
        write_logits(logits, x[part], weight, bias)
        losses[part] = rows_loss(
            logits, target[part], ignore_index, smoothing, tile,
            dx=logits if gradient else None, count=count,
        )  # fmt: skip
        if wants_dx:
            write_dx(dx[part], logits, weight)
        if wants_dw and start == 0:
            write_dw(dw, logits, x[part])
        elif wants_dw:
            add_dw(dw, logits, x[part])
        if db is not None:
            db += logits.sum(0, dtype=torch.float32)
    if wants_dw and rows == 0:
        dw.zero_()
    loss, _ = reduced(losses, target, ignore_index, reduction, dtype)
    return loss, dx, dw, x.new_empty(0) if db is None else db.to(x.dtype)


@_linear_cross_entropy.gradient(lambda *arguments: (*arguments[-3:], arguments[3]))
def _differentiate(ctx: Any, dloss: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
    if torch.is_grad_enabled():
        # The gradient has no graph of its own: the derivative of a gradient penalty would silently be missing.
        raise RuntimeError(
            "linear_cross_entropy computed its gradient with the loss: it has no second derivative, for which create_graph and "
            "torch.func.grad ask; call backward() or torch.autograd.grad, or set TILESCOPE_USE_TRITON=0"
        )
    *kept, target = ctx.saved_tensors
    ignore_index, _, _, _, *wants, _ = ctx.rest
    of_rows = ((target, ignore_index), (), ())
    return tuple(
        scaled(gradient, dloss, *rows) if wanted else None
        for gradient, wanted, rows in zip(kept, wants, of_rows, strict=True)
    )


def linear_cross_entropy(
    x: torch.Tensor, linear_weight: torch.Tensor, target: torch.Tensor, *, linear_bias: torch.Tensor | None = None,
    weight: None = None, reduction: str = "mean", ignore_index: int = -100, label_smoothing: float = 0.0,
    chunk_rows: int = 0, config: Config | None = None,
) -> torch.Tensor:  # fmt: skip
    """``cross_entropy(linear(x, linear_weight, linear_bias), target)`` without the logits of all rows.

    As ``torch.nn.functional.linear_cross_entropy`` with class indices: ``x`` (..., columns), ``linear_weight`` (classes, columns) and
    ``linear_bias`` (classes) of one dtype (fp32, fp16, bf16), ``target`` (...) in int64 or int32, otherwise as ``cross_entropy``. Gradients
    are computed with the loss, for a single backward pass, and only for ``"mean"`` and ``"sum"``; they are deterministic. In 16 bits the
    logits are rounded, and dW after each chunk. Under autocast the products have its dtype and the loss is fp32.

    ``chunk_rows`` trades memory for time: the logits of that many rows exist at once, by default at least 512 and about as many as take
    four times the memory of ``x`` (and those of the first rows in dW). ``config`` is one of ``CONFIGS``. Raises ValueError, naming the
    argument, for other dtypes, shapes that do not fit, class weights, and devices without CUDA.
    """
    if not use_triton():
        logits = F.linear(x, linear_weight, linear_bias).reshape(-1, linear_weight.shape[0])
        loss = F.cross_entropy(
            logits, target.reshape(-1), weight, ignore_index=ignore_index, reduction=reduction,
            label_smoothing=label_smoothing,
        )  # fmt: skip
        return loss.reshape(target.shape) if reduction == "none" else loss
    dtype = result_dtype(x)
    check_tensors(x=x, linear_weight=linear_weight, linear_bias=linear_bias)
    check_loss(target, reduction, label_smoothing)
    if chunk_rows < 0 or (chunk_rows and config):
        raise ValueError(f"chunk_rows is {chunk_rows}: give 0 or more, and 0 beside a config, which has CHUNK")
    if weight is not None:
        raise ValueError("weight is given: classes cannot be weighed here; cross_entropy weighs them")
    if x.dim() == 0 or linear_weight.dim() != 2 or linear_weight.shape[1] != x.shape[-1] or not linear_weight.shape[0]:
        raise ValueError(
            f"linear_weight has shape {tuple(linear_weight.shape)} and x {tuple(x.shape)}: "
            "give (classes, columns) and (..., columns)"
        )
    if linear_bias is not None and tuple(linear_bias.shape) != (linear_weight.shape[0],):
        raise ValueError(f"linear_bias has shape {tuple(linear_bias.shape)}: give ({linear_weight.shape[0]},)")
    if target.shape != x.shape[:-1] or target.device != x.device:
        raise ValueError(f"target has shape {tuple(target.shape)}: give that of x, {tuple(x.shape)}, without the last")
    wants = [wants_grad(tensor) for tensor in (x, linear_weight, linear_bias)]
    if reduction == "none" and any(wants):
        raise ValueError("reduction is 'none', which has no gradient here: give 'mean' or 'sum', or detach the inputs")
    flat = x.reshape(target.numel(), x.shape[-1]).contiguous()
    loss, *_ = _linear_cross_entropy(
        flat, linear_weight.contiguous(), linear_bias, target.reshape(-1).contiguous(), ignore_index,
        float(label_smoothing), REDUCTIONS[reduction], dtype, *wants, pack({"CHUNK": chunk_rows} if chunk_rows else config),
    )  # fmt: skip
    return loss.reshape(target.shape) if reduction == "none" else loss


class LinearCrossEntropy(torch.nn.Linear):
    """A linear layer followed by cross-entropy: the head of a language model in training.

    Parameters and state are those of ``torch.nn.Linear(columns, classes, bias)``.
    """

    def __init__(
        self, columns: int, classes: int, bias: bool = False, *, ignore_index: int = -100, reduction: str = "mean",
        label_smoothing: float = 0.0, chunk_rows: int = 0, device: Any = None, dtype: torch.dtype | None = None,
    ) -> None:  # fmt: skip
        super().__init__(columns, classes, bias, device, dtype)
        self.options: dict[str, Any] = {"ignore_index": ignore_index, "reduction": reduction}
        self.options |= {"label_smoothing": label_smoothing, "chunk_rows": chunk_rows}

    def forward(self, x: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        """The loss of ``x`` (..., columns) and class indices (...). Raises ValueError as ``linear_cross_entropy``."""
        return linear_cross_entropy(x, self.weight, target, linear_bias=self.bias, **self.options)


def reference(x: torch.Tensor, linear_weight: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    """The reference in plain PyTorch."""
    return F.cross_entropy(F.linear(x, linear_weight), target)


def liger(x: torch.Tensor, linear_weight: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    """Liger-Kernel's function, imported at the first call because it is an optional dependency."""
    from liger_kernel.ops.fused_linear_cross_entropy import LigerFusedLinearCrossEntropyFunction  # noqa: PLC0415

    return LigerFusedLinearCrossEntropyFunction.apply(x, linear_weight, target)[0]


@drawn
def inputs(draw: Draw, rows: int, columns: int, classes: int) -> dict[str, Any]:
    """``x`` of rows x columns, standard normal, a weight that gives standard normal logits, and a ``target`` per row."""
    target = draw.empty(rows, dtype=torch.int64)
    if draw.numbers is not None:
        target.random_(0, max(classes, 1), generator=draw.numbers)
    x, weight = draw(rows, columns, grad=True), draw(classes, columns, scale=columns**-0.5, grad=True)
    return {"x": x, "linear_weight": weight, "target": target}


def cost(workload: Workload, direction: str) -> Cost:
    """One product forward, three in a step. Reads x, weight and targets; a step writes dx and dW.

    Writes and reads of the logits, a chunk at a time, are not counted.
    """
    rows, columns, classes = workload.dims.values()
    product, size = 2 * rows * columns * classes, (rows + classes) * columns * workload.itemsize
    if direction == FORWARD:
        return Cost(product + 3 * rows * classes, size + 8 * rows, workload.itemsize, workload.pipe)
    return Cost(3 * product + 7 * rows * classes, size + 8 * rows, size + workload.itemsize, workload.pipe)


SPEC = declare(
    "linear_cross_entropy", "cross-entropy of a linear layer's outputs", "rows columns classes",
    "small 128x256x1024-bf16, medium 4096x2048x32000-bf16, large 8192x4096x128256-bf16, ragged 781x130x1823-fp32",
    triton=Implementation(linear_cross_entropy, "in chunks, gradients with the loss", CONFIGS),
    eager=Implementation(reference, "torch.nn.functional.linear, then cross_entropy"),
    liger=Implementation(liger, "Liger-Kernel's", requires=("liger-kernel",)),
    cce=peer("cut-cross-entropy", "cut_cross_entropy:linear_cross_entropy", "Cut Cross-Entropy's, no logits in memory"),
    reference=reference, inputs=inputs, cost=cost, tolerance={"fp32": 1e-5, "fp16": 4e-3, "bf16": 1.5e-2},
    passes="forward forward+backward",
)  # fmt: skip
