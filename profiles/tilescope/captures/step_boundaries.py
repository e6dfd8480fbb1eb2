"""Notices where a training or inference step of a running program begins: at an optimizer's step, or at a call of the outermost module.

Imports torch. The hooks do nothing while torch.compile traces a module, so the compiled code is the program's own.
"""

from __future__ import annotations

import contextlib
import gc
import threading
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import nn
from torch.nn.modules import module as modules
from torch.optim import optimizer as optimizers
from torch.utils import _pytree

from tilescope.collectors.foreign_files.step_trace import MODULE

#: Calls of an outermost module after which they are the steps, where no optimizer may follow.
_CALLS = 2


class Boundaries:
    """Calls ``begin`` at the beginning of each step, with the text of what it is.

    While ``annotating``, each call of a module is a range of
    torch.profiler with the module's path.
    """

    def __init__(self, begin: Callable[[str], None]) -> None:
        self._begin = begin
        self.annotating = False
        #: The optimizer, or else the module, that is followed.
        self._optimizer: int | None = None
        self._root: int | None = None
        self._calls: dict[int, int] = {}
        self._local = threading.local()
        self._paths: dict[int, str] = {}
        #: The step where it is a function; else what the annotated steps called: outermost modules and optimizers, by their ids.
        self.step: Callable[[], Any] | None = None
        self.modules: dict[int, nn.Module] = {}
        self.optimizers: dict[int, torch.optim.Optimizer] = {}
        #: The arguments of each outermost module's recorded call, and whether autocast was on, with its dtype.
        self.calls: dict[int, tuple[Any, Any]] = {}
        self.autocast: dict[int, tuple[bool, torch.dtype]] = {}

    @contextlib.contextmanager
    def recorded(self) -> Iterator[None]:
        """Records the arguments of the next calls of the outermost modules."""

        def record(module: nn.Module, args: Any, kwargs: Any = None) -> None:
            if kwargs is None:
                return  # removed in a call that has begun
            detached = _pytree.tree_map_only(torch.Tensor, torch.Tensor.detach, (args, kwargs))
            self.calls[id(module)] = detached
            self.autocast[id(module)] = torch.is_autocast_enabled("cuda"), torch.get_autocast_dtype("cuda")

        hooks = [module.register_forward_pre_hook(record, with_kwargs=True) for module in self.modules.values()]
        try:
            yield
        finally:
            for hook in hooks:
                hook.remove()

    @contextlib.contextmanager
    def watched(self) -> Iterator[Boundaries]:
        """Watches this process's modules and optimizers."""
        hooks = [
            modules.register_module_forward_pre_hook(self._enter),
            modules.register_module_forward_hook(self._leave, always_call=True),
            optimizers.register_optimizer_step_post_hook(self._stepped),
        ]
        with warnings.catch_warnings():
            # These hooks do nothing in a module that torch.compile made, which a warning is about.
            warnings.filterwarnings("ignore", "Using `torch.compile.module.` when there are global hooks")
            try:
                yield self
            finally:
                for hook in hooks:
                    hook.remove()
                self.annotating = False

    def _stepped(self, optimizer: Any, args: Any, kwargs: Any) -> None:
        if self._optimizer is None:
            self._optimizer = id(optimizer)
        if self.annotating:
            self.optimizers[id(optimizer)] = optimizer
        if id(optimizer) == self._optimizer:
            self._begin(f"training step, from one step of {type(optimizer).__name__} to the next")

    def _enter(self, module: nn.Module, args: Any) -> None:
        if torch.compiler.is_compiling():
            return
        stack = self._stack
        if not stack:
            if self.annotating:
                self._paths = {}
                self.modules[id(module)] = module
            if self._optimizer is None and threading.current_thread() is threading.main_thread():
                self._called(module)
        stack.append(self._range(module, stack) if self.annotating else None)

    def _leave(self, module: nn.Module, args: Any, result: Any) -> None:
        if torch.compiler.is_compiling() or not self._stack:
            return
        range_ = self._stack.pop()
        if range_ is not None:
            range_.__exit__(None, None, None)

    @property
    def _stack(self) -> list[Any]:
        if not hasattr(self._local, "stack"):
            self._local.stack = []
        found: list[Any] = self._local.stack
        return found

    def _called(self, module: nn.Module) -> None:
        """A call of an outermost module, which is a step where nothing trains it."""
        count = self._calls[id(module)] = self._calls.get(id(module), 0) + 1
        if self._root is None and count > _CALLS and not _trains():
            self._root = id(module)
        if self._root == id(module):
            self._begin(f"calls of {type(module).__name__}")

    def _range(self, module: nn.Module, stack: list[Any]) -> Any:
        if id(module) not in self._paths:
            root = type(module).__name__
            for name, one in module.named_modules(prefix=root):
                self._paths.setdefault(id(one), name)
        path = self._paths.get(id(module), type(module).__name__)
        range_ = torch.autograd.profiler.record_function(f"{MODULE}{path}")
        range_.__enter__()  # type: ignore[no-untyped-call]
        return range_


def _trains() -> bool:
    """Whether gradients are on and there is an optimizer whose step will come."""
    return torch.is_grad_enabled() and any(issubclass(type(one), torch.optim.Optimizer) for one in gc.get_objects())
