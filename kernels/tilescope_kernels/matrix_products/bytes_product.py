"""Products of FP8 or INT8 matrices: the choice between small tiles, tiles of large products on Hopper, and the kernel of all others.

Products of few tiles are dominated by start-up, which is shorter with TMA descriptors made by the host than on the GPU.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch

from tilescope_kernels._shared.launching import BEYOND, capability, cdiv, multiprocessors, shared_memory
from tilescope_kernels.matrix_products import matmul_hopper, matmul_tilings, scaled_matmul, split_k
from tilescope_kernels.matrix_products.aligned_rows import is_aligned, padded

#: Least multiply-adds of small tiles, with rows counted as at least 16.
_LEAST = 2**24
#: Most rows of a product that is computed as its transpose.
_TURNED = 32
#: Tiles by the most rows of a product, as in ``split_k``. Up to 32 rows the tile is of the transpose.
_BYTE_TILES = {
    16: ((64, 16, 512, 4, 4), (128, 16, 256, 4, 5)),
    32: ((64, 32, 256, 4, 5), (128, 32, 256, 4, 4)),
    BEYOND: ((64, 64, 256, 4, 6), (64, 128, 256, 4, 4), (128, 128, 128, 4, 6)),
}


def bytes_plan(a: torch.Tensor, b: torch.Tensor) -> dict[str, int] | None:
    """Plan for an FP8 or INT8 product with few tiles; ``b`` (K, N) has stride 1 along K. None where this does not pay.

    Few rows take the plan of the transpose, so that a tile has no more rows than there are.
    """
    (m, k), n = a.shape, b.shape[1]
    if capability(a) < 90 or shared_memory(a) < 227 * 1024 or not (is_aligned(a) and is_aligned(b)):
        return None
    programs = multiprocessors(a)
    tiles = cdiv(m, 64) * cdiv(n, 64)
    if min(n, k) < 64 or max(m, 16) * n * k < _LEAST:
        return None
    splits = max(1, min(programs // (2 * tiles), k // 1024))
    # Small tiles are faster up to two and a half waves.
    if m > _TURNED and 2 * cdiv(m, 64) * cdiv(n, 128) > 5 * programs and cdiv(m, 128) * cdiv(n, 128) > programs:
        return None
    return split_k.plan_of(*split_k.smallest_tile(_BYTE_TILES, m, n, programs), splits)


def bytes_product(
    c: torch.Tensor, a: torch.Tensor, b: torch.Tensor, scales: tuple[torch.Tensor, torch.Tensor] | tuple[None, None],
    fast: bool, given: Mapping[str, int] | None,
) -> None:  # fmt: skip
    """Write the product of FP8 or INT8 ``a`` (M, K) and ``b`` (N, K) to contiguous ``c``.

    ``given`` is a config of ``scaled_matmul``, or None to choose a kernel. ``scales`` and ``fast`` are as in ``split_k.writer``.
    """
    if given is None:
        a, b = padded(a, b)
    if given is None and (plan := bytes_plan(a, b.T)):
        if a.shape[0] <= _TURNED:
            split_k.writer(b, a.T, c.T, plan, scales[::-1], fast)(b, a.T, c.T)
        else:
            split_k.writer(a, b.T, c, plan, scales, fast)(a, b.T, c)
    elif given is None and fast and c.element_size() == 2 and (tiling := matmul_tilings.plan(a, b.T)):
        matmul_hopper.writer(a, b.T, c, tiling, scales)(a, b.T, c)
    else:
        scaled_matmul.launch(a, b, c, scales, fast, given)
