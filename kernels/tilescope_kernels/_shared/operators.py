"""Registration of launchers as PyTorch operators, and what operators take and return.

torch.compile does not trace into an operator, and ``torch.library.opcheck`` can test it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch

from tilescope_kernels._shared import launching


def operator(name: str, mutates: Iterable[str] = ()) -> Callable[[Callable[..., Any]], Any]:
    """Register the decorated launcher as ``torch.ops.tilescope.name``. ``mutates`` names the arguments it writes."""
    return torch.library.custom_op(f"tilescope::{name}", mutates_args=tuple(mutates))


def pack(config: Mapping[str, int] | None) -> str:
    """Write a config as text, ``"BLOCK=1024 num_warps=4"``: an operator's schema has no mappings. None is empty text."""
    return " ".join(f"{name}={value}" for name, value in (config or {}).items())


def unpack(text: str) -> dict[str, int] | None:
    """Read the config that ``pack`` wrote."""
    pairs = (item.split("=") for item in text.split())
    return {name: int(value) for name, value in pairs} or None


def wants_grad(*tensors: torch.Tensor | None) -> bool:
    """Whether autograd will ask for a gradient of any tensor, so that the forward pass must save for the backward pass."""
    return torch.is_grad_enabled() and any(tensor is not None and tensor.requires_grad for tensor in tensors)


def autocast_dtype(tensor: torch.Tensor) -> torch.dtype | None:
    """The dtype of ``torch.autocast`` on the tensor's device; None where autocast is off."""
    kind = tensor.device.type
    if kind not in ("cuda", "cpu") or not torch.is_autocast_enabled(kind):
        return None
    return torch.get_autocast_dtype(kind)


def as_rows(x: torch.Tensor, columns: int) -> torch.Tensor:
    """View ``x`` as a matrix of so many columns with stride 1 along a row and any stride between rows. Copies if it must."""
    flat = x.reshape(x.numel() // max(columns, 1), columns)
    return flat if flat.stride(1) == 1 else flat.contiguous()


def check_integers(dtypes: tuple[torch.dtype, ...] = (torch.int32,), **tensors: torch.Tensor) -> None:
    """Raises ValueError naming the first tensor whose dtype is not in ``dtypes``, or that is not on a CUDA device."""
    for name, tensor in tensors.items():
        if not isinstance(tensor, torch.Tensor):
            raise ValueError(f"{name} must be a tensor, not {type(tensor).__name__}")
        if tensor.dtype not in dtypes:
            raise ValueError(f"{name} is {tensor.dtype}: give {' or '.join(map(str, dtypes))}")
        if not tensor.is_cuda and not torch.compiler.is_compiling() and launching._reaches_a_gpu():
            raise ValueError(
                f"{name} is on {tensor.device}: Triton needs a CUDA device; move it with .cuda(), "
                "or set TILESCOPE_USE_TRITON=0 for plain PyTorch"
            )
