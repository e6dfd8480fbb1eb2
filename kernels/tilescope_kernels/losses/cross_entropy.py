"""Cross-entropy of logits: the loss in one pass, and the gradient either with the loss or in the backward pass.

With the loss: a program that has computed a row's loss reads the row again, mostly from L2, and writes its gradient. Long rows
stay on chip and are read once (``resident``). The backward pass returns the gradient, scaled if the loss was.

In the backward pass: the gradient is computed from the logits and two saved numbers per row, in all two reads and one write.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
import triton
import triton.language as tl

from tilescope_kernels._shared import checks
from tilescope_kernels._shared.checks import check_integers, check_tensors, check_together
from tilescope_kernels._shared.exponentials import LOG2_E
from tilescope_kernels._shared.launching import cdiv, launch, multiprocessors, next_power_of_2
from tilescope_kernels._shared.online_softmax import sum_exp
from tilescope_kernels._shared.operators import as_rows, operator, pack, unpack, wants_grad
from tilescope_kernels._shared.row_tiles import columns_of, ends, whole_part
from tilescope_kernels.losses.mean import count_rows, reduced, scaled
from tilescope_kernels.losses.resident import cross_entropy_resident_kernel, plan
from tilescope_kernels.spec import FORWARD, Config, Cost, Draw, Implementation, Workload, declare, drawn


@triton.jit
def _gradient_piece(
    dx_ptr, x_ptr, column, mask, target, has_target, shift, log, scale, smoothing, columns, SMOOTH: tl.constexpr
):
    """Gradient of one step of a row. ``has_target`` tells whether the target is among its columns."""
    # These bytes are not read again: they should not evict rows that other programs will read.
    x = tl.load(x_ptr + column, mask=mask, eviction_policy="evict_first").to(tl.float32)
    # The shift is subtracted separately: shift + log would lose the logarithm's low bits if logits are large.
    dx = tl.exp2((x - shift) * LOG2_E - log * LOG2_E)
    if SMOOTH:
        dx -= smoothing / columns
    if has_target:
        dx = tl.where(column == target, dx - (1.0 - smoothing), dx)
    dx *= scale
    tl.store(dx_ptr + column, dx.to(dx_ptr.dtype.element_ty), mask=mask, cache_modifier=".cs")


@triton.jit
def _gradient_row(
    dx_ptr, x_ptr, before, length, columns, target, shift, log, scale, smoothing,
    SMOOTH: tl.constexpr, LANES: tl.constexpr, WIDTH: tl.constexpr, SKEWED: tl.constexpr,
):  # fmt: skip
    """``scale * (softmax(x) - (1 - smoothing) * onehot(target) - smoothing / columns)`` of one row, walked backwards.

    The row's end was read last and is still in cache. Pointers, ``before`` and ``length`` are those of the row's ``whole_part``.
    """
    step: tl.constexpr = LANES * WIDTH
    offsets = columns_of(0, LANES, WIDTH)
    steps = length // step
    # In 32 bits, to compare it with columns cheaply. A target that is no class stays out of range.
    target = tl.where((target >= 0) & (target < columns), target - before, columns).to(tl.int32)
    # Masks cost instructions: only the row's ends have one. Only the step that has the target compares columns with it.
    start = steps * step
    mask = start + offsets < length
    _gradient_piece(
        dx_ptr, x_ptr, start + offsets, mask, target, (target >= start) & (target < length),
        shift, log, scale, smoothing, columns, SMOOTH,
    )  # fmt: skip
    for index in range(0, steps):
        start = (steps - 1 - index) * step
        _gradient_piece(
            dx_ptr, x_ptr, start + offsets, None, target, (target >= start) & (target < start + step),
            shift, log, scale, smoothing, columns, SMOOTH,
        )  # fmt: skip
    if SKEWED:
        offset, inside = ends(before, length, columns, WIDTH)
        _gradient_piece(
            dx_ptr, x_ptr, offset, inside, target, (target < 0) | (target >= length),
            shift, log, scale, smoothing, columns, SMOOTH,
        )  # fmt: skip


@triton.jit
def _zero_row(dx_ptr, before, length, columns, LANES: tl.constexpr, WIDTH: tl.constexpr, SKEWED: tl.constexpr):
    offsets = columns_of(0, LANES, WIDTH)
    for start in range(0, length, LANES * WIDTH):
        zeros = tl.zeros((LANES, WIDTH), dx_ptr.dtype.element_ty)
        tl.store(dx_ptr + start + offsets, zeros, mask=start + offsets < length)
    if SKEWED:
        offset, inside = ends(before, length, columns, WIDTH)
        tl.store(dx_ptr + offset, tl.zeros((2 * WIDTH,), dx_ptr.dtype.element_ty), mask=inside)


@triton.jit
def cross_entropy_kernel(
    loss_ptr, parts_ptr, dx_ptr, x_ptr, target_ptr, count_ptr, x_stride, rows, columns, ignore_index, smoothing,
    SMOOTH: tl.constexpr, LANES: tl.constexpr, WIDTH: tl.constexpr, SKEWED: tl.constexpr,
):  # fmt: skip
    """Loss, ``parts`` (shift, log) and gradient ``dx`` of rows ``program, program + programs, ...``.

    ``parts`` and ``dx`` may be None; ``dx`` may be ``x``. ``count`` divides ``dx`` unless None.
    """
    scale = 1.0
    if dx_ptr is not None and count_ptr is not None:
        scale = 1.0 / tl.load(count_ptr).to(tl.float32)
    for index in range(tl.program_id(0), rows, tl.num_programs(0)):
        row = index + tl.full((), 0, tl.int64)  # int64; the interpreter's loop index has no .to()
        target = tl.load(target_ptr + row)
        counts = target != ignore_index
        begin, before, length = whole_part(row * x_stride, columns, WIDTH, SKEWED)
        x_row = x_ptr + begin
        # A target that is no class makes the loss NaN, without a read beyond the row. Loaded before the row's reduction, a
        # barrier for all threads: afterwards dx may overwrite x.
        inside = counts & (target >= 0) & (target < columns)
        chosen = tl.load(x_row + (target - before), mask=inside, other=float("nan")).to(tl.float32)
        _, shift, exponentials, total = sum_exp(
            x_row, before, length, columns, LANES, WIDTH, SKEWED, SMOOTH, dx_ptr is not None, counts
        )
        # Infinite if a logit is +inf or all are -inf: softmax is undefined, give NaN.
        log = tl.log(exponentials)
        log = tl.where(tl.abs(log) == float("inf"), float("nan"), log)
        loss = log + (shift - chosen)
        if SMOOTH:
            loss = (1.0 - smoothing) * loss + smoothing * (log + (shift - total / columns))
        tl.store(loss_ptr + row, tl.where(counts, loss, 0.0))
        if parts_ptr is not None:
            tl.store(parts_ptr + 2 * row, tl.where(counts, shift, 0.0))
            tl.store(parts_ptr + 2 * row + 1, tl.where(counts, log, 0.0))
        if dx_ptr is not None:
            dx_row = dx_ptr + begin
            if counts:
                _gradient_row(
                    dx_row, x_row, before, length, columns, target, shift, log, scale, smoothing,
                    SMOOTH, LANES, WIDTH, SKEWED,
                )  # fmt: skip
            else:
                _zero_row(dx_row, before, length, columns, LANES, WIDTH, SKEWED)


@triton.jit
def cross_entropy_backward_kernel(
    dx_ptr, dloss_ptr, x_ptr, target_ptr, parts_ptr, count_ptr, dloss_stride, x_stride, columns, ignore_index, smoothing,
    SMOOTH: tl.constexpr, LANES: tl.constexpr, WIDTH: tl.constexpr, SKEWED: tl.constexpr,
):  # fmt: skip
    """``dx`` of one row per program, from the logits and the two parts of their log-sum-exp. One read, one write.

    ``SKEWED`` rows are not 16-byte aligned; those of x and dx have the same misalignment.
    """
    row = tl.program_id(0).to(tl.int64)
    target = tl.load(target_ptr + row)
    begin, before, length = whole_part(row * x_stride, columns, WIDTH, SKEWED)
    dx_ptr += begin if SKEWED else row * columns
    if target == ignore_index:
        _zero_row(dx_ptr, before, length, columns, LANES, WIDTH, SKEWED)
    else:
        scale = tl.load(dloss_ptr + row * dloss_stride).to(tl.float32)
        if count_ptr is not None:
            scale /= tl.load(count_ptr).to(tl.float32)
        shift, log = tl.load(parts_ptr + 2 * row), tl.load(parts_ptr + 2 * row + 1)
        _gradient_row(
            dx_ptr, x_ptr + begin, before, length, columns, target, shift, log, scale, smoothing,
            SMOOTH, LANES, WIDTH, SKEWED,
        )  # fmt: skip


#: ``ACCESSES`` of 16 bytes per thread are in flight in each step. ``PROGRAMS`` per SM walk the rows where the gradient is computed
#: with the loss; 0 is one program per row, as always in the other passes.
CONFIGS = tuple(
    {"ACCESSES": accesses, "PROGRAMS": programs, "num_warps": warps}
    for programs in (0, 1, 2)
    for accesses in (1, 2, 4)
    for warps in (8, 4, 16, 32)
    if programs == 0 or warps >= 16
)
#: The fastest known on an H200: the loss alone, the gradient alone, and both at once.
_LOSS = {"ACCESSES": 2, "PROGRAMS": 0, "num_warps": 8}
_GRADIENT = {"ACCESSES": 4, "PROGRAMS": 0, "num_warps": 16}
_AT_ONCE = {"ACCESSES": 1, "PROGRAMS": 0, "num_warps": 16}
_AT_ONCE_LONG = {"ACCESSES": 2, "PROGRAMS": 1, "num_warps": 32}
#: Bytes of a long row and of a very long one. When programs read a row again for the gradient, L2 still has long rows of all
#: resident programs, but very long ones only of one program per SM.
_LONG, _VERY_LONG = 64 * 1024, 128 * 1024

#: Values of ``reduction``, and their codes in the operators.
REDUCTIONS = {"none": 0, "mean": 1, "sum": 2}


def _tile(x: torch.Tensor, config: Config | None, known: Config) -> Config:
    """LANES, WIDTH and warps for the rows of ``x``. Without a config ``known`` bounds them."""
    chosen, width = config or {}, 16 // x.element_size()
    pieces = next_power_of_2(cdiv(x.shape[1], width))
    accesses = chosen.get("ACCESSES", known["ACCESSES"])
    warps = chosen.get("num_warps", max(1, min(known["num_warps"], pieces // (32 * accesses))))
    return {"LANES": min(32 * warps * accesses, max(32, pieces)), "WIDTH": width, "num_warps": warps}


def rows_loss(
    x: torch.Tensor, target: torch.Tensor, ignore_index: int, smoothing: float, config: Config | None, *,
    parts: torch.Tensor | None = None, dx: torch.Tensor | None = None, count: torch.Tensor | None = None,
) -> torch.Tensor:  # fmt: skip
    """The fp32 loss of each row. Fills ``parts`` and ``dx`` if given. ``dx`` has the strides of ``x`` and may be ``x`` itself."""
    rows, columns = x.shape
    loss = torch.empty(rows, dtype=torch.float32, device=x.device)
    if rows == 0:
        return loss
    arguments = (loss, parts, dx, x, target, count, x.stride(0), rows, columns, ignore_index, smoothing)
    resident = plan(x, dx) if dx is not None and config is None else None
    if resident is not None:
        programs, half, parameters = resident
        launch(cross_entropy_resident_kernel, (programs,), *arguments, half, SMOOTH=smoothing > 0, **parameters)
    else:
        size = columns * x.element_size()
        known = _LOSS if dx is None or size < _LONG else _AT_ONCE if size < _VERY_LONG else _AT_ONCE_LONG
        tile = _tile(x, config, known)
        walking = (config or known).get("PROGRAMS", 0) if dx is not None else 0
        programs = min(rows, walking * multiprocessors(x)) if walking else rows
        launch(
            cross_entropy_kernel, (programs,),
            *arguments,
            SMOOTH=smoothing > 0, SKEWED=x.stride(0) % tile["WIDTH"] > 0, **tile,
        )  # fmt: skip
    return loss


def result_dtype(x: torch.Tensor) -> torch.dtype:
    """The dtype of the loss: that of ``x``, but fp32 under autocast, as in PyTorch."""
    return torch.float32 if checks.autocast_dtype(x) is not None else x.dtype


@operator(
    "cross_entropy",
    fake=lambda x, target, ignore_index, smoothing, reduction, dtype, save, config: (
        x.new_empty(x.shape[0] if reduction == 0 else (), dtype=dtype),
        x.new_empty((x.shape[0] if save else 0, 2), dtype=torch.float32),
        x.new_empty(() if reduction == 1 else 0, dtype=torch.int64),
    ),
)
def _cross_entropy(
    x: torch.Tensor, target: torch.Tensor, ignore_index: int, smoothing: float, reduction: int, dtype: torch.dtype,
    save: bool, config: str,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:  # fmt: skip
    """The loss, the two parts of each row's log-sum-exp (shift, log) if ``save``, and for a mean the number of rows that count."""
    parts = torch.empty((x.shape[0] if save else 0, 2), dtype=torch.float32, device=x.device)
    rows = rows_loss(x, target, ignore_index, smoothing, unpack(config), parts=parts if save else None)
    loss, count = reduced(rows, target, ignore_index, reduction, dtype)
    return loss, parts, count


