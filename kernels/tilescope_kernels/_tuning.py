"""Autotuning of kernels that read through pointers or through tensor descriptors (TMA)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
import triton


def _config(known: Mapping[str, int]) -> triton.Config:
    blocks = {name: value for name, value in known.items() if name.isupper()}
    return triton.Config(blocks, num_warps=known["num_warps"], num_stages=known["num_stages"])


def autotuned(
    kernel: Any,
    configs: Sequence[Mapping[str, int]],
    key: Sequence[str],
    prune: Callable[..., list[triton.Config]],
) -> tuple[Any, Any]:
    """The kernel under an autotuner without descriptors and, second, under one that has all ``configs``.

    An autotuner remembers its choice by ``key``, extents as a rule, and prunes only before it chooses: one alone would
    give operands that descriptors cannot reach (unaligned, transposed) the choice made for others of the same extents.
    """
    pointers, every = (
        triton.autotune(
            [_config(known) for known in configs if known["TMA"] <= tma],
            key=list(key),
            prune_configs_by={"early_config_prune": prune},
            cache_results=True,
        )(kernel)
        for tma in (0, 1)
    )
    return pointers, every


def workspace(size: int, alignment: int, stream: int | None) -> torch.Tensor:
    """Where Triton keeps a launch's tensor descriptors; PyTorch's allocations are aligned to 512 bytes."""
    return torch.empty(size, dtype=torch.int8, device="cuda")
