"""Checks of a public function's tensors, and the switch between Triton and PyTorch."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping

import torch
from triton.runtime import jit

#: The dtypes that every kernel takes.
FLOATING = (torch.float32, torch.float16, torch.bfloat16)


def use_triton() -> bool:
    """Whether functions launch Triton kernels. ``TILESCOPE_USE_TRITON=0`` has them run their PyTorch reference instead."""
    return os.environ.get("TILESCOPE_USE_TRITON") != "0"


def _reaches_a_gpu() -> bool:
    """Whether a launch goes to a GPU: it is not interpreted, and ``JITFunction.run`` is Triton's own."""
    interpreted = os.environ.get("TRITON_INTERPRET", "0").lower() in ("1", "true", "on", "yes", "y")
    return not interpreted and jit.JITFunction.run.__module__ == jit.__name__


def check_tensors(**tensors: torch.Tensor | None) -> None:
    """Check that all tensors have one dtype of ``FLOATING`` and are on one device. None is skipped.

    It must be a CUDA device, unless a collector catches the launch or it is interpreted. Raises ValueError naming the
    first tensor that does not fit.
    """
    if not _agree(tensors.values(), mixed=False):
        _check(tensors, mixed=False)


def check_mixed(**tensors: torch.Tensor | None) -> None:
    """As ``check_tensors``, but fp32 is allowed beside 16 bits, as autocast activations have it beside fp32 weights."""
    if not _agree(tensors.values(), mixed=True):
        _check(tensors, mixed=True)


def _agree(tensors: Iterable[torch.Tensor | None], mixed: bool) -> bool:
    """Whether these are ordinary tensors on one GPU whose dtypes fit. It is quick; ``_check`` judges all other tensors."""
    if torch.compiler.is_compiling():
        return False
    device, dtype = -1, None
    for tensor in tensors:
        if tensor is None:
            continue
        kind = type(tensor)
        if (kind is not torch.Tensor and kind is not torch.nn.Parameter) or not tensor.is_cuda:
            return False
        own = tensor.dtype
        if dtype is None:
            device, dtype = tensor.get_device(), own
            if own not in FLOATING:
                return False
        elif tensor.get_device() != device or (
            own is not dtype and not (mixed and own in FLOATING and torch.float32 in (own, dtype))
        ):
            return False
    return dtype is not None


def _check(tensors: Mapping[str, torch.Tensor | None], mixed: bool) -> None:
    given = {name: tensor for name, tensor in tensors.items() if tensor is not None}
    first_name, first = next(iter(given.items()))
    # Operators cast what they are given under autocast.
    mixed_freely = isinstance(first, torch.Tensor) and autocast_dtype(first) is not None
    for name, tensor in given.items():
        if not isinstance(tensor, torch.Tensor):
            raise ValueError(f"{name} must be a tensor, not {type(tensor).__name__}")
        if tensor.dtype not in FLOATING:
            raise ValueError(f"{name} is {tensor.dtype}: give torch.float32, torch.float16 or torch.bfloat16")
        if (
            tensor.dtype != first.dtype
            and not (mixed and torch.float32 in (tensor.dtype, first.dtype))
            and not mixed_freely
        ):
            raise ValueError(f"{name} is {tensor.dtype} but {first_name} is {first.dtype}: give both one dtype")
        if tensor.device != first.device:
            raise ValueError(f"{name} is on {tensor.device} but {first_name} is on {first.device}: move one of them")
    _check_place(first_name, first)


def check_integers(dtypes: tuple[torch.dtype, ...] = (torch.int32,), **tensors: torch.Tensor) -> None:
    """Raise ValueError naming the first tensor whose dtype is not in ``dtypes``, or that is not on a CUDA device."""
    for name, tensor in tensors.items():
        if not isinstance(tensor, torch.Tensor):
            raise ValueError(f"{name} must be a tensor, not {type(tensor).__name__}")
        if tensor.dtype not in dtypes:
            raise ValueError(f"{name} is {tensor.dtype}: give {' or '.join(map(str, dtypes))}")
        _check_place(name, tensor)


def _check_place(name: str, tensor: torch.Tensor) -> None:
    """Raise ValueError for a tensor that no launch can read. Tensors without data are not read."""
    if tensor.is_cuda or tensor.is_meta or torch.compiler.is_compiling() or not _reaches_a_gpu():
        return
    if not isinstance(tensor, torch._subclasses.FakeTensor):
        raise ValueError(
            f"{name} is on {tensor.device}: Triton needs a CUDA device; move it with .cuda(), "
            "or set TILESCOPE_USE_TRITON=0 for plain PyTorch"
        )


def autocast_dtype(tensor: torch.Tensor) -> torch.dtype | None:
    """The dtype of ``torch.autocast`` on the tensor's device; None where autocast is off."""
    kind = tensor.device.type
    if kind not in ("cuda", "cpu") or not torch.is_autocast_enabled(kind):
        return None
    return torch.get_autocast_dtype(kind)


def check_no_grad(function: str, **tensors: torch.Tensor) -> None:
    """Raise ValueError where a tensor requires a gradient, for functions without one: they would lose it silently."""
    for name, tensor in tensors.items():
        if tensor.requires_grad and torch.is_grad_enabled():
            raise ValueError(f"{name} requires a gradient and {function} has none: pass {name}.detach()")
