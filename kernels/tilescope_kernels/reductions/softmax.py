"""``softmax(x, dim)``, forward and backward: rows stay on chip, or long ones in L2, between reduction and result."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
import torch.nn.functional as F

from tilescope_kernels._shared.declarations import compiled, generator, normal
from tilescope_kernels._shared.integers import cdiv, next_power_of_2
from tilescope_kernels._shared.launches import launch
from tilescope_kernels._shared.launching import check_tensors, multiprocessors, split_config, use_triton
from tilescope_kernels._shared.operators import as_rows, operator, pack, shaped_as, unpack
from tilescope_kernels._shared.row_tiles import even, in_pieces, in_skewed_pieces, vector
from tilescope_kernels.reductions.softmax_held_rows import softmax_with_held_rows
from tilescope_kernels.reductions.softmax_kernels import (
    softmax_online_kernel,
    softmax_part_sums_kernel,
    softmax_parts_kernel,
    softmax_pieces_backward_kernel,
    softmax_pieces_kernel,
    softmax_rows_backward_kernel,
    softmax_rows_kernel,
    softmax_twice_backward_kernel,
)
from tilescope_kernels.reductions.softmax_wide_rows import softmax_backward_in_parts
from tilescope_kernels.spec import BACKWARD, FORWARD, Cost, Implementation, KernelSpec, Workload

#: ``ROWS`` per program. The first is the launcher's choice for rows of about 4096 columns.
CONFIGS = tuple({"ROWS": rows, "num_warps": warps} for rows in (1, 2, 4) for warps in (4, 1, 2, 8, 16, 32))

#: Bytes of the longest row in registers, as a block and as pieces. Longer rows are held in shared memory, or where they do not fit
#: read twice, the second time from L2, and several programs per SM overlap loads with arithmetic.
_HELD, _HELD_IN_PIECES = 32 * 1024, 48 * 1024
#: The same for each operand in the backward pass, by the bytes of an element.
_HELD_BACKWARD = {2: 64 * 1024, 4: 32 * 1024}
#: Bytes above which an aligned row is split into parts in the backward pass, where possible.
_CUT = 64 * 1024
#: Bytes of the longest row for which an H200's L2 holds the rows of two programs per SM.
_IN_L2 = 176 * 1024
#: Columns of a part of a long row of few, which alone would leave most SMs idle.
_PART = 8192
#: Most columns of rows that the forward pass takes as one block.
_ROWS = 4096
#: Elements of the largest tile of several rows.
_MOST = 32768


def _skewed(x: torch.Tensor) -> bool:
    """Whether rows are contiguous but not 16-byte aligned, so that those of all operands share their misalignment.

    Blocks and pieces access such rows one element at a time, which takes twice to three times as long.
    """
    return x.stride(0) == x.shape[1] and x.shape[1] * x.element_size() % 16 > 0


def _is_small(x: torch.Tensor) -> bool:
    """Whether few short rows are sooner done element by element, in more warps each, than in aligned pieces and their ends.

    Longer rows are not faster this way.
    """
    return x.shape[1] <= 1024 and x.shape[0] <= 16 * multiprocessors(x)


def _in_pieces(x: torch.Tensor, config: Mapping[str, int] | None) -> tuple[dict[str, int], dict[str, int]] | None:
    """Kernel parameters and launch options for programs that hold one row of ``x`` in pieces; None for other programs."""
    columns = x.shape[1]
    chosen, options = split_config(config or {})
    if columns * x.element_size() > _HELD_IN_PIECES or chosen.get("ROWS", 1) > 1:
        return None
    if _skewed(x):
        return None if _is_small(x) else in_skewed_pieces(x, options)
    if columns <= _ROWS:
        return None
    if 12288 <= columns <= 16384:
        # Norms take 16 warps here, but exchange less.
        options.setdefault("num_warps", 8)
    return _shared_with_others(in_pieces(x, options))


def _backward_in_pieces(
    y: torch.Tensor, config: Mapping[str, int] | None
) -> tuple[dict[str, int], dict[str, int]] | None:
    """As ``_in_pieces``, for the backward pass. With a power of two of columns a block has no idle lanes and is as fast.

    Pieces take as long as an addition of two such tensors.
    """
    columns = y.shape[1]
    chosen, options = split_config(config or {})
    power_of_two = columns == next_power_of_2(columns)
    if power_of_two or columns * y.element_size() > _HELD_BACKWARD[y.element_size()] or chosen.get("ROWS", 1) > 1:
        return None
    return in_skewed_pieces(y, options) if _skewed(y) else _shared_with_others(in_pieces(y, options))


def _shared_with_others(
    found: tuple[dict[str, int], dict[str, int]] | None,
) -> tuple[dict[str, int], dict[str, int]] | None:
    """Three pieces become four, so that more widths share a compiled kernel. More pieces would idle too many lanes."""
    return found and (even(found[0], most=4), found[1])


def _rows(x: torch.Tensor, config: Mapping[str, int] | None) -> tuple[dict[str, int], dict[str, int]]:
    """Kernel parameters and launch options for whole rows in one block. Raises ValueError for a config that does not fit."""
    block = next_power_of_2(x.shape[1])
    chosen, options = split_config(config or {})
    rows = chosen.get("ROWS", max(1, 1024 // block))
    if rows > 1 and rows * block > _MOST:
        raise ValueError(f"config has ROWS={rows}: a program holds at most {max(1, _MOST // block)} such rows")
    return {"ROWS": rows, "BLOCK": block, "VECTOR": vector(x)}, options


def _walked(config: Mapping[str, int] | None, warps: int) -> dict[str, int]:
    """Launch options for programs that walk one row. Raises ValueError for a config with several rows per program."""
    chosen, options = split_config(config or {})
    if chosen.get("ROWS", 1) > 1:
        raise ValueError(f"config has ROWS={chosen['ROWS']}: a program walks one row of so many columns")
    return {"num_warps": warps, **options}


def _warps(x: torch.Tensor, block: int, elements: int, most: int) -> int:
    """Number of warps for ``block`` elements at ``elements`` per thread, at most ``most``."""
    # Rows that are not 16-byte aligned are read one element at a time, each with its own address and mask.
    aligned = x.shape[1] * x.element_size() % 16 == 0
    return min(most, max(1, block // (32 * (elements if aligned else min(elements, 8)))))


def _write_long_rows(y: torch.Tensor, x: torch.Tensor, config: Mapping[str, int] | None) -> None:
    """Fill y with the softmax of rows held in shared memory, of few rows in parts, or else of rows that are read twice."""
    rows, columns = x.shape
    skewed, width = _skewed(x), 16 // x.element_size()
    if not config and softmax_with_held_rows(y, x, skewed):
        return
    if not config and rows <= multiprocessors(x) // 4 and columns % 16 == x.stride(0) % 16 == 0:
        parts = cdiv(columns, _PART)
        sums = torch.empty((rows, parts, 2), dtype=torch.float32, device=x.device)
        common = {"BLOCK": _PART, "num_warps": 8}
        launch(softmax_part_sums_kernel, (rows * parts,), sums, x, x.stride(0), columns, parts, **common)
        launch(
            softmax_parts_kernel, (rows * parts,),
            y, sums, x, x.stride(0), columns, parts,
            PARTS=next_power_of_2(parts), **common,
        )  # fmt: skip
        return
    # Two or four 16-byte loads in flight per thread. With four and 32 warps, one program fills an SM: with two per SM, L2 would
    # evict very long rows before their second read. Rows with ends exchange more, so they take 16 warps.
    long = columns * x.element_size() > _IN_L2
    options = _walked(config, 16 if skewed and not long else 32)
    lanes = (128 if skewed or long else 64) * options["num_warps"]
    launch(
        softmax_online_kernel, (rows,),
        y, x, x.stride(0), columns,
        LANES=lanes, WIDTH=width, SKEWED=skewed, **options,
    )  # fmt: skip


@operator("softmax", fake=lambda x, _: x.new_empty(x.shape))
def _softmax(x: torch.Tensor, config: str) -> torch.Tensor:
    rows, columns = x.shape
    y = x.new_empty(rows, columns)
    if y.numel() == 0:
        return y
    if pieces := _in_pieces(x, unpack(config)):
        parameters, options = pieces
        launch(
            softmax_pieces_kernel, (rows,),
            y, x, x.stride(0), columns,
            SKEWED=_skewed(x), **parameters, **options,
        )  # fmt: skip
    elif next_power_of_2(columns) * x.element_size() <= _HELD:
        parameters, options = _rows(x, unpack(config))
        # 32 elements per thread are four 16-byte loads in flight at 16 bits.
        options.setdefault("num_warps", _warps(x, parameters["ROWS"] * parameters["BLOCK"], 32, 16))
        launch(
            softmax_rows_kernel, (cdiv(rows, parameters["ROWS"]),),
            y, x, x.stride(0), rows, columns,
            **parameters, **options,
        )  # fmt: skip
    else:
        _write_long_rows(y, x, unpack(config))
    return y


@operator("softmax_backward", fake=lambda _, y, __: y.new_empty(y.shape))
def _softmax_backward(dy: torch.Tensor, y: torch.Tensor, config: str) -> torch.Tensor:
    rows, columns = y.shape
    dx = y.new_empty(rows, columns)
    if dx.numel() == 0:
        return dx
    if pieces := _backward_in_pieces(y, unpack(config)):
        parameters, options = pieces
        launch(softmax_pieces_backward_kernel, (rows,), dx, dy, y, columns, SKEWED=_skewed(y), **parameters, **options)
    elif next_power_of_2(columns) * y.element_size() <= _HELD_BACKWARD[y.element_size()]:
        parameters, options = _rows(y, unpack(config))
        options.setdefault("num_warps", _warps(y, parameters["ROWS"] * parameters["BLOCK"], 16, 32))
        launch(
            softmax_rows_backward_kernel, (cdiv(rows, parameters["ROWS"]),),
            dx, dy, y, rows, columns,
            **parameters, **options,
        )  # fmt: skip
    else:
        skewed = _skewed(y)
        if config or columns * y.element_size() <= _CUT or not softmax_backward_in_parts(dx, dy, y):
            options = _walked(unpack(config), 32)
            launch(
                softmax_twice_backward_kernel, (rows,),
                dx, dy, y, columns,
                LANES=64 * options["num_warps"], WIDTH=16 // y.element_size(), SKEWED=skewed, **options,
            )  # fmt: skip
    return dx


def _save(ctx: Any, inputs: tuple[Any, ...], output: torch.Tensor) -> None:
    ctx.config = inputs[1]
    ctx.save_for_backward(output)


def _differentiate(ctx: Any, dy: torch.Tensor) -> tuple[torch.Tensor, None]:
    (y,) = ctx.saved_tensors
    return _softmax_backward(dy.contiguous(), y, ctx.config), None


_softmax.register_autograd(_differentiate, setup_context=_save)


def softmax(x: torch.Tensor, dim: int = -1, *, config: Mapping[str, int] | None = None) -> torch.Tensor:
    """Softmax of ``x`` (fp32, fp16, bf16; any shape and strides) along ``dim``, computed in fp32.

    As ``torch.nn.functional.softmax``, including infinities and NaN; once differentiable. Rows of up to 48 KB (32 KB if they
    are neither contiguous nor 16-byte aligned) are read once, and on GPUs with enough shared memory those of up to 128 KB;
    longer ones a second time from L2. ``config`` is one of ``CONFIGS``. Raises
    ValueError, naming the argument, for other dtypes, a ``dim`` that ``x`` does not have, and devices without CUDA.
    """
    if not use_triton():
        return reference(x, dim)
    check_tensors(x=x)
    axes = max(x.dim(), 1)
    if not -axes <= dim < axes:
        raise ValueError(f"dim is {dim}: x has {x.dim()} dimensions, so give {-axes} to {axes - 1}")
    if dim in (-1, x.dim() - 1) and x.dim():
        return shaped_as(_softmax(as_rows(x, x.shape[-1]), pack(config)), x)
    moved = x.reshape(1) if x.dim() == 0 else x.movedim(dim, -1)
    y = _softmax(as_rows(moved, moved.shape[-1]), pack(config)).reshape(moved.shape)
    return y.reshape(()) if x.dim() == 0 else y.movedim(-1, dim)


def reference(x: torch.Tensor, dim: int = -1) -> torch.Tensor:
    """The reference in plain PyTorch."""
    return F.softmax(x, dim)


def eager(x: torch.Tensor) -> torch.Tensor:
    """The formula one operation at a time, through memory."""
    # The gradient through the maximum is zero; detaching it saves a useless backward operation.
    e = (x - x.amax(-1, keepdim=True).detach()).exp()
    return e / e.sum(-1, keepdim=True)


def aten(x: torch.Tensor) -> torch.Tensor:
    """PyTorch's fused kernel."""
    return F.softmax(x, -1)


def liger(x: torch.Tensor) -> torch.Tensor:
    """Liger-Kernel's function, imported at the first call because it is an optional dependency."""
    from liger_kernel.ops.softmax import LigerSoftmaxFunction  # noqa: PLC0415

    return LigerSoftmaxFunction.apply(x)


def inputs(workload: Workload, device: Any) -> dict[str, Any]:
    """``x`` of rows x columns, normal with standard deviation 2: some probabilities large, most small."""
    numbers = generator(workload, device)
    shape = (workload.dims["rows"], workload.dims["columns"])
    return {"x": normal(shape, workload, device, numbers, scale=2.0, requires_grad=True)}


def cost(workload: Workload, direction: str) -> Cost:
    """Forward reads x and writes y; backward reads dy and y and writes dx. Each takes four operations per element.

    Forward: subtract, exponential, add, divide (comparisons for the maximum do not count). Backward: multiply and add for
    the inner product, subtract, multiply.
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
        "liger": Implementation(liger, "Liger-Kernel's", requires=("liger-kernel",)),
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
    tolerance={"fp32": 1e-6, "fp16": 1.1e-3, "bf16": 9e-3},
    passes=(FORWARD, BACKWARD),
)
