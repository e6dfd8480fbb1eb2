"""``softmax(x, dim)``, forward and backward: each row is read once while it fits a program's registers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
import torch.nn.functional as F
import triton
import triton.language as tl

from tilescope_kernels._declare import compiled, generator, normal
from tilescope_kernels._launch import check_tensors, device_of, split_config, use_triton
from tilescope_kernels.spec import BACKWARD, FORWARD, Cost, Implementation, KernelSpec, Workload

LOG2_E = tl.constexpr(1.4426950408889634)


@triton.jit
def softmax_rows_kernel(
    y_ptr, x_ptr, x_stride, rows, columns, ROWS: tl.constexpr, BLOCK: tl.constexpr, RECOMPUTE: tl.constexpr
):
    """``ROWS`` whole rows a program: one read, one write."""
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)[:, None]
    column = tl.arange(0, BLOCK)[None, :]
    mask = (row < rows) & (column < columns)
    x = tl.load(x_ptr + row * x_stride + column, mask=mask, other=float("-inf"))
    # A row of -inf gives -inf - -inf, so NaN, and one NaN spreads to its whole row: both as in PyTorch.
    largest = tl.max(x.to(tl.float32), axis=1, keep_dims=True)
    e = tl.exp(x.to(tl.float32) - largest)
    total = tl.sum(e, axis=1, keep_dims=True)
    if RECOMPUTE:  # noqa: SIM108 (a conditional expression would leave no room for the reason)
        # The longest rows fit the register file in 16 bits but not as fp32 exponentials, so those are computed twice.
        # Written the other way round (largest - x), or the compiler would see one expression and keep its value.
        y = tl.exp2((largest - x.to(tl.float32)) * -LOG2_E - tl.log2(total))
    else:
        y = e * (1.0 / total)
    tl.store(y_ptr + row * columns + column, y.to(y_ptr.dtype.element_ty), mask=mask)


@triton.jit
def softmax_online_kernel(y_ptr, x_ptr, x_stride, columns, BLOCK: tl.constexpr):
    """One row a program, in blocks: two reads, one write (Milakov and Gimelshein, arXiv:1805.02867)."""
    row = tl.program_id(0).to(tl.int64)
    x_ptr += row * x_stride
    y_ptr += row * columns
    offsets = tl.arange(0, BLOCK)
    # Running maximum and sum of each lane; lanes meet once, after the loop.
    largest = tl.full((BLOCK,), float("-inf"), tl.float32)
    total = tl.zeros((BLOCK,), tl.float32)
    for start in range(0, columns, BLOCK):
        x = tl.load(x_ptr + start + offsets, mask=start + offsets < columns, other=float("-inf")).to(tl.float32)
        raised = tl.maximum(largest, x)
        # A lane that has seen only -inf must add zeros, not exp(-inf - -inf).
        shift = tl.where(raised == float("-inf"), 0.0, raised)
        total = total * tl.exp(largest - shift) + tl.exp(x - shift)
        largest = raised
    row_largest = tl.max(largest, axis=0)
    # A row of -inf alone has the sum 0, and 0 * (1 / 0) is the NaN that PyTorch gives.
    row_shift = tl.where(row_largest == float("-inf"), 0.0, row_largest)
    inverse = 1.0 / tl.sum(total * tl.exp(largest - row_shift), axis=0)
    # Backwards: the row's end was read last and is the likeliest to be in a cache still.
    blocks = tl.cdiv(columns, BLOCK)
    for block in range(0, blocks):
        start = (blocks - 1 - block) * BLOCK
        mask = start + offsets < columns
        x = tl.load(x_ptr + start + offsets, mask=mask).to(tl.float32)
        y = tl.exp(x - row_shift) * inverse
        tl.store(y_ptr + start + offsets, y.to(y_ptr.dtype.element_ty), mask=mask)


@triton.jit
def softmax_rows_backward_kernel(dx_ptr, dy_ptr, y_ptr, rows, columns, ROWS: tl.constexpr, BLOCK: tl.constexpr):
    """``dx = (dy - sum(dy * y)) * y`` of ``ROWS`` whole rows a program: two reads, one write."""
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)[:, None]
    column = tl.arange(0, BLOCK)[None, :]
    mask = (row < rows) & (column < columns)
    offsets = row * columns + column
    dy = tl.load(dy_ptr + offsets, mask=mask, other=0.0)
    y = tl.load(y_ptr + offsets, mask=mask, other=0.0)
    inner = tl.sum(dy.to(tl.float32) * y.to(tl.float32), axis=1, keep_dims=True)
    dx = (dy.to(tl.float32) - inner) * y.to(tl.float32)
    tl.store(dx_ptr + offsets, dx.to(dx_ptr.dtype.element_ty), mask=mask)


@triton.jit
def softmax_blocks_backward_kernel(dx_ptr, dy_ptr, y_ptr, columns, BLOCK: tl.constexpr):
    """The same for one row a program, in blocks: four reads, one write."""
    row = tl.program_id(0).to(tl.int64)
    dx_ptr += row * columns
    dy_ptr += row * columns
    y_ptr += row * columns
    offsets = tl.arange(0, BLOCK)
    products = tl.zeros((BLOCK,), tl.float32)
    for start in range(0, columns, BLOCK):
        mask = start + offsets < columns
        dy = tl.load(dy_ptr + start + offsets, mask=mask, other=0.0).to(tl.float32)
        y = tl.load(y_ptr + start + offsets, mask=mask, other=0.0).to(tl.float32)
        products += dy * y
    inner = tl.sum(products, axis=0)
    blocks = tl.cdiv(columns, BLOCK)
    for block in range(0, blocks):
        start = (blocks - 1 - block) * BLOCK
        mask = start + offsets < columns
        dy = tl.load(dy_ptr + start + offsets, mask=mask).to(tl.float32)
        y = tl.load(y_ptr + start + offsets, mask=mask).to(tl.float32)
        tl.store(dx_ptr + start + offsets, ((dy - inner) * y).to(dx_ptr.dtype.element_ty), mask=mask)


#: ``ROWS`` is the rows of one program. The first is what the launcher chooses for rows of about 4096 columns.
CONFIGS = tuple({"ROWS": rows, "num_warps": warps} for rows in (1, 2, 4) for warps in (4, 1, 2, 8, 16, 32))

#: Bytes of a row that a program holds in registers: half of a multiprocessor's 256 KB.
_HELD = 128 * 1024
#: The same for each of the backward pass's two operands. Longer rows are walked: the second read of 132 such rows
#: hits L2, and several small programs on a multiprocessor overlap one's loads with another's arithmetic.
_HELD_BACKWARD = 16 * 1024
#: Elements of a block where a row is walked: 16 a thread at 16 warps.
_WALKED = 8192
#: Elements of the largest tile of several rows.
_MOST = 32768


def _tile(
    x: torch.Tensor, held: int, elements: int, config: Mapping[str, int] | None
) -> tuple[dict[str, int], dict[str, int]]:
    """Kernel parameters and launch options for the rows of ``x``.

    A program holds rows of up to ``held`` bytes; longer ones are walked in blocks, and there is no ``ROWS`` among the
    parameters. A thread holds ``elements``. Raises ValueError for a config whose rows do not fit.
    """
    block = triton.next_power_of_2(x.shape[1])
    if x.shape[1] * x.element_size() % 16:
        # Rows that do not start at 16 bytes are read one element at a time: each needs its own address and mask.
        elements = min(elements, 8)
    chosen, options = split_config(config or {})
    rows = chosen.get("ROWS", max(1, 1024 // block))
    if rows > 1 and rows * block > _MOST:
        raise ValueError(f"config has ROWS={rows}: a program holds at most {max(1, _MOST // block)} such rows")
    options.setdefault("num_warps", min(16, max(1, rows * block // (32 * elements))))
    return ({"ROWS": rows, "BLOCK": block} if block * x.element_size() <= held else {"BLOCK": _WALKED}), options


def _forward(x: torch.Tensor, config: Mapping[str, int] | None) -> torch.Tensor:
    rows, columns = x.shape
    y = torch.empty((rows, columns), dtype=x.dtype, device=x.device)
    if y.numel() == 0:
        return y
    # 32 elements a thread are four 16-byte accesses at 16 bits, in flight together.
    parameters, options = _tile(x, _HELD, 32, config)
    with device_of(x):
        if "ROWS" in parameters:
            recompute = parameters["BLOCK"] > _HELD // 4
            grid = (triton.cdiv(rows, parameters["ROWS"]),)
            softmax_rows_kernel[grid](
                y, x, x.stride(0), rows, columns, **parameters, RECOMPUTE=recompute, **options
            )  # fmt: skip
        else:
            softmax_online_kernel[(rows,)](y, x, x.stride(0), columns, **parameters, **options)
    return y


def _backward(dy: torch.Tensor, y: torch.Tensor, config: Mapping[str, int] | None) -> torch.Tensor:
    rows, columns = y.shape
    dx = torch.empty_like(y)
    if y.numel() == 0:
        return dx
    parameters, options = _tile(y, _HELD_BACKWARD, 16, config)
    with device_of(y):
        if "ROWS" in parameters:
            grid = (triton.cdiv(rows, parameters["ROWS"]),)
            softmax_rows_backward_kernel[grid](dx, dy.contiguous(), y, rows, columns, **parameters, **options)
        else:
            softmax_blocks_backward_kernel[(rows,)](dx, dy.contiguous(), y, columns, **parameters, **options)
    return dx


class _Softmax(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, config: Mapping[str, int] | None) -> torch.Tensor:
        y = _forward(x, config)
        ctx.save_for_backward(y)
        ctx.config = config
        return y

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, dy: torch.Tensor) -> tuple[torch.Tensor, None]:
        (y,) = ctx.saved_tensors
        return _backward(dy, y, ctx.config), None


def softmax(x: torch.Tensor, dim: int = -1, *, config: Mapping[str, int] | None = None) -> torch.Tensor:
    """Softmax of ``x`` (fp32, fp16, bf16; any shape and strides) along ``dim``, computed in fp32.

    As ``torch.nn.functional.softmax``, infinities and NaN included; once differentiable. Rows of up to 128 KB are
    read once (16 KB of each operand in the backward pass), longer ones twice. ``config`` is one of ``CONFIGS``.
    Raises ValueError, naming the argument, for what it cannot serve.
    """
    if not use_triton():
        return reference(x, dim)
    check_tensors(x=x)
    axes = max(x.dim(), 1)
    if not -axes <= dim < axes:
        raise ValueError(f"dim is {dim}: x has {x.dim()} dimensions, so give {-axes} to {axes - 1}")
    moved = x.reshape(1) if x.dim() == 0 else x.movedim(dim, -1)
    columns = moved.shape[-1]
    # Rows may lie any distance apart, elements of a row must be neighbours.
    flat = moved.reshape(moved.numel() // max(columns, 1), columns)
    flat = flat if flat.stride(1) == 1 else flat.contiguous()
    y = _Softmax.apply(flat, config).reshape(moved.shape)
    return y.reshape(()) if x.dim() == 0 else y.movedim(-1, dim)


def reference(x: torch.Tensor, dim: int = -1) -> torch.Tensor:
    """The same in plain PyTorch."""
    return F.softmax(x, dim)


def eager(x: torch.Tensor) -> torch.Tensor:
    """The formula as four operations, each of which reads and writes memory."""
    # The gradient through the maximum is zero, so detaching it saves the backward pass a useless one.
    shifted = x - x.amax(-1, keepdim=True).detach()
    e = shifted.exp()
    return e / e.sum(-1, keepdim=True)


def aten(x: torch.Tensor) -> torch.Tensor:
    """PyTorch's own fused kernel."""
    return F.softmax(x, -1)


