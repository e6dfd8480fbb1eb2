"""The products of ``linear_cross_entropy``, in two parts where the number of classes is not a multiple of 16 bytes.

cuBLAS chooses its kernels by extents, not only by strides. If an extent of 16-bit operands is not a multiple of 16 bytes, it takes
slow kernels that move two bytes at a time, even if all rows are aligned. In fp32 all extents are equally fast.
"""

from __future__ import annotations

import torch

#: Elements of 16 bytes.
_ALIGNED = 8


def slices(classes: int, dtype: torch.dtype) -> list[slice]:
    """Slices of classes to multiply one at a time: the last few that are no multiple of 16 bytes, then the others."""
    even = classes // _ALIGNED * _ALIGNED
    if dtype == torch.float32 or even in (0, classes):
        return [slice(0, classes)]
    return [slice(even, classes), slice(0, even)]


def write_logits(logits: torch.Tensor, x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None) -> None:
    """Write ``x @ weight.T``, plus ``bias`` unless None, to ``logits``."""
    for part in slices(weight.shape[0], x.dtype):
        if bias is None:
            torch.mm(x, weight[part].T, out=logits[:, part])
        else:
            torch.addmm(bias[part], x, weight[part].T, out=logits[:, part])


def write_dx(dx: torch.Tensor, logits: torch.Tensor, weight: torch.Tensor) -> None:
    """Write ``logits @ weight`` to ``dx``. Of two parts the smaller one comes first, so that the larger one is rounded once."""
    first, *others = slices(weight.shape[0], dx.dtype)
    torch.mm(logits[:, first], weight[first], out=dx)
    for part in others:
        dx.addmm_(logits[:, part], weight[part])


def write_dw(dw: torch.Tensor, logits: torch.Tensor, x: torch.Tensor) -> None:
    """Write ``logits.T @ x`` to ``dw``."""
    for part in slices(dw.shape[0], dw.dtype):
        torch.mm(logits[:, part].T, x, out=dw[part])


def add_dw(dw: torch.Tensor, logits: torch.Tensor, x: torch.Tensor) -> None:
    """Add ``logits.T @ x`` to ``dw``, rounding once."""
    for part in slices(dw.shape[0], dw.dtype):
        dw[part].addmm_(logits[:, part].T, x)
