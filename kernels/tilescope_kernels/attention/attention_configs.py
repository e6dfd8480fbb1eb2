"""The configs of ``attention``, and the best known for a problem where none is asked for."""

from __future__ import annotations

import torch

from tilescope_kernels._shared.integers import cdiv
from tilescope_kernels._shared.launching import multiprocessors, shared_memory
from tilescope_kernels._shared.operators import unpack
from tilescope_kernels.attention.hopper import MORE_QUERIES, QUERIES


def _forward(*parts: int) -> dict[str, int]:
    """The forward part of a config, of queries, keys, warps, stages, TMA and SPECIALIZED (1 for Hopper's kernel)."""
    return dict(zip(("BLOCK_M", "BLOCK_N", "num_warps", "num_stages", "TMA", "SPECIALIZED"), parts, strict=True))


def _config(
    forward: tuple[int, int, int, int, int], kv: tuple[int, int, int, int], q: tuple[int, int, int, int]
) -> dict[str, int]:
    """A config of the portable forward kernel and of queries, keys, warps and stages of both backward kernels."""
    tiles = ("M", "N", "WARPS", "STAGES")
    backward = [
        (f"{loop}_{name}", value)
        for loop, values in (("KV", kv), ("Q", q))
        for name, value in zip(tiles, values, strict=True)
    ]
    return {**_forward(*forward, 0), **dict(backward)}


#: The passes are tuned apart, so each list holds its own candidates and a config takes one of each. On an H200 the first
#: are the best where every query sees all keys, the second under a causal mask.
_FORWARD = (
    (128, 64, 4, 2, 1), (64, 64, 4, 3, 1), (128, 128, 8, 3, 1), (128, 64, 4, 3, 1), (64, 64, 4, 2, 1),
    (128, 64, 8, 3, 1), (128, 64, 8, 4, 1), (64, 128, 4, 2, 1), (128, 64, 8, 2, 1), (128, 128, 8, 2, 1),
    (128, 64, 8, 3, 0), (128, 128, 8, 2, 0), (64, 64, 4, 3, 0), (64, 64, 4, 4, 1),
)  # fmt: skip
_BACKWARD_KV = (
    (64, 64, 4, 2), (64, 64, 4, 2), (64, 128, 8, 2), (64, 128, 8, 3), (64, 64, 4, 3), (32, 64, 4, 3), (32, 128, 8, 3),
    (32, 128, 8, 4), (64, 64, 8, 3), (128, 64, 8, 2), (32, 64, 4, 2), (64, 128, 8, 4), (32, 64, 4, 4), (64, 64, 4, 4),
)  # fmt: skip
_BACKWARD_Q = (
    (128, 32, 8, 3), (64, 64, 4, 2), (128, 64, 8, 3), (128, 64, 8, 2), (64, 64, 4, 3), (64, 32, 4, 3), (128, 128, 8, 2),
    (128, 64, 8, 4), (64, 128, 8, 2), (64, 128, 4, 2), (64, 64, 4, 4), (128, 32, 8, 4), (64, 32, 4, 4), (64, 64, 8, 3),
)  # fmt: skip
_EQUAL = tuple(_config(*parts) for parts in zip(_FORWARD, _BACKWARD_KV, _BACKWARD_Q, strict=True))
#: Hopper's kernel, and of more than 128 columns.
_SPECIALIZED, _SPECIALIZED_WIDE = (_forward(QUERIES.value, keys, 4, 2, 1, 1) for keys in (128, 64))
#: Of 64 columns. A round of its programs takes so much longer than one of those of two warpgroups, and a causal mask costs it more: it
#: pays there from so many queries and rounds. 4x32x4096 takes 1.19 ms, of two warpgroups 1.38, portable 1.45, cuDNN 1.15; 2x16x16384
#: under a causal mask 2.35, 2.67, 2.53 and 2.34; 4x32x4096 0.78, 0.79, 0.69 and 0.64 (GPU time, H200, 2026-11-26, torch 2.11, triton
#: 3.6).
_SPECIALIZED_NARROW, _ROUND = _forward(MORE_QUERIES.value, 128, 4, 2, 1, 1), 1.25
_LONG, _ROUNDS = 8192, 5
#: Queries up to which heads of 64 columns have small tiles.
_SHORT = 1024
CONFIGS = (
    *_EQUAL,
    *({**_EQUAL[0], **_forward(QUERIES.value, keys, 4, stages, 1, 1)} for keys, stages in ((128, 2), (64, 4))),
)

