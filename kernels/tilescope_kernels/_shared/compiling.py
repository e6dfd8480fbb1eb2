"""Compiles in parallel, without launching: what ``warm`` is given, and what a call of an operator needs at its first launch."""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import torch
import triton
from triton.runtime import driver

from tilescope_kernels._shared.launching import PENDING, THREAD

#: Held while the kernels of a call are found. Other threads that need them wait for them as for their own.
_FINDING = threading.Lock()


class LauncherMetadata:
    """Stands for what the compiler will say of a kernel: a launcher's C code depends on none of it but that TMA takes descriptors."""

    def __init__(self, src: Any) -> None:
        self.tensordesc_meta = [{} for kind in src.signature.values() if str(kind).startswith("tensordesc")]

    def __getattr__(self, name: str) -> int:
        return 0


def compile_both(src: Any, **options: Any) -> Any:
    """``triton.compile``, beside the C compiler of the kernel's launcher if there is a GPU: Triton finds that on disk.

    It loads nothing: other threads may be recording a CUDA graph.
    """
    with ThreadPoolExecutor(1) as pool:
        if torch.cuda.is_available():
            pool.submit(driver.active.launcher_cls, src, LauncherMetadata(src))
        return triton.compile(src, **options)


@contextlib.contextmanager
def compiled_alone(threads: int | None = None) -> Iterator[dict[Any, Any]]:
    """While active, launches of this thread, of tensors on ``meta`` too, start to be compiled in parallel and are not made.

    Yields the futures of the compiled kernels, each with its function. ``result`` of a future waits for the kernel.
    """
    pool = ThreadPoolExecutor(threads or len(os.sched_getaffinity(0)))
    THREAD.started = started = {}
    try:
        with triton.AsyncCompileMode(pool, ignore_errors=True) as mode:
            yield started
            mode.raw_futures.clear()  # Triton would wait for them.
    finally:
        THREAD.started = None
        pool.shutdown(wait=False)


def compile_step(call: Callable[..., Any], args: tuple[Any, ...], wants_gradient: bool) -> None:
    """Start to compile what ``call(*args)`` launches and, with ``wants_gradient``, its gradient. A launch waits for its own kernel."""
    # The launches themselves say what is wrong.
    with contextlib.suppress(Exception), _FINDING, torch.set_grad_enabled(wants_gradient), compiled_alone() as started:
        differentiate(call(*map(on_meta, args)))
        for compiled, kernel in started.items():
            PENDING.setdefault(kernel, []).append(compiled)


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
