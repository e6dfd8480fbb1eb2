"""Compiles kernels ahead of a program: ``warm`` finds what a model launches, without data, and compiles it in parallel."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch._subclasses import FakeTensorMode

from tilescope_kernels import dispatch
from tilescope_kernels._shared import compiling


def warm(
    model: Callable[..., Any], *args: Any, gradients: bool = True, threads: int | None = None, **kwargs: Any
) -> int:
    """Compile every kernel of this library that ``model(*args, **kwargs)`` launches, in parallel. Returns their number.

    ``model`` is a module or a function. Tensors stand for their shapes, strides and dtypes: nothing is computed, and tensors on
    ``meta`` do as well, beside a module on ``meta``. With ``gradients`` the backward pass of the results is compiled too. ``threads``
    compile, by default as many as the process has processors. Call it once for each size that needs other kernels.
    """
    calls, modes = [], FakeTensorMode(allow_non_fake_inputs=True)

    class Noted(dispatch.OnLooker):
        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            if func.name().startswith("tilescope::"):
                calls.append((func, args))
            return func(*args, **(kwargs or {}))

    def fake(value: Any) -> Any:
        if not isinstance(value, torch.Tensor):
            return value
        made = modes.from_tensor(value.detach())
        return made.requires_grad_(value.requires_grad)

    args, kwargs = torch.utils._pytree.tree_map(fake, (args, kwargs))
    state: dict[str, Any] = {}
    if isinstance(model, torch.nn.Module):
        state = {name: fake(value) for name, value in (*model.named_parameters(), *model.named_buffers())}
    with modes, Noted():
        made = torch.func.functional_call(model, state, args, kwargs) if state else model(*args, **kwargs)
        if gradients:
            compiling.differentiate(made)

    with torch.no_grad(), compiling.compiled_alone(threads) as started:
        for call, given in calls:
            call(*map(compiling.on_meta, given))
    for kernel in [each.result() for each in started]:
        if torch.cuda.is_available():
            kernel.run  # noqa: B018 - the property loads
    return len(started)