#: For problems of few tiles: smaller ones, and so more of them. Through pointers, for the GPU takes as long, and descriptors twice
#: the CPU: 1x12x1024x64 81 us for 162 forward, 104 for 241 backward (H200, 2026-11-26, torch 2.11, triton 3.6).
_FEW = _config((64, 64, 4, 3, 0), (64, 64, 4, 3), (64, 64, 4, 3))
#: Of more than 64 columns two programs of three stages have no room on a multiprocessor, and four warps no registers.
_FEW_OF_128 = _config((64, 64, 4, 3, 0), (64, 64, 8, 2), (64, 64, 8, 2))
#: Programs for a multiprocessor up to which both backward kernels are one launch, if they have as many warps and stages: all of
#: them run at once.
SIDE_BY_SIDE = 2
#: At fp32 the products run on the CUDA cores, whose tiles are bounded by registers.
_FULL_PRECISION = _config((32, 32, 8, 2, 0), (32, 32, 8, 2), (32, 32, 8, 2))
#: Where a block has less than Hopper's 227 KB of shared memory.
_SMALL = _config((128, 64, 8, 2, 0), (32, 64, 4, 2), (64, 32, 4, 2))
#: Under a mask, whose tiles take registers and shared memory, too: on Hopper and where there is less. 4x32x4096 of 128
#: columns under booleans (4, 1, 4096, 4096): 4.0 ms forward and 18.4 backward; cuDNN 3.1 and 9.2, PyTorch's
#: memory-efficient kernel 8.4 and 22.1 (H100, 2026-11-25, torch 2.11, triton 3.6, intervals, cold L2).
_MASKED = _config((128, 64, 8, 2, 1), (64, 64, 8, 2), (64, 64, 4, 2))
_MASKED_SMALL = _config((64, 32, 4, 2, 0), (32, 32, 4, 2), (32, 32, 4, 2))
#: Of more than 128 columns: on Hopper where every query sees all keys and under a causal mask, in fp32, and where there is
#: less shared memory. 4x16x4096 of 256 columns went back in 12.5 and 7.9 ms (H100, 2026-11-25, torch 2.11, triton 3.6).
_WIDE = (
    _config((128, 64, 8, 2, 1), (32, 64, 8, 3), (128, 32, 8, 2)),
    _config((128, 64, 8, 2, 1), (64, 64, 8, 2), (64, 32, 8, 3)),
)
_WIDE_FULL_PRECISION = _config((16, 16, 4, 1, 0), (16, 16, 4, 1), (16, 16, 4, 1))
_WIDE_SMALL = _config((64, 32, 8, 1, 0), (16, 32, 8, 1), (32, 16, 4, 1))


def chosen_config(
    q: torch.Tensor, causal: bool, config: str, masked: bool, specializes: bool = False
) -> dict[str, int]:  # fmt: skip
    """The config that was asked for, or the best known for the dtype and the GPU. Few tiles get smaller ones."""
    asked = unpack(config)
    if asked:
        return asked
    batch, heads, queries, columns = q.shape
    wide = columns > 128
    if q.dtype == torch.float32:
        return _WIDE_FULL_PRECISION if wide else _FULL_PRECISION
    if shared_memory(q) < 227 * 1024:
        return _WIDE_SMALL if wide else _MASKED_SMALL if masked else _SMALL
    tiles = cdiv(queries, 128) * batch * heads
    known = _WIDE[int(causal)] if wide else _MASKED if masked else CONFIGS[int(causal)]
    if specializes and (forward := _specialized(q, tiles, causal)):
        return {**known, **forward}
    # 4x32x1024 takes 89 us, in larger tiles 108, on Hopper's kernel 105 to 113.
    short = columns <= 64 and queries <= _SHORT and not causal and not masked
    if wide or (tiles > (2 if columns <= 64 else 1) * multiprocessors(q) and not short):
        return known
    return _FEW if columns <= 64 else _FEW_OF_128


def _specialized(q: torch.Tensor, tiles: int, causal: bool) -> dict[str, int] | None:
    """The forward part of a config with Hopper's kernel; None where the portable one is quicker."""
    batch, heads, queries, columns = q.shape
    programs = multiprocessors(q)
    if columns > 64:
        return (_SPECIALIZED_WIDE if columns > 128 else _SPECIALIZED) if 2 * tiles >= programs else None
    # 2x16x1024 takes 25 us, of two warpgroups 31, cuDNN 26.
    if columns <= 32 or tiles <= 2 * programs or queries <= _SHORT:
        return None
    # There are fewer products to hide the powers of two behind.
    rounds = cdiv(cdiv(queries, MORE_QUERIES.value) * batch * heads, programs)
    if causal:
        return _SPECIALIZED_NARROW if queries >= _LONG and rounds >= _ROUNDS else None
    return _SPECIALIZED_NARROW if _ROUND * rounds <= cdiv(tiles, programs) else _SPECIALIZED
