"""Checks of a public function's tensors, and the switch between Triton and PyTorch."""

from __future__ import annotations

import os

import torch
from triton.runtime import jit

#: The dtypes that every kernel takes.
FLOATING = (torch.float32, torch.float16, torch.bfloat16)


def use_triton() -> bool:
    """Whether functions launch Triton kernels. ``TILESCOPE_USE_TRITON=0`` has them run their PyTorch reference instead."""
    return os.environ.get("TILESCOPE_USE_TRITON") != "0"


def check_tensors(mixed: bool = False, /, **tensors: torch.Tensor | None) -> None:
    """Check that all tensors have one dtype of ``FLOATING`` and are on one device. None is skipped.

    ``mixed`` allows fp32 beside 16 bits, as autocast activations have it beside fp32 weights. The device must be a CUDA device, unless
    a collector catches the launch or it is interpreted. Raises ValueError naming the first tensor that does not fit.
    """
    first_name, first = "", None
    for name, tensor in tensors.items():
        if tensor is None:
            continue
        _check_dtype(name, tensor, FLOATING)
        if first is None:
            first_name, first = name, tensor
            continue
        fits = tensor.dtype == first.dtype or (mixed and torch.float32 in (tensor.dtype, first.dtype))
        # Operators cast what they are given under autocast.
        if not fits and autocast_dtype(first) is None:
            raise ValueError(f"{name} is {tensor.dtype} but {first_name} is {first.dtype}: give both one dtype")
        if tensor.device != first.device:
            check_together(**{first_name: first, name: tensor})
    if first is not None:
        _check_place(first_name, first)


def check_integers(dtypes: tuple[torch.dtype, ...] = (torch.int32,), **tensors: torch.Tensor) -> None:
    """Raise ValueError naming the first tensor whose dtype is not in ``dtypes``, or that is not on a CUDA device."""
    for name, tensor in tensors.items():
        _check_dtype(name, tensor, dtypes)
        _check_place(name, tensor)


def _check_dtype(name: str, tensor: torch.Tensor, dtypes: tuple[torch.dtype, ...]) -> None:
    if not isinstance(tensor, torch.Tensor):
        raise ValueError(f"{name} must be a tensor, not {type(tensor).__name__}")
    if tensor.dtype not in dtypes:
        *most, last = map(str, dtypes)
        raise ValueError(f"{name} is {tensor.dtype}: give {' or '.join([', '.join(most), last] if most else [last])}")


def _check_place(name: str, tensor: torch.Tensor) -> None:
    """Raise ValueError for a tensor that no launch can read. Tensors without data are not read."""
    if tensor.is_cuda or tensor.is_meta or torch.compiler.is_compiling():
        return
    interpreted = os.environ.get("TRITON_INTERPRET", "0").lower() in ("1", "true", "on", "yes", "y")
    caught = jit.JITFunction.run.__module__ != jit.__name__
    if not interpreted and not caught and not isinstance(tensor, torch._subclasses.FakeTensor):
        raise ValueError(
            f"{name} is on {tensor.device}: Triton needs a CUDA device; move it with .cuda(), "
            "or set TILESCOPE_USE_TRITON=0 for plain PyTorch"
        )


def check_together(**tensors: torch.Tensor) -> None:
    """Raise ValueError naming the first tensor that is not on the device of the first."""
    (first_name, first), *others = tensors.items()
    for name, tensor in others:
        if tensor.device != first.device:
            raise ValueError(f"{name} is on {tensor.device} but {first_name} is on {first.device}: move one of them")


def check_alike(**tensors: torch.Tensor) -> None:
    """Raise ValueError naming the first tensor that has not the shape of the first."""
    (first_name, first), *others = tensors.items()
    for name, tensor in others:
        if tensor.shape != first.shape:
            shapes = f"{name} has shape {tuple(tensor.shape)} but {first_name} has {tuple(first.shape)}"
            raise ValueError(f"{shapes}: give both one shape")


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
