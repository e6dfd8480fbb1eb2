"""``softmax(x, dim)``, forward and backward: rows stay on chip, or long ones in L2, between reduction and result."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F

from tilescope_kernels._shared.checks import check_tensors, use_triton
from tilescope_kernels._shared.launching import cdiv, launch, multiprocessors, next_power_of_2
from tilescope_kernels._shared.operators import as_rows, operator, pack, shaped_as, unpack
from tilescope_kernels._shared.row_tiles import in_pieces, pieces_of, vector
from tilescope_kernels.reductions import softmax_kernels as kernels
from tilescope_kernels.reductions.softmax_gluon import softmax_backward_in_parts, softmax_with_held_rows
from tilescope_kernels.spec import FORWARD, Config, Cost, Draw, Implementation, Workload, declare, drawn, peer

#: ``ROWS`` per program. The first is the launcher's choice for rows of about 4096 columns.
CONFIGS = tuple({"ROWS": rows, "num_warps": warps} for rows in (1, 2, 4) for warps in (4, 1, 2, 8, 16, 32))

#: Bytes of the longest row of each operand in registers in the backward pass, by the bytes of an element.
_HELD_BACKWARD = {2: 64 * 1024, 4: 32 * 1024}
#: Bytes of the longest row for which an H200's L2 holds the rows of two programs per SM.
_IN_L2 = 176 * 1024
#: Columns of a part of a row.
_PART = 8192
#: Fewest columns of rows in pieces that are not 16-byte aligned, which as a block would be accessed element by element.
_LEAST_SKEWED = 513
#: Elements of the largest block of several rows.
_MOST = 32768


def _skewed(x: torch.Tensor) -> bool:
    """Whether rows are contiguous but not 16-byte aligned, so that those of all operands share their misalignment.

    Blocks and pieces access such rows one element at a time, which takes twice to three times as long.
    """
    return x.stride(0) == x.shape[1] and x.shape[1] * x.element_size() % 16 > 0


def _bytes(x: torch.Tensor) -> int:
    """Bytes of a row."""
    return x.shape[1] * x.element_size()


def _even(pieces: Config, most: int = 32) -> Config:
    """The parameters with an even number of pieces, up to ``most``: more widths share a compiled kernel. Two pieces are masked then."""
    steps = pieces["STEPS"]
    is_odd = steps % 2 and 1 < steps < most and not pieces["WHOLE"]
    return {**pieces, "STEPS": steps + 1} if is_odd else pieces


def _pieces(x: torch.Tensor, warps: int | None) -> Config | None:
    """``in_pieces``, but three pieces become four. More pieces would idle too many lanes.

    Rows that are contiguous but not 16-byte aligned have pieces of what aligned accesses cover (``whole_part``).
    """
    columns, size = x.shape[1], x.element_size()
    if not _skewed(x):
        found = in_pieces(x, warps)
        return found and _even(found, most=4)
    if columns < _LEAST_SKEWED:
        return None
    # At most 96 bytes per thread: of 1 to 32 warps, these were the fastest for softmax of 513 to 20001 columns in bf16.
    length = columns * size // 16 * (16 // size)
    pieces = pieces_of(length, size, warps or min(32, next_power_of_2(cdiv(length * size, 3072))))
    # The covered part has one of two lengths.
    return _even({**pieces, "WHOLE": False})


def _block(x: torch.Tensor, config: Config, elements: int, most: int) -> Config:
    """Parameters for whole rows in one block, of ``elements`` per thread in at most ``most`` warps.

    Raises ValueError for a config that does not fit.
    """
    block = next_power_of_2(x.shape[1])
    rows = config.get("ROWS", max(1, 1024 // block))
    if rows > 1 and rows * block > _MOST:
        raise ValueError(f"config has ROWS={rows}: a program holds at most {max(1, _MOST // block)} such rows")
    # Rows that are not 16-byte aligned are read one element at a time, each with its own address and mask.
    each = elements if _bytes(x) % 16 == 0 else min(elements, 8)
    warps = min(most, max(1, rows * block // (32 * each)))
    return {"num_warps": warps, **config, "ROWS": rows, "BLOCK": block, "VECTOR": vector(x)}


def _walked(x: torch.Tensor, config: Config, warps: int, accesses: int) -> Config:
    """Parameters for programs that walk one row, with so many 16-byte accesses in flight per thread.

    Raises ValueError for a config with several rows per program.
    """
    if config.get("ROWS", 1) > 1:
        raise ValueError(f"config has ROWS={config['ROWS']}: a program walks one row of so many columns")
    warps = config.get("num_warps", warps)
    lanes, width = 32 * accesses * warps, 16 // x.element_size()
    return {"num_warps": warps, "LANES": lanes, "WIDTH": width, "SKEWED": _skewed(x)}


def _write_pieces(y: torch.Tensor, x: torch.Tensor, config: Config) -> bool:
    """A program holds a row in registers, in pieces: over 4096 columns or not 16-byte aligned, up to 48 KB."""
    (rows, columns), skewed = x.shape, _skewed(x)
    # Few short rows are sooner done element by element, in more warps each, than in aligned pieces and their ends.
    short = columns <= 1024 and rows <= 16 * multiprocessors(x) if skewed else columns <= 4096
    if short or _bytes(x) > 48 * 1024 or config.get("ROWS", 1) > 1:
        return False
    # Norms take 16 warps where 8 are the default here, but exchange less.
    found = _pieces(x, config.get("num_warps", 8 if 12288 <= columns <= 16384 and not skewed else None))
    if found:
        launch(kernels.softmax_pieces_kernel, (rows,), y, x, x.stride(0), columns, SKEWED=skewed, **found)
    return found is not None


def _write_blocks(y: torch.Tensor, x: torch.Tensor, config: Config) -> bool:
    """A program holds a row, or several short ones, in registers as one block of up to 32 KB a row."""
    rows, columns = x.shape
    if next_power_of_2(columns) * x.element_size() > 32 * 1024:
        return False
    # 32 elements per thread are four 16-byte loads in flight at 16 bits.
    block = _block(x, config, 32, 16)
    launch(kernels.softmax_rows_kernel, (cdiv(rows, block["ROWS"]),), y, x, x.stride(0), rows, columns, **block)
    return True


def _write_held(y: torch.Tensor, x: torch.Tensor, config: Config) -> bool:
    """Two programs hold a row each in an SM's shared memory and registers."""
    return not config and softmax_with_held_rows(y, x, _skewed(x))


