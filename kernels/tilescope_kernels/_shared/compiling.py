"""Compiles in parallel, without launching: what ``warm`` is given, and what a call of an operator needs at its first launch."""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import torch
import triton

from tilescope_kernels._shared.launching import THREAD

#: Held while the kernels of a call are compiled. Other threads that need them wait, and find them in Triton's cache.
_COMPILING = threading.Lock()


class _Compilers(ThreadPoolExecutor):
    """Threads that compile kernels, and load them with their launchers in C if there is a GPU."""

    def submit(self, compile_kernel: Callable[[], Any]) -> Future[Any]:  # type: ignore[override]
        device = torch.cuda.current_device() if torch.cuda.is_available() else -1

        def compile_and_load() -> Any:
            kernel = compile_kernel()
            if device >= 0:
                with torch.cuda.device(device):
                    kernel.run  # noqa: B018 - the property loads
            return kernel

        return super().submit(compile_and_load)


@contextlib.contextmanager
def compiled_alone(threads: int | None = None) -> Iterator[list[Future[Any]]]:
    """While active, launches of this thread, of tensors on ``meta`` too, are compiled in parallel and not made."""
    THREAD.compiles_alone = True
    try:
        with (
            _Compilers(threads or len(os.sched_getaffinity(0))) as pool,
            triton.AsyncCompileMode(pool, ignore_errors=True) as mode,
        ):
            yield mode.raw_futures
    finally:
        THREAD.compiles_alone = False
    for future in mode.raw_futures:
        future.result()


def compile_step(call: Callable[..., Any], args: tuple[Any, ...], wants_gradient: bool) -> None:
    """Compile in parallel what ``call(*args)`` launches and, with ``wants_gradient``, what its gradient will."""
    # The launches themselves say what is wrong.
    with contextlib.suppress(Exception), _COMPILING, torch.set_grad_enabled(wants_gradient), compiled_alone():
        differentiate(call(*map(on_meta, args)))


def on_meta(value: Any) -> Any:
    """A tensor on ``meta`` for a tensor, alike in all that chooses kernels."""
    if not isinstance(value, torch.Tensor):
        return value
    base = torch.empty(0, dtype=value.dtype, device="meta")
    made = base.as_strided(value.shape, value.stride(), value.storage_offset() % 16)
    return made.detach().requires_grad_(value.requires_grad)


class _Number(torch.autograd.Function):
    """A number that depends on tensors. ``torch.autograd.backward`` of other tensors imports SymPy, which takes a second."""

    @staticmethod
    def forward(ctx: Any, *tensors: torch.Tensor) -> torch.Tensor:  # type: ignore[override]
        ctx.tensors = tensors
        return torch.empty(())

    @staticmethod
    def backward(ctx: Any, _: torch.Tensor) -> tuple[torch.Tensor, ...]:  # type: ignore[override]
        return tuple(each.clone() for each in ctx.tensors)


def differentiate(results: Any) -> None:
    """Run the backward pass of all tensors in ``results`` that have one."""
    leaves = [each for each in torch.utils._pytree.tree_leaves(results) if getattr(each, "requires_grad", False)]
    if leaves:
        _Number.apply(*leaves).backward()
