"""The choice between the kernels of 16-bit products on Hopper with many tiles."""

from __future__ import annotations

from collections.abc import Mapping
from types import ModuleType

import torch

from tilescope_kernels.matrix_products import matmul_hopper, matmul_pairs
from tilescope_kernels.matrix_products.matmul_hopper_tilings import Alone
from tilescope_kernels.matrix_products.matmul_pairs_tilings import Pairs
from tilescope_kernels.matrix_products.matmul_tilings import Tiling

#: The module of every kernel, by the class of its tilings, in the order in which they are asked for a plan. A module's ``plan`` is
#: None where its kernel does not serve a product or others may be as quick; its ``write_product`` writes one.
KERNELS: Mapping[type[Tiling], ModuleType] = {Pairs: matmul_pairs, Alone: matmul_hopper}


def plan(a: torch.Tensor, b: torch.Tensor) -> Tiling | None:
    """The tiling of a product with a contiguous result; None where none of the kernels serves it or ``split_k`` may be as quick."""
    return next(filter(None, (kernel.plan(a, b) for kernel in KERNELS.values())), None)


def write_product(a: torch.Tensor, b: torch.Tensor, c: torch.Tensor, chosen: Tiling) -> None:
    """Write the product to 16-bit ``c`` with stride 1 along a row, with a tiling that ``plan`` gave."""
    KERNELS[type(chosen)].write_product(a, b, c, chosen)
