"""Autotuning of kernels that read through pointers or TMA descriptors."""

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
    """Wrap a kernel in an autotuner that caches one config per value of the arguments named in ``key``."""
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
    """Wrap a kernel in two autotuners: one over the configs without TMA descriptors, one over all ``configs``.

    An autotuner prunes only before it races. A single one would launch operands that TMA cannot read, such as unaligned ones,
    with the config that it cached for aligned operands of the same shape.
    """
    pointers = [known for known in configs if not known["TMA"]]
    return tuned(kernel, pointers, key, prune), tuned(kernel, configs, key, prune)


def workspace(size: int, alignment: int, stream: int | None) -> torch.Tensor:
    """Allocate the memory of a launch's device-side TMA descriptors. PyTorch aligns it to 512 bytes."""
    return torch.empty(size, dtype=torch.int8, device="cuda")