@operator("cross_entropy_backward", fake=lambda _, x, *__: x.new_empty(x.shape))
def _cross_entropy_backward(
    dloss: torch.Tensor, x: torch.Tensor, target: torch.Tensor, parts: torch.Tensor, count: torch.Tensor,
    ignore_index: int, smoothing: float, reduction: int, config: str,
) -> torch.Tensor:  # fmt: skip
    dx = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    if dx.numel():
        tile = _tile(x, unpack(config), _GRADIENT)
        launch(
            cross_entropy_backward_kernel, (x.shape[0],),
            dx, dloss, x, target, parts, count if reduction == 1 else None, dloss.stride(0) if reduction == 0 else 0,
            x.stride(0), x.shape[1], ignore_index, smoothing,
            SMOOTH=smoothing > 0, SKEWED=x.stride(0) == x.shape[1] and x.shape[1] % tile["WIDTH"] > 0,
            **tile,
        )  # fmt: skip
    return dx


@_cross_entropy.gradient(lambda x, target, *rest: (x, target, *rest[-2:]))
def _differentiate(ctx: Any, dloss: torch.Tensor) -> torch.Tensor:
    ignore_index, smoothing, reduction, *_, config = ctx.rest
    return _cross_entropy_backward(dloss, *ctx.saved_tensors, ignore_index, smoothing, reduction, config)


