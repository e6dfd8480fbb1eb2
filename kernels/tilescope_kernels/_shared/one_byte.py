"""Checks of one-byte operands (INT8, FP8), and of FP8 support of the GPU."""

from __future__ import annotations

import torch

from tilescope_kernels._shared.checks import check_integers


def check_operands(
    dtypes: tuple[torch.dtype, ...], *, dims: int | None = None, beside: torch.Tensor | None = None, **tensors: torch.Tensor
) -> None:  # fmt: skip
    """Check each tensor's dtype, its number of dimensions if ``dims`` is given, and that it is on the device of ``beside``.

    The device must be CUDA, with FP8 support for FP8 tensors, unless the launch is caught or interpreted. Raises ValueError
    naming the first tensor that does not fit.
    """
    check_integers(dtypes, **tensors)
    for name, tensor in tensors.items():
        if dims is not None and tensor.dim() != dims:
            raise ValueError(f"{name} has {tensor.dim()} dimensions: give {dims}")
        if beside is not None and tensor.device != beside.device:
            raise ValueError(f"{name} is on {tensor.device} but its operand is on {beside.device}: move one of them")
        if tensor.dtype == torch.float8_e4m3fn:
            check_has_fp8(tensor, name)


def check_has_fp8(tensor: torch.Tensor, name: str) -> None:
    """Raise ValueError if the tensor is on a GPU without e4m3 conversion, that is before Ada (sm_89)."""
    if tensor.is_cuda and not torch.compiler.is_compiling():
        major, minor = torch.cuda.get_device_capability(tensor.device)
        if (major, minor) < (8, 9):
            raise ValueError(f"{name} is on an sm_{major}{minor}: FP8 (e4m3) needs sm_89 or later; use torch.int8")
