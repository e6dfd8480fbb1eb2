"""Registration of launchers as PyTorch operators, and helpers for their arguments and results.

torch.compile does not trace into an operator, and ``torch.library.opcheck`` can test it.
"""

from __future__ import annotations

import functools
import inspect
import sys
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch

from tilescope_kernels._shared import checks

#: What operators make of floating tensors under autocast, as ``torch.nn.functional`` does on a GPU: cast them to the dtype of autocast,
#: to fp32, or to the widest of them. Other operators take tensors as they are.
_AUTOCAST = {
    "lower": (
        "matmul lora_linear conv2d grouped_conv2d depthwise_conv2d attention ragged_attention paged_attention "
        "linear_cross_entropy layer_norm_linear rms_norm_gelu_linear"
    ),
    "fp32": "softmax layer_norm rms_norm group_norm row_sum",
    "widest": "vector_add add_relu_mul gated add_rms_norm",
}  # fmt: skip
_RULES = {name: rule for rule, names in _AUTOCAST.items() for name in names.split()}
#: The launchers by their operators' names, ``tilescope::NAME``.
LAUNCHERS: dict[str, Callable[..., Any]] = {}


class Operator:
    """A launcher registered as ``torch.ops.tilescope.NAME``, for compilers, and as ``torch.ops.tilescope.NAME.plain``.

    PyTorch's dispatcher calls the plain one, which has no gradient, several times faster. A call outside a compiler uses it, in an
    ``autograd.Function`` of the same two functions where a gradient is wanted.
    """

    def __init__(
        self, name: str, launch: Callable[..., Any], mutates: tuple[str, ...], fake: Callable[..., Any]
    ) -> None:
        self._operator = torch.library.custom_op(f"tilescope::{name}", launch, mutates_args=mutates)
        self._name = name
        plain = f"tilescope::{name}.plain"
        LAUNCHERS[f"tilescope::{name}"] = launch
        torch.library.define(
            plain,
            torch.library.infer_schema(launch, mutates_args=mutates),
            tags=(torch.Tag.pt2_compliant_tag,),
        )
        torch.library.impl(plain, "default", _counted(launch, mutates) if mutates else launch)
        torch.library.register_fake(plain, fake)
        self._operator.register_fake(fake)
        self._plain = getattr(torch.ops.tilescope, name).plain
        self._function: Any = None
        self._transformed = None if mutates else _transformed(self, name)
        self._rule = _RULES.get(name)
        if self._rule:
            for overload in (self._plain, getattr(torch.ops.tilescope, name).default):
                self._register_autocast(overload)
        functools.update_wrapper(self, launch)

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
        self._transformed = _transformed(self, self._name, backward, setup_context)

    def _register_autocast(self, overload: Any) -> None:
        # ``torch.library.register_autocast`` knows one dtype for all calls; here autocast's own is one of the rules.
        def cast(device: str, _: Any, *args: Any) -> Any:
            args = _cast(args, self._rule)
            with torch.autocast(device, enabled=False):
                return overload(*args)

        for device in ("cuda", "cpu"):
            kernel = functools.partial(cast, device)
            _library(overload.namespace).impl(overload.name(), kernel, f"Autocast{device.upper()}", with_keyset=True)

    def __call__(self, *args: Any) -> Any:
        """Launches, and records the backward pass for autograd."""
        if torch.compiler.is_compiling():
            return self._operator(*args)
        if self._rule and (device := _autocast_device(args)):
            args = _cast(args, self._rule)
            with torch.autocast(device, enabled=False):
                return self(*args)
        wants_gradient = _wants_gradient(args)
        if wants_gradient is None:
            if "torch.distributed.tensor" in sys.modules:
                from tilescope_kernels._shared import sharding  # noqa: PLC0415 - for DTensor alone

                sharding.register(self._name)
        elif not wants_gradient or not torch.is_grad_enabled():
            return self._plain(*args)
        elif self._function is not None:
            try:
                return self._function.apply(*args)
            except RuntimeError as error:
                # PyTorch raises this within ``torch.func.vmap`` and its like, before it calls ``forward``.
                if "functorch transforms" not in str(error):
                    raise
        return (self._transformed.apply if self._transformed else self._operator)(*args)


@functools.cache
def _library(namespace: str) -> torch.library.Library:
    return torch.library.Library(namespace, "FRAGMENT")


def _transformed(
    operator: Operator,
    name: str,
    backward: Callable[..., Any] | None = None,
    setup_context: Callable[..., Any] | None = None,
) -> type[torch.autograd.Function]:
    """The ``autograd.Function`` of an operator for ``torch.func`` and ``DTensor``, which PyTorch calls more slowly.

    Without a ``backward`` it refuses to be differentiated.
    """

    def refuse(*_: Any) -> Any:
        raise RuntimeError(
            f"tilescope::{name} has no autograd formula for this: functions here are differentiable once, in reverse mode; "
            "for other derivatives set TILESCOPE_USE_TRITON=0"
        )

    def vmap(info: Any, in_dims: tuple[Any, ...], *args: Any) -> Any:
        def of(item: int) -> tuple[Any, ...]:
            pairs = zip(args, in_dims, strict=True)
            return tuple(arg if dim is None else arg.select(dim, item) for arg, dim in pairs)

        results = [operator(*of(item)) for item in range(info.batch_size)]
        if isinstance(results[0], torch.Tensor):
            return torch.stack(results), 0
        return tuple(map(torch.stack, zip(*results, strict=True))), (0,) * len(results[0])

    methods = {
        "forward": operator._plain,
        "setup_context": setup_context or (lambda *_: None),
        "backward": backward or refuse,
        "jvp": refuse,
        "vmap": vmap,
    }
    return type(name, (torch.autograd.Function,), {key: staticmethod(value) for key, value in methods.items()})


def _is_floating(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and value.dtype in checks.FLOATING


def _autocast_device(args: tuple[Any, ...]) -> str | None:
    """The kind of device of the first floating tensor if autocast is on for it, else None."""
    first = next(filter(_is_floating, args))
    return first.device.type if checks.autocast_dtype(first) else None


def _cast(args: tuple[Any, ...], rule: str | None) -> tuple[Any, ...]:
    """Arguments of an operator under autocast, by its rule."""
    floating = list(filter(_is_floating, args))
    dtype: Any = torch.float32 if rule == "fp32" else checks.autocast_dtype(floating[0])
    if rule == "widest":
        dtype = functools.reduce(torch.promote_types, (tensor.dtype for tensor in floating))
    return tuple(arg.to(dtype) if _is_floating(arg) else arg for arg in args)


def _wants_gradient(args: tuple[Any, ...]) -> bool | None:
    """Whether a tensor requires a gradient. None where one stands for others, as in ``torch.func.vmap`` and as a ``DTensor``."""
    wants_gradient = False
    for value in args:
        if isinstance(value, torch.Tensor):
            if type(value) is not torch.Tensor and type(value) is not torch.nn.Parameter:
                return None
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


def operator(
    name: str, *, fake: Callable[..., Any], mutates: Iterable[str] = ()
) -> Callable[[Callable[..., Any]], Operator]:
    """Register the decorated launcher as ``torch.ops.tilescope.NAME``.

    ``fake`` makes the results without data, from the same arguments. ``mutates`` names the arguments that the launcher writes.
    """
    return lambda launch: Operator(name, launch, tuple(mutates), fake)


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
    """Whether autograd may ask for a gradient of any tensor, so that the forward pass must save for the backward pass."""
    return torch.is_grad_enabled() and _wants_gradient(tensors) is not False


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