def _write_few(y: torch.Tensor, x: torch.Tensor, config: Config) -> bool:
    """Few rows, which alone would leave most SMs idle, are spread over the GPU in parts."""
    rows, columns = x.shape
    if config or rows > multiprocessors(x) // 4 or columns % 16 or x.stride(0) % 16:
        return False
    parts = cdiv(columns, _PART)
    sums = torch.empty((rows, parts, 2), dtype=torch.float32, device=x.device)
    grid, given, common = (rows * parts,), (x, x.stride(0), columns, parts), {"BLOCK": _PART, "num_warps": 8}
    launch(kernels.softmax_part_sums_kernel, grid, sums, *given, **common)
    launch(kernels.softmax_parts_kernel, grid, y, sums, *given, PARTS=next_power_of_2(parts), **common)
    return True


def _write_twice(y: torch.Tensor, x: torch.Tensor, config: Config) -> bool:
    """A program reads a row of any length twice, the second time from L2."""
    # With four accesses and 32 warps, one program fills an SM: with two per SM, L2 would evict very long rows before their second
    # read. Rows with ends exchange more, so they take 16 warps.
    skewed, long = _skewed(x), _bytes(x) > _IN_L2
    walked = _walked(x, config, 16 if skewed and not long else 32, 4 if skewed or long else 2)
    launch(kernels.softmax_online_kernel, (x.shape[0],), y, x, x.stride(0), x.shape[1], **walked)
    return True


def _grade_pieces(dx: torch.Tensor, dy: torch.Tensor, y: torch.Tensor, config: Config) -> bool:
    """As ``_write_pieces``. With a power of two of columns a block has no idle lanes and is as fast."""
    rows, columns = y.shape
    is_held = _bytes(y) <= _HELD_BACKWARD[y.element_size()] and config.get("ROWS", 1) == 1
    found = _pieces(y, config.get("num_warps")) if is_held and columns != next_power_of_2(columns) else None
    if found:
        launch(kernels.softmax_pieces_backward_kernel, (rows,), dx, dy, y, columns, SKEWED=_skewed(y), **found)
    return found is not None