@operator(
    "cross_entropy_with_gradient",
    fake=lambda x, target, ignore_index, smoothing, reduction, dtype, config: (
        x.new_empty(x.shape[0] if reduction == 0 else (), dtype=dtype),
        x.new_empty(x.shape),
        x.new_empty((x.shape[0], 2), dtype=torch.float32),
        x.new_empty(() if reduction == 1 else 0, dtype=torch.int64),
    ),
)
def _with_gradient(
    x: torch.Tensor, target: torch.Tensor, ignore_index: int, smoothing: float, reduction: int, dtype: torch.dtype,
    config: str,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:  # fmt: skip
    """The loss, dx for an incoming gradient of 1, and the tensors that ``_cross_entropy`` saves."""
    dx = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    parts = torch.empty((x.shape[0], 2), dtype=torch.float32, device=x.device)
    divisor = count_rows(target, ignore_index) if reduction == 1 else None
    rows = rows_loss(x, target, ignore_index, smoothing, unpack(config), parts=parts, dx=dx, count=divisor)
    loss, count = reduced(rows, target, ignore_index, reduction, dtype)
    return loss, dx, parts, count


@_with_gradient.gradient(lambda x, target, *rest: (x, target, *rest[-3:]))
def _scale_gradient(ctx: Any, dloss: torch.Tensor) -> torch.Tensor:
    x, target, dx, parts, count = ctx.saved_tensors
    ignore_index, smoothing, reduction, _, config = ctx.rest
    if hasattr(ctx, "given") or torch.is_grad_enabled():
        # dx was already returned, and perhaps scaled; or a second derivative may be wanted, which dx does not have.
        return _cross_entropy_backward(dloss, x, target, parts, count, ignore_index, smoothing, reduction, config)
    ctx.given = True
    # Through .data, so that autograd allows a later backward pass: that one recomputes dx.
    return scaled(dx.data, dloss, target, ignore_index)


def check_loss(target: torch.Tensor, reduction: str, label_smoothing: float) -> None:
    """Raise ValueError for arguments that the losses do not support."""
    check_integers((torch.int64, torch.int32), target=target)
    if reduction not in REDUCTIONS:
        raise ValueError(f"reduction is {reduction!r}: give 'none', 'mean' or 'sum'")
    if not 0.0 <= label_smoothing <= 1.0:
        raise ValueError(f"label_smoothing is {label_smoothing}: give 0 to 1")


def _weighed(
    losses: Callable[[float], torch.Tensor], x: torch.Tensor, target: torch.Tensor, weight: torch.Tensor, ignore_index: int,
    reduction: str, smoothing: float,
) -> torch.Tensor:  # fmt: skip
    """Weigh the fp32 losses of rows (0 where ignored) by their targets' weights and reduce them as PyTorch does.

    ``losses(smoothing)`` are the losses of equal weights. A mean divides by the sum of the targets' weights. PyTorch's operators
    compute it, on one number per row; with label smoothing they also multiply an fp32 copy of ``x`` by the weights.
    """
    weight, here = weight.float(), target != ignore_index
    counts = here & (target >= 0) & (target < weight.shape[0])
    weights = torch.where(counts, weight[torch.where(counts, target, 0)], 0.0)
    # A target that is no class has weight 0, but its loss is NaN and so is the product.
    products = losses(0.0) * weights
    if smoothing:
        # The mean over classes of weight * (log-sum-exp - x). Equal weights are the kernel's part.
        mean = weight.mean()
        apart = torch.where(here, x.float() @ (weight - mean), 0.0) / weight.shape[0]
        products = (1.0 - smoothing) * products + smoothing * (mean * losses(1.0) - apart)
    if reduction == "none":
        return products
    return products.sum() / weights.sum() if reduction == "mean" else products.sum()


def cross_entropy(
    x: torch.Tensor, target: torch.Tensor, weight: torch.Tensor | None = None, *, ignore_index: int = -100, reduction: str = "mean",
    label_smoothing: float = 0.0, gradient_in_forward: bool | None = None, config: Config | None = None,
) -> torch.Tensor:  # fmt: skip
    """Cross-entropy of logits ``x`` and class indices ``target``, computed in fp32; once differentiable in ``x``.

    As ``torch.nn.functional.cross_entropy``. ``x`` is (classes), (N, classes) or (N, classes, ...) in fp32, fp16 or bf16,
    ``target`` () or (N) or (N, ...) in int64 or int32. Rows whose target is ``ignore_index`` are skipped; the mean of no rows
    is NaN. Any other target that is no class makes the loss NaN. The loss has the dtype of ``x``, under autocast fp32.
    ``weight`` (classes) weighs each row by its target. Gradients are deterministic.

    ``gradient_in_forward`` computes the gradient with the loss, which is faster if a backward pass follows, and slower if none does or if
    the loss is scaled first. None decides: True for a reduced loss, but False in fp16, where gradients underflow before a loss scaler
    multiplies them, under torch.compile, which would copy the gradient to scale it, and with ``weight``. ``config`` is one of ``CONFIGS``.
    Raises ValueError, naming the argument, for probabilities as targets, other dtypes, shapes that do not fit, and devices without CUDA.
    """
    if not checks.use_triton():
        return F.cross_entropy(
            x, target, weight, ignore_index=ignore_index, reduction=reduction, label_smoothing=label_smoothing
        )
    check_tensors(x=x)
    check_loss(target, reduction, label_smoothing)
    if x.dim() == 0:
        raise ValueError("x has no dimension of classes: give at least one")
    axis = min(x.dim() - 1, 1)
    classes = x.shape[axis]
    if classes == 0:
        raise ValueError(f"x has shape {tuple(x.shape)}: there are no classes")
    if tuple(target.shape) != (*x.shape[:axis], *x.shape[axis + 1 :]):
        raise ValueError(f"target has shape {tuple(target.shape)}: give that of x, {tuple(x.shape)}, without classes")
    check_together(x=x, target=target)
    rows = as_rows(x if axis == x.dim() - 1 else x.movedim(axis, -1), classes)
    flat = target if target.dim() == 1 and target.is_contiguous() else target.reshape(-1).contiguous()
    if weight is not None:
        if tuple(weight.shape) != (classes,):
            raise ValueError(f"weight has shape {tuple(weight.shape)}: give one number a class, ({classes},)")
        check_tensors(weight=weight)
        check_together(x=x, weight=weight)
        checks.check_no_grad("cross_entropy", weight=weight)

        def losses(smoothing: float) -> torch.Tensor:
            return _cross_entropy(rows, flat, ignore_index, smoothing, 0, torch.float32, wants_grad(x), pack(config))[0]

        loss = _weighed(losses, rows, flat, weight, ignore_index, reduction, label_smoothing).to(result_dtype(x))
        return loss.reshape(target.shape) if reduction == "none" else loss
    arguments = (rows, flat, ignore_index, float(label_smoothing), REDUCTIONS[reduction], result_dtype(x))
    if gradient_in_forward is None:
        keeps = x.dtype != torch.float16  # a loss scaler will multiply fp16 gradients
        gradient_in_forward = reduction != "none" and keeps and not torch.compiler.is_compiling()
    if gradient_in_forward and wants_grad(x):
        # dx, of the same strides, is scaled in place later, which needs contiguous rows.
        loss, *_ = _with_gradient(rows.contiguous(), *arguments[1:], pack(config))
    else:
        loss, _, _ = _cross_entropy(*arguments, wants_grad(x), pack(config))
    return loss.reshape(target.shape) if reduction == "none" else loss


class CrossEntropyLoss(torch.nn.Module):
    """``cross_entropy`` as a module, like ``torch.nn.CrossEntropyLoss``."""

    weight: torch.Tensor | None

    def __init__(
        self, weight: torch.Tensor | None = None, *, ignore_index: int = -100, reduction: str = "mean",
        label_smoothing: float = 0.0, gradient_in_forward: bool | None = None,
    ) -> None:  # fmt: skip
        super().__init__()
        self.register_buffer("weight", weight)
        self.options: dict[str, Any] = {"ignore_index": ignore_index, "reduction": reduction}
        self.options |= {"label_smoothing": label_smoothing, "gradient_in_forward": gradient_in_forward}

    def forward(self, x: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        """The loss of logits ``x`` and class indices. Raises ValueError as ``cross_entropy`` does."""
        return cross_entropy(x, target, self.weight, **self.options)


def reference(x: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    """The reference in plain PyTorch."""
    return F.cross_entropy(x, target)


def gradient_later(x: torch.Tensor, target: torch.Tensor, config: Config | None = None) -> torch.Tensor:
    """``cross_entropy`` that computes the gradient in the backward pass."""
    return cross_entropy(x, target, gradient_in_forward=False, config=config)


def eager(x: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    """log_softmax, gather and mean: writes and reads the log-probabilities of all classes."""
    return -torch.log_softmax(x, -1).gather(-1, target[:, None]).mean()


def liger(x: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    """Liger-Kernel's function, imported at the first call because it is an optional dependency. It overwrites x with the gradient."""
    from liger_kernel.ops.cross_entropy import LigerCrossEntropyFunction  # noqa: PLC0415

    return LigerCrossEntropyFunction.apply(x, target, None)[0]


@drawn
def inputs(draw: Draw, rows: int, columns: int) -> dict[str, Any]:
    """``x`` of rows x columns, standard normal, and a uniformly random ``target`` per row."""
    target = draw.empty(rows, dtype=torch.int64)
    if draw.numbers is not None:
        target.random_(0, max(columns, 1), generator=draw.numbers)
    return {"x": draw(rows, columns, grad=True), "target": target}


def cost(workload: Workload, direction: str) -> Cost:
    """Forward reads logits and targets and writes the loss. A step also writes dx.

    A row counts as read once, because it can stay on chip or in L2. The parts of each row's log-sum-exp, 8 bytes, are not counted.
    Operations per element: forward, subtract, exponential, add. A step adds subtract, exponential, subtract the target's share, scale.
    """
    rows, size = workload.dims["rows"], workload.bytes
    if direction == FORWARD:
        return Cost(flops=3 * workload.elements, bytes_read=size + 8 * rows, bytes_written=workload.itemsize)
    return Cost(flops=7 * workload.elements, bytes_read=size + 8 * rows, bytes_written=size + workload.itemsize)


SPEC = declare(
    "cross_entropy", "cross-entropy of logits", "rows columns",
    "small 128x1024-bf16, medium 4096x32000-bf16, large 8192x128256-bf16, ragged 1823x781-fp32",
    triton=Implementation(cross_entropy, "the gradient computed with the loss", CONFIGS),
    two_passes=Implementation(gradient_later, "one read for the loss; backward from the logits", CONFIGS),
    eager=Implementation(eager, "log_softmax, gather and mean, one after the other"),
    aten=Implementation(reference, "torch.nn.functional.cross_entropy"),
    liger=Implementation(liger, "Liger-Kernel's, in place", requires=("liger-kernel",)),
    reference=reference, inputs=inputs, cost=cost, tolerance={"fp32": 1e-5, "fp16": 8e-4, "bf16": 6e-3},
    passes="forward forward+backward",
)  # fmt: skip
