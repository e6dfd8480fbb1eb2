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

from tilescope_kernels._shared import checks, launching


class _Function(torch.autograd.Function):
    """The base of every operator's ``autograd.Function``. PyTorch's ``apply`` binds arguments to a signature, which takes long."""

    @classmethod
    def apply(cls, *args: Any) -> Any:
        functorch = torch._C._are_functorch_transforms_active()
        return (super() if functorch else super(torch.autograd.Function, cls)).apply(*args)


class Operator:
    """A launcher registered as ``torch.ops.tilescope.NAME``, for compilers, and as ``torch.ops.tilescope.NAME.plain``.

    PyTorch's dispatcher calls the plain one, which has no gradient, several times faster. A call outside a compiler uses it, in an
    ``autograd.Function`` where a gradient is wanted.

    ``fake`` makes the results without data, from the same arguments. ``mutates`` names the arguments that the launcher writes.

    ``autocast``: floating tensors are cast under autocast, as ``torch.nn.functional`` does on a GPU, to the dtype of autocast
    (``"lower"``), to ``"fp32"``, or to the ``"widest"`` of them.

    ``shards`` has a letter for each tensor, then for each output of a ``DTensor``: ``e`` is sharded along any dimension, ``r`` along
    the first, ``w`` is whole on every rank, and ``p`` is a sum of which every rank has a part.
    """

    def __init__(
        self, name: str, launch: Callable[..., Any], *, fake: Callable[..., Any], mutates: Iterable[str] = (),
        autocast: str = "", shards: str = "",
    ) -> None:  # fmt: skip
        functools.update_wrapper(self, launch)
        self.name, self.shards, self._autocast = name, shards, autocast
        self._operator = torch.library.custom_op(f"tilescope::{name}", launch, mutates_args=mutates)
        plain, schema = f"tilescope::{name}.plain", torch.library.infer_schema(launch, mutates_args=mutates)
        torch.library.define(plain, schema, tags=(torch.Tag.pt2_compliant_tag,))
        torch.library.impl(plain, "default", _counted(launch, mutates) if mutates else launch)
        # While launches are compiled and not made, results on ``meta`` come from the launcher.
        torch.library.register_fake(plain, lambda *args: (fake if launching.THREAD.started is None else launch)(*args))  # noqa: PLW0108
        self._operator.register_fake(fake)
        self.overloads = [getattr(getattr(torch.ops.tilescope, name), each) for each in ("plain", "default")]
        self._plain = self.overloads[0]
        self._apply: Callable[..., Any] = (
            self._operator if mutates else self._function(lambda *_: None, self._refuse).apply
        )
        for overload in self.overloads if autocast else ():
            # ``torch.library.register_autocast`` knows one dtype for all calls; here autocast's own is one of the rules.
            for device in ("cuda", "cpu"):
                kernel = functools.partial(self._cast_call, overload, device)
                torch.library.impl(overload.name(), f"Autocast{device.upper()}", kernel)

    def gradient(
        self, saves: Callable[..., tuple[Any, ...]], of: int = 1
    ) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
        """Register the decorated gradient of the first ``of`` outputs. The others have none.

        ``saves`` selects what to save from the inputs and outputs. The gradient takes the context, with the inputs that are no tensors
        (``rest``) and the ``dtypes`` of all, and the outputs' gradients. It returns the gradients of the first inputs.
        """
        arguments = self._plain._schema.arguments
        rest = [place for place, argument in enumerate(arguments) if "Tensor" not in str(argument.type)]

        def save(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
            outputs = output if isinstance(output, tuple) else (output,)
            if len(outputs) > of:
                # None in place of a gradient saves a launch that writes zeros.
                ctx.set_materialize_grads(False)
                ctx.mark_non_differentiable(*outputs[of:])
            ctx.rest, ctx.dtypes = [inputs[place] for place in rest], [getattr(each, "dtype", None) for each in inputs]
            ctx.save_for_backward(*saves(*inputs, *outputs))

        def register(gradient: Callable[..., Any]) -> Callable[..., Any]:
            def backward(ctx: Any, *given: torch.Tensor | None) -> tuple[torch.Tensor | None, ...]:
                found = () if all(each is None for each in given[:of]) else gradient(ctx, *given[:of])
                found = found if isinstance(found, tuple) else (found,)
                return *found, *(None,) * (len(arguments) - len(found))

            self._operator.register_autograd(backward, setup_context=save)
            self._apply = self._function(save, backward).apply
            return gradient

        return register

    def _function(self, save: Callable[..., None], backward: Callable[..., Any]) -> type[torch.autograd.Function]:
        passes = {"forward": self._plain, "setup_context": save, "backward": backward}
        methods = {**passes, "jvp": self._refuse, "vmap": self._vmap}
        return type(self.__name__, (_Function,), {name: staticmethod(method) for name, method in methods.items()})

    def _refuse(self, *_: Any) -> Any:
        raise RuntimeError(
            f"tilescope::{self.name} has no autograd formula for this: functions here are differentiable once, in reverse mode; "
            "for other derivatives set TILESCOPE_USE_TRITON=0"
        )

    def _vmap(self, info: Any, in_dims: tuple[Any, ...], *args: Any) -> Any:
        def of(item: int) -> tuple[Any, ...]:
            pairs = zip(args, in_dims, strict=True)
            return tuple(arg if dim is None else arg.select(dim, item) for arg, dim in pairs)

        results = [self(*of(item)) for item in range(info.batch_size)]
        if isinstance(results[0], torch.Tensor):
            return torch.stack(results), 0
        return tuple(map(torch.stack, zip(*results, strict=True))), (0,) * len(results[0])

    def _cast_call(self, call: Callable[..., Any], device: str, *args: Any) -> Any:
        """Calls with arguments as ``torch.nn.functional`` casts them under autocast, and without autocast."""
        floating = list(filter(_is_floating, args))
        dtype: Any = torch.float32 if self._autocast == "fp32" else checks.autocast_dtype(floating[0])
        if self._autocast == "widest":
            dtype = functools.reduce(torch.promote_types, (tensor.dtype for tensor in floating))
        with torch.autocast(device, enabled=False):
            return call(*(arg.to(dtype) if _is_floating(arg) else arg for arg in args))

    def __call__(self, *args: Any) -> Any:
        """Launches, and records the backward pass for autograd."""
        if torch.compiler.is_compiling():
            return self._operator(*args)
        casts = self._autocast and (torch.is_autocast_enabled("cuda") or torch.is_autocast_enabled("cpu"))
        if casts and checks.autocast_dtype(first := next(filter(_is_floating, args))):
            return self._cast_call(self, first.device.type, *args)
        wants_gradient = requires_gradient(args)
        if wants_gradient is None:
            if "torch.distributed.tensor" in sys.modules:
                from tilescope_kernels._shared import sharding  # noqa: PLC0415 - for DTensor alone

                sharding.take_dtensors(self)
            return self._apply(*args)
        wants_gradient = wants_gradient and torch.is_grad_enabled()
        launching.THREAD.prepares = self, args, wants_gradient
        try:
            return self._apply(*args) if wants_gradient else self._plain(*args)
        finally:
            launching.THREAD.prepares = None


def _is_floating(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and value.dtype in checks.FLOATING


def requires_gradient(args: tuple[Any, ...]) -> bool | None:
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


def operator(name: str, **options: Any) -> Callable[[Callable[..., Any]], Operator]:
    """Register the decorated launcher as an ``Operator`` with these options."""
    return lambda launch: Operator(name, launch, **options)


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
    return torch.is_grad_enabled() and requires_gradient(tensors) is not False


def as_rows(x: torch.Tensor, columns: int) -> torch.Tensor:
    """View ``x`` as a matrix of ``columns`` columns with stride 1 along a row and any stride between rows. Copies if it must."""
    flat = x if x.dim() == 2 and x.shape[1] == columns else x.reshape(x.numel() // max(columns, 1), columns)
    return flat if flat.stride(1) == 1 else flat.contiguous()


def neighbours(x: torch.Tensor) -> torch.Tensor:
    """``x``, copied unless its last dimension has stride 1."""
    return x if x.stride(-1) == 1 else x.contiguous()


def rows_like(x: torch.Tensor) -> torch.Tensor:
    """``torch.empty_like``, with rows of adjacent elements as ``x`` has them, though rows of ``x`` may overlap.

    ``empty_like`` may lay out columns for windows that overlap, as ``unfold`` makes them. On ``meta`` it imports SymPy.
    """
    y = x.clone() if x.is_meta else torch.empty_like(x)
    return y if y.stride(-1) == 1 or y.shape[-1] == 1 else y.new_empty(x.shape)


def shaped_as(y: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    """``y`` in the shape of ``x``."""
    return y if y.shape == x.shape else y.reshape(x.shape)


def as_vector(weight: torch.Tensor | None) -> torch.Tensor | None:
    """Flatten a weight to one contiguous dimension. None stays None."""
    if weight is None or (weight.dim() == 1 and weight.is_contiguous()):
        return weight
    return weight.reshape(-1).contiguous()