def _grade_blocks(dx: torch.Tensor, dy: torch.Tensor, y: torch.Tensor, config: Config) -> bool:
    """As ``_write_blocks``."""
    rows, columns = y.shape
    if next_power_of_2(columns) * y.element_size() > _HELD_BACKWARD[y.element_size()]:
        return False
    block = _block(y, config, 16, 32)
    launch(kernels.softmax_rows_backward_kernel, (cdiv(rows, block["ROWS"]),), dx, dy, y, rows, columns, **block)
    return True


def _grade_parts(dx: torch.Tensor, dy: torch.Tensor, y: torch.Tensor, config: Config) -> bool:
    """Several programs hold a part each of rows of more than 64 KB, in shared memory."""
    return not config and _bytes(y) > 64 * 1024 and softmax_backward_in_parts(dx, dy, y)


def _grade_twice(dx: torch.Tensor, dy: torch.Tensor, y: torch.Tensor, config: Config) -> bool:
    """As ``_write_twice``."""
    launch(kernels.softmax_twice_backward_kernel, (y.shape[0],), dx, dy, y, y.shape[1], **_walked(y, config, 32, 2))
    return True


#: What fills the result and the gradient: the first of each that serves the rows.
_FORWARD = (_write_pieces, _write_blocks, _write_held, _write_few, _write_twice)
_BACKWARD = (_grade_pieces, _grade_blocks, _grade_parts, _grade_twice)


@operator("softmax", autocast="fp32", shards="r r", fake=lambda x, _: x.new_empty(x.shape))
def _softmax(x: torch.Tensor, config: str) -> torch.Tensor:
    y = x.new_empty(x.shape)
    if y.numel():
        any(write(y, x, unpack(config) or {}) for write in _FORWARD)
    return y


@operator("softmax_backward", shards="rr r", fake=lambda _, y, __: y.new_empty(y.shape))
def _softmax_backward(dy: torch.Tensor, y: torch.Tensor, config: str) -> torch.Tensor:
    dx = y.new_empty(y.shape)
    if dx.numel():
        any(grade(dx, dy, y, unpack(config) or {}) for grade in _BACKWARD)
    return dx


@_softmax.gradient(lambda x, config, y: (y,))
def _differentiate(ctx: Any, dy: torch.Tensor) -> torch.Tensor:
    return _softmax_backward(dy.contiguous(), *ctx.saved_tensors, *ctx.rest)


def softmax(x: torch.Tensor, dim: int = -1, *, config: Config | None = None) -> torch.Tensor:
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


@drawn
def inputs(draw: Draw, rows: int, columns: int) -> dict[str, Any]:
    """``x`` of rows x columns, normal with standard deviation 2: some probabilities large, most small."""
    return {"x": draw(rows, columns, scale=2.0, grad=True)}


def cost(workload: Workload, direction: str) -> Cost:
    """Forward reads x and writes y; backward reads dy and y and writes dx. Each takes four operations per element.

    Forward: subtract, exponential, add, divide (comparisons for the maximum do not count). Backward: multiply and add for
    the inner product, subtract, multiply.
    """
    size = workload.bytes
    return Cost(flops=4 * workload.elements, bytes_read=size if direction == FORWARD else 2 * size, bytes_written=size)


SPEC = declare(
    "softmax", "softmax of each row", "rows columns",
    "small 128x1024-bf16, medium 4096x1024-bf16, large 16384x4096-bf16, ragged 1823x781-fp32, "
    "wide 8192x16384-bf16, widest 2048x65536-bf16",
    triton=Implementation(softmax, "one read, one write", CONFIGS),
    eager=Implementation(eager, "max, subtract, exp, sum and divide, one after the other"),
    aten=Implementation(reference, "torch.nn.functional.softmax"),
    liger=peer("liger-kernel", "liger_kernel.ops.softmax:LigerSoftmaxFunction.apply", "Liger-Kernel's"),
    reference=reference, inputs=inputs, cost=cost, tolerance={"fp32": 1e-6, "fp16": 1.1e-3, "bf16": 9e-3},
    passes="forward backward",
)  # fmt: skip
