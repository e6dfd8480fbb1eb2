"""Registration of launchers as PyTorch operators, and helpers for their arguments and results.

torch.compile does not trace into an operator, and ``torch.library.opcheck`` can test it.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch

from tilescope_kernels._shared import launching


class Operator:
    """A launcher registered as ``torch.ops.tilescope.NAME``, for compilers, and as ``torch.ops.tilescope.NAME.plain``.

    PyTorch's dispatcher calls the plain one, which has no gradient, several times faster. A call outside a compiler uses it, in an
    ``autograd.Function`` of the same two functions where a gradient is wanted.
    """

    def __init__(self, name: str, launch: Callable[..., Any], mutates: tuple[str, ...]) -> None:
        self._operator = torch.library.custom_op(f"tilescope::{name}", launch, mutates_args=mutates)
        self._plain_name = f"tilescope::{name}.plain"
        #: The decorated function.
        self.launcher = launch
        torch.library.define(
            self._plain_name,
            torch.library.infer_schema(launch, mutates_args=mutates),
            tags=(torch.Tag.pt2_compliant_tag,),
        )
        torch.library.impl(self._plain_name, "default", _counted(launch, mutates) if mutates else launch)
        self._plain = getattr(torch.ops.tilescope, name).plain
        self._function: Any = None
        functools.update_wrapper(self, launch)

    def register_fake(self, fake: Callable[..., Any]) -> Callable[..., Any]:
        """As of ``torch.library.custom_op``."""
        torch.library.register_fake(self._plain_name, fake)
        return self._operator.register_fake(fake)

    def register_autograd(self, backward: Callable[..., Any], *, setup_context: Callable[..., Any]) -> None:
        """As of ``torch.library.custom_op``."""
        self._operator.register_autograd(backward, setup_context=setup_context)

        def forward(ctx: Any, *args: Any) -> Any:
            # PyTorch would call ``setup_context`` itself, but binds the arguments to the signature first, which takes long.
            output = self._plain(*args)
            setup_context(ctx, args, output)
            return output

        methods = {"forward": staticmethod(forward), "backward": staticmethod(backward)}
        self._function = type(self.__name__, (torch.autograd.Function,), methods)

    def __call__(self, *args: Any) -> Any:
        """Launches, and records the backward pass for autograd."""
        if torch.compiler.is_compiling():
            return self._operator(*args)
        wants_gradient = torch.is_grad_enabled() and _wants_gradient(args)
        if wants_gradient is False:
            return self._plain(*args)
        if wants_gradient and self._function is not None:
            try:
                return self._function.apply(*args)
            except RuntimeError as error:
                # PyTorch raises this within ``torch.func.vmap`` and its like, before it calls ``forward``.
                if "functorch transforms" not in str(error):
                    raise
        return self._operator(*args)


def _wants_gradient(args: tuple[Any, ...]) -> bool | None:
    """Whether a tensor requires a gradient. None where one without memory may stand for one that does, as in ``torch.func.vmap``."""
    wants_gradient = False
    for value in args:
        if isinstance(value, torch.Tensor):
            wants_gradient = wants_gradient or value.requires_grad
            try:
                value.data_ptr()
            except RuntimeError:
                return None
    return wants_gradient


def _counted(launch: Callable[..., Any], mutates: Iterable[str]) -> Callable[..., Any]:
    """``launch``, which also tells autograd that it has written to its arguments ``mutates``."""
    places = [place for place, name in enumerate(inspect.signature(launch).parameters) if name in mutates]

    def call(*args: Any) -> Any:
        result = launch(*args)
        torch.autograd.graph.increment_version([args[place] for place in places])
        return result

    return call


def operator(name: str, mutates: Iterable[str] = ()) -> Callable[[Callable[..., Any]], Operator]:
    """Register the decorated launcher as ``torch.ops.tilescope.NAME``. ``mutates`` names the arguments it writes."""
    return lambda launch: Operator(name, launch, tuple(mutates))


def pack(config: Mapping[str, int] | None) -> str:
    """Write a config as text, ``"BLOCK=1024 num_warps=4"``, as operator schemas have no mappings. None becomes empty text."""
    return " ".join(f"{name}={value}" for name, value in config.items()) if config else ""


def unpack(text: str) -> dict[str, int] | None:
    """Read the config that ``pack`` wrote."""
    if not text:
        return None
    pairs = (item.split("=") for item in text.split())
    return {name: int(value) for name, value in pairs} or None


def wants_grad(*tensors: torch.Tensor | None) -> bool:
    """Whether autograd will ask for a gradient of any tensor, so that the forward pass must save for the backward pass."""
    for tensor in tensors:
        if tensor is not None and tensor.requires_grad:
            return torch.is_grad_enabled()
    return False


def autocast_dtype(tensor: torch.Tensor) -> torch.dtype | None:
    """The dtype of ``torch.autocast`` on the tensor's device; None where autocast is off."""
    kind = tensor.device.type
    if kind not in ("cuda", "cpu") or not torch.is_autocast_enabled(kind):
        return None
    return torch.get_autocast_dtype(kind)


def as_rows(x: torch.Tensor, columns: int) -> torch.Tensor:
    """View ``x`` as a matrix of ``columns`` columns with stride 1 along a row and any stride between rows. Copies if it must."""
    flat = x if x.dim() == 2 and x.shape[1] == columns else x.reshape(x.numel() // max(columns, 1), columns)
    return flat if flat.stride(1) == 1 else flat.contiguous()


def rows_like(x: torch.Tensor) -> torch.Tensor:
    """``torch.empty_like``, with rows of adjacent elements as ``x`` has them, though rows of ``x`` may overlap.

    Of windows that overlap, as ``unfold`` makes them, PyTorch may lay out columns instead.
    """
    y = torch.empty_like(x)
    return y if y.stride(-1) == 1 or y.shape[-1] == 1 else y.new_empty(x.shape)


def shaped_as(y: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    """``y`` in the shape of ``x``."""
    return y if y.shape == x.shape else y.reshape(x.shape)


def as_vector(weight: torch.Tensor | None) -> torch.Tensor | None:
    """Flatten a weight to one contiguous dimension. None stays None."""
    if weight is None or (weight.dim() == 1 and weight.is_contiguous()):
        return weight
    return weight.reshape(-1).contiguous()


def check_integers(dtypes: tuple[torch.dtype, ...] = (torch.int32,), **tensors: torch.Tensor) -> None:
    """Raise ValueError naming the first tensor whose dtype is not in ``dtypes``, or that is not on a CUDA device."""
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
