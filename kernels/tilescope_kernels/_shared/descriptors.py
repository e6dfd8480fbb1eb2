"""Host-side TMA descriptors, most of them of matrices, for kernels in Triton and in Gluon.

A ``Form`` makes them. The callers guarantee what their classes check.
"""

from __future__ import annotations

import functools
from typing import Any

import torch
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.nvidia.hopper import TensorDescriptor as GluonDescriptor
from triton.tools.tensor_descriptor import TensorDescriptor

from tilescope_kernels._shared.plans import Form

_GLUON = {
    torch.bfloat16: gl.bfloat16,
    torch.float16: gl.float16,
    torch.int8: gl.int8,
    torch.float8_e4m3fn: gl.float8e4nv,
}


@functools.cache
def _layout(rows: int, wide: int, dtype: torch.dtype) -> gl.NVMMASharedLayout:
    return gl.NVMMASharedLayout.get_default_for([rows, wide], _GLUON[dtype])


def _filled(kind: type, matrix: torch.Tensor, rows: int, wide: int, turned: bool, **more: Any) -> Form:
    # The inner stride is set to 1: PyTorch may give a single column any stride.
    strides, shape, block = [matrix.stride(int(turned)), 1], list(matrix.shape), [rows, wide]
    if turned:
        shape, block = shape[::-1], block[::-1]
    return Form(kind, shape, strides, block, **more)


def tiles(matrix: torch.Tensor, rows: int, wide: int, turned: bool = False) -> Form:
    """The form of descriptors of (rows, wide) tiles of matrices like this one, with 16-byte aligned rows.

    ``turned``: the matrix is column-major with 16-byte aligned columns, and the descriptor is of (wide, rows) tiles of its transpose.
    """
    return _filled(TensorDescriptor, matrix, rows, wide, turned)


def gluon_tiles(
    matrix: torch.Tensor, rows: int, wide: int, turned: bool = False, layout: gl.NVMMASharedLayout | None = None
) -> Form:
    """As ``tiles``, for a kernel in Gluon, with the swizzled shared-memory layout that wgmma reads unless ``layout`` is given."""
    shape = (wide, rows) if turned else (rows, wide)
    return _filled(GluonDescriptor, matrix, rows, wide, turned, layout=layout or _layout(*shape, matrix.dtype))


def workspace(size: int, alignment: int, stream: int | None) -> torch.Tensor:
    """Allocate the memory of a launch's device-side TMA descriptors. PyTorch aligns it to 512 bytes."""
    return torch.empty(size, dtype=torch.int8, device="cuda")
