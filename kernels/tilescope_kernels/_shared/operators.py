"""Registration of launchers as PyTorch operators, and helpers for their arguments and results.

torch.compile does not trace into an operator, and ``torch.library.opcheck`` can test it.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterable, Mapping
from typing import Any, ParamSpec, TypeVar

import torch
from torch.autograd import forward_ad

from tilescope_kernels._shared import applied, launches, launching
from tilescope_kernels._shared.kept import PLAIN, Kept, is_extents
from tilescope_kernels.dispatch import without_compiler

Given, Result = ParamSpec("Given"), TypeVar("Result")
#: Attribute that is true of tensors whose calls may bypass the dispatcher.
DIRECT = "is_cuda"


class Operator:
    """A launcher registered as ``torch.ops.tilescope.name``, called directly where PyTorch's dispatcher has nothing to do.

    The dispatcher takes longer than many kernels. A call bypasses it when every tensor is an ordinary one on a GPU, as it is in memory, and
    no compiler, function transform, mode, profiler or forward-mode gradient is active. A gradient is then computed by an ``autograd.Function`` of
    the same two functions that the operator has.
    """

    def __init__(self, name: str, launch: Callable[..., Any], mutates: tuple[str, ...]) -> None:
        self._definition = torch.library.custom_op(f"tilescope::{name}", launch, mutates_args=mutates)
        self._operator = self._definition._opoverload
        implementations = self._definition._backend_fns
        implementations.update({device: without_compiler(hidden) for device, hidden in implementations.items()})
        self._launch = Kept(launch)
        #: Places of the arguments that it writes to.
        self._written = [place for place, name in enumerate(inspect.signature(launch).parameters) if name in mutates]
        self._apply: Any = None
        functools.update_wrapper(self, launch)

    def register_fake(self, fake: Callable[..., Any]) -> Callable[..., Any]:
        """As of ``torch.library.custom_op``."""
        return self._definition.register_fake(fake)

    def register_autograd(self, backward: Callable[..., Any], *, setup_context: Callable[..., Any]) -> None:
        """As of ``torch.library.custom_op``."""
        self._definition.register_autograd(backward, setup_context=setup_context)
        if not self._written:
            launch = self._launch

            def forward(ctx: Any, *args: Any) -> Any:
                # PyTorch would call ``setup_context`` itself, but binds the arguments to the signature first, which takes long.
                output = launch.repeat(args, _NO_NAMES)
                if output is None:
                    output = launch(*args)
                setup_context(ctx, args, output)
                return output

            methods = {"forward": staticmethod(forward), "backward": staticmethod(backward)}
            function = type(self.__name__, (torch.autograd.Function,), methods)
            self._apply = super(torch.autograd.Function, function).apply

    def __call__(self, *args: Any) -> Any:
        """Launches, and records the backward pass for autograd."""
        if torch.compiler.is_compiling():
            return self._operator(*args)
        if not _is_observed() and (made := self._launch.repeat(args, _NO_NAMES)) is not None:
            return self._count(args) if self._written else made
        if _is_watched():
            # Recording a function's launches is a dispatch mode too, and must see those of its operators, and what they write to.
            noted = launches.NOTES.here() is not None and not self._written
            return self._launch.function(*args) if noted else self._operator(*args)
        wants_gradient = False
        for value in args:
            kind = type(value)
            if (kind is torch.Tensor or kind is torch.nn.Parameter) and getattr(value, DIRECT) and not value.is_neg():
                wants_gradient = wants_gradient or value.requires_grad
            elif kind not in PLAIN and not is_extents(value):
                return self._operator(*args)
        if not wants_gradient or not torch.is_grad_enabled():
            made = self._launch.call(args, {})
            return self._count(args) if self._written else made
        # No function transform is active, for which PyTorch's ``apply`` in Python would examine every argument.
        return applied.apply(self._apply, args) if self._apply else self._operator(*args)

    def _count(self, args: tuple[Any, ...]) -> None:
        """Count the versions of what was written, as the dispatcher does: autograd must know that what it saved has changed."""
        torch.autograd.graph.increment_version([args[place] for place in self._written])


def operator(name: str, mutates: Iterable[str] = ()) -> Callable[[Callable[..., Any]], Operator]:
    """Register the decorated launcher as ``torch.ops.tilescope.name``. ``mutates`` names the arguments it writes."""
    return lambda launch: Operator(name, launch, tuple(mutates))


def _watch(inner: Any) -> tuple[Callable[[], bool], Callable[[], bool]]:
    """Functions that tell whether a call must go through the dispatcher, and whether for a reason that no dispatch key shows.

    It always must where this PyTorch lacks a query.
    """
    try:
        dispatching, functions = inner._len_torch_dispatch_stack, inner._is_torch_function_mode_enabled
        transforms, tracing = inner._functorch.peek_interpreter_stack, inner._get_tracing_state
        profiled = inner._autograd._profiler_enabled
    except AttributeError:
        return lambda: True, lambda: True

    def is_observed() -> bool:
        return bool(functions() or profiled() or forward_ad._current_level >= 0)

    def is_watched() -> bool:
        return bool(dispatching() or transforms() or tracing() or is_observed())

    return is_watched, is_observed


_is_watched, _is_observed = _watch(torch._C)
_NO_NAMES: dict[str, Any] = {}


def remembered(function: Callable[Given, Result]) -> Callable[Given, Result]:
    """A public function whose repeated calls skip its checks and views.

    Without a gradient they replay its launches, with one they apply its operator. Both may depend only on its arguments, on whether a
    gradient is wanted, on autocast and on ``TILESCOPE_USE_TRITON``.
    """
    kept = Kept(function)

    @functools.wraps(function)
    def call(*args: Given.args, **kwargs: Given.kwargs) -> Result:
        if torch.compiler.is_compiling():
            return function(*args, **kwargs)
        if _is_observed() or not launching._is_on() or torch.is_autocast_enabled():
            return function(*args, **kwargs)
        if (made := kept.repeat(args, kwargs)) is not None:
            return made
        if _is_watched():
            return function(*args, **kwargs)
        return kept.call(args, kwargs)

    return call


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