def inputs(workload: Workload, device: Any) -> dict[str, Any]:
    """``x`` of rows x columns, normal with standard deviation 2: some probabilities large, most small."""
    numbers = generator(workload, device)
    shape = (workload.dims["rows"], workload.dims["columns"])
    return {"x": normal(shape, workload, device, numbers, scale=2.0, requires_grad=True)}


def cost(workload: Workload, direction: str) -> Cost:
    """Forward reads x and writes y; backward reads dy and y and writes dx. Four operations an element each.

    Forward: subtract, exponential, add, divide (comparisons for the maximum are no operations). Backward: multiply
    and add for the inner product, subtract, multiply.
    """
    size = workload.elements * workload.itemsize
    return Cost(flops=4 * workload.elements, bytes_read=size if direction == FORWARD else 2 * size, bytes_written=size)


SPEC = KernelSpec(
    name="softmax",
    summary="softmax of each row",
    dims=("rows", "columns"),
    implementations={
        "triton": Implementation(softmax, "one read, one write", CONFIGS),
        "eager": Implementation(eager, "max, subtract, exp, sum and divide, one after the other"),
        "compile": Implementation(compiled(eager), "torch.compile of eager"),
        "aten": Implementation(aten, "torch.nn.functional.softmax"),
    },
    reference=reference,
    inputs=inputs,
    workloads=(
        Workload({"rows": 128, "columns": 1024}, "bf16", label="small"),
        Workload({"rows": 4096, "columns": 1024}, "bf16", label="medium"),
        Workload({"rows": 16384, "columns": 4096}, "bf16", label="large"),
        Workload({"rows": 1823, "columns": 781}, "fp32", label="ragged"),
        Workload({"rows": 8192, "columns": 16384}, "bf16", label="wide"),
        Workload({"rows": 2048, "columns": 65536}, "bf16", label="widest"),
    ),
    cost=cost,
    tolerance={"fp32": 1e-6, "fp16": 4e-3, "bf16": 3e-2},
    passes=(FORWARD, BACKWARD),
)
