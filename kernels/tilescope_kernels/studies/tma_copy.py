"""Are copies through TMA descriptors faster than through pointers? The same tiles, moved both ways."""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from triton.tools.tensor_descriptor import TensorDescriptor

from tilescope_kernels._shared.checks import check_no_grad, check_tensors, use_triton
from tilescope_kernels._shared.launching import launch, multiprocessors
from tilescope_kernels.spec import Config, Cost, Draw, Implementation, Workload, declare, drawn


@triton.jit
def tile_copy_kernel(
    y_ptr, x_ptr, y_tiles, x_tiles, rows, columns, ROWS: tl.constexpr, COLUMNS: tl.constexpr, STAGES: tl.constexpr
):  # fmt: skip
    """Copy tiles ``program, program + programs, ...``, STAGES in flight, through TMA descriptors or, if None, pointers."""
    across = tl.cdiv(columns, COLUMNS)
    for tile in tl.range(tl.program_id(0), tl.cdiv(rows, ROWS) * across, tl.num_programs(0), num_stages=STAGES):
        row = tile // across * ROWS
        column = tile % across * COLUMNS
        if x_tiles is not None:
            y_tiles.store([row, column], x_tiles.load([row, column]))
        else:
            # Only the tile's origin needs 64 bits; offsets within it fit 32.
            origin = row.to(tl.int64) * columns + column
            m = tl.arange(0, ROWS)[:, None]
            n = tl.arange(0, COLUMNS)[None, :]
            mask = (row + m < rows) & (column + n < columns)
            values = tl.load(x_ptr + origin + (m * columns + n), mask=mask)
            tl.store(y_ptr + origin + (m * columns + n), values, mask=mask)


#: ``WALKS`` programs per SM walk the tiles; 0 is one program per tile.
CONFIGS = tuple(
    dict(zip(("ROWS", "COLUMNS", "WALKS", "STAGES", "num_warps"), parts, strict=True))
    for parts in (
        (16, 256, 0, 1, 4), (8, 256, 0, 1, 4), (32, 256, 0, 1, 8), (64, 64, 0, 1, 4), (128, 64, 0, 1, 8),
        (16, 256, 4, 3, 4), (32, 256, 2, 3, 8), (64, 128, 2, 3, 8), (64, 256, 1, 3, 8),
    )
)  # fmt: skip


def _launch(x: torch.Tensor, descriptors: bool, config: Config | None) -> torch.Tensor:
    y = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    if y.numel() == 0:
        return y
    (rows, columns), chosen = x.shape, dict(config or CONFIGS[0])
    block = [chosen["ROWS"], chosen["COLUMNS"]]
    tiles = triton.cdiv(rows, block[0]) * triton.cdiv(columns, block[1])
    walks = chosen.pop("WALKS") * multiprocessors(x)
    reach = [TensorDescriptor(t, [rows, columns], [columns, 1], block) if descriptors else None for t in (y, x)]
    launch(tile_copy_kernel, (min(tiles, walks) if walks else tiles,), y, x, *reach, rows, columns, **chosen)
    return y


def _check(x: torch.Tensor) -> torch.Tensor:
    check_tensors(x=x)
    if x.dim() != 2:
        raise ValueError(f"x has {x.dim()} dimensions: give a matrix")
    check_no_grad("this copy", x=x)
    return x.contiguous()


def copy_through_pointers(x: torch.Tensor, *, config: Config | None = None) -> torch.Tensor:
    """Copy a matrix (fp32, fp16, bf16). Raises ValueError, naming the argument, for other dtypes and shapes."""
    return _launch(_check(x), False, config) if use_triton() else reference(x)


def copy_through_descriptors(x: torch.Tensor, *, config: Config | None = None) -> torch.Tensor:
    """Copy a matrix through TMA descriptors. Raises ValueError also for rows that are not 16-byte aligned."""
    if not use_triton():
        return reference(x)
    x = _check(x)
    if x.shape[1] * x.element_size() % 16 or x.data_ptr() % 16:
        raise ValueError(f"x has {x.shape[1]} columns of {x.dtype}: give rows of a multiple of 16 bytes, aligned to 16")
    return _launch(x, True, config)


def reference(x: torch.Tensor) -> torch.Tensor:
    """The reference in plain PyTorch."""
    return x.clone()


@drawn
def inputs(draw: Draw, rows: int, columns: int) -> dict[str, Any]:
    """``x`` of rows x columns, standard normal."""
    return {"x": draw(rows, columns)}


def cost(workload: Workload, direction: str) -> Cost:
    """One read, one write."""
    size = workload.bytes
    return Cost(flops=0, bytes_read=size, bytes_written=size)


SPEC = declare(
    "tma_copy", "a copy by tensor descriptors against one by pointers", "rows columns",
    "small 128x1024-bf16, medium 4096x1024-bf16, large 16384x4096-bf16, ragged 1823x784-fp32, empty 0x1024-bf16",
    triton=Implementation(copy_through_pointers, "tiles through pointers", CONFIGS),
    tma=Implementation(copy_through_descriptors, "the same tiles through tensor descriptors", CONFIGS),
    eager=Implementation(reference, "torch.clone"),
    reference=reference, inputs=inputs, cost=cost, tolerance={"fp32": 0.0, "fp16": 0.0, "bf16": 0.0},
)  # fmt: skip
