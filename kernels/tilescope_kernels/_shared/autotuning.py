"""Autotuning of kernels that read through pointers or through tensor descriptors (TMA)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
import triton


def _config(known: Mapping[str, int]) -> triton.Config:
    blocks = {name: value for name, value in known.items() if name.isupper()}
    return triton.Config(blocks, num_warps=known["num_warps"], num_stages=known["num_stages"])


def tuned(
    kernel: Any,
    configs: Sequence[Mapping[str, int]],
    key: Sequence[str],
    prune: Callable[..., list[triton.Config]],
) -> Any:
    """The kernel under an autotuner, which remembers its choice by ``key``: extents as a rule."""
    return triton.autotune(
        [_config(known) for known in configs],
        key=list(key),
        prune_configs_by={"early_config_prune": prune},
        cache_results=True,
    )(kernel)


def autotuned(
    kernel: Any,
    configs: Sequence[Mapping[str, int]],
    key: Sequence[str],
    prune: Callable[..., list[triton.Config]],
) -> tuple[Any, Any]:
    """The kernel under an autotuner without descriptors and, second, under one that has all ``configs``.

    An autotuner prunes only before it chooses: one alone would give operands that descriptors cannot reach (such as
    unaligned ones) the choice made for others of the same extents.
    """
    pointers = [known for known in configs if not known["TMA"]]
    return tuned(kernel, pointers, key, prune), tuned(kernel, configs, key, prune)


def workspace(size: int, alignment: int, stream: int | None) -> torch.Tensor:
    """Where Triton keeps a launch's tensor descriptors; PyTorch's allocations are aligned to 512 bytes."""
    return torch.empty(size, dtype=torch.int8, device="cuda")
