"""What kernels with operands of one byte share: the checks of such an operand, and of a GPU for FP8."""

from __future__ import annotations

import torch

from tilescope_kernels._shared.operators import check_integers


def check_operands(
    dtypes: tuple[torch.dtype, ...],
    *,
    dims: int | None = None,
    beside: torch.Tensor | None = None,
    **tensors: torch.Tensor,
) -> None:
    """Raises ValueError naming the first tensor that a kernel cannot serve.

    Each must be of one of ``dtypes``, have ``dims`` dimensions where that is given, and be on the device of ``beside``:
    a CUDA device, one with FP8 for FP8, unless the launch is caught or interpreted.
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
    """Raises ValueError where the tensor is on a GPU that converts no e4m3: one before Ada (sm_89)."""
    if tensor.is_cuda and not torch.compiler.is_compiling():
        major, minor = torch.cuda.get_device_capability(tensor.device)
        if (major, minor) < (8, 9):
            raise ValueError(f"{name} is on an sm_{major}{minor}: FP8 (e4m3) needs sm_89 or later; use torch.int8")
