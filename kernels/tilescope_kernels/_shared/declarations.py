"""Helpers of the kernels' declarations: random inputs, and the implementation by torch.compile."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch

from tilescope_kernels.spec import DTYPES, Workload


def generator(workload: Workload, device: Any) -> torch.Generator | None:
    """A random number generator with the workload's seed. None on ``meta``, whose tensors have no values."""
    if torch.device(device).type == "meta":
        return None
    return torch.Generator(device=device).manual_seed(workload.seed)


def normal(
    shape: tuple[int, ...],
    workload: Workload,
    device: Any,
    numbers: torch.Generator | None,
    *,
    scale: float = 1.0,
    shift: float = 0.0,
    requires_grad: bool = False,
) -> torch.Tensor:
    """A normally distributed tensor of mean ``shift`` and standard deviation ``scale``, in the workload's dtype.

    Zeros would mislead: a GPU draws less power on them and runs up to 13 % faster than on data.
    """
    dtype = getattr(torch, DTYPES[workload.dtype][0])
    values = torch.empty(shape, dtype=dtype if dtype.is_floating_point and dtype.itemsize > 1 else None, device=device)
    if numbers is not None:
        values.normal_(shift, scale, generator=numbers)
    return values.to(dtype).requires_grad_(requires_grad)


def compiled(eager: Callable[..., Any]) -> Callable[..., Any]:
    """``torch.compile(eager)`` with static shapes, built at the first call, because importing dynamo takes seconds."""

    @functools.cache
    def build() -> Callable[..., Any]:
        import torch._dynamo  # noqa: PLC0415 (see above)

        # Every workload recompiles. Beyond its default limit of 8, dynamo would silently run eager code; with fullgraph it
        # raises an error instead.
        torch._dynamo.config.recompile_limit = max(torch._dynamo.config.recompile_limit, 64)
        return torch.compile(eager, dynamic=False, fullgraph=True)

    @functools.wraps(eager)
    def call(**inputs: Any) -> Any:
        return build()(**inputs)

    return call
