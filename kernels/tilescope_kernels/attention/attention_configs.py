"""Configs of ``attention``, and the choice of one for a problem."""

from __future__ import annotations

import torch

from tilescope_kernels._shared.integers import cdiv
from tilescope_kernels._shared.launching import multiprocessors, shared_memory
from tilescope_kernels._shared.operators import unpack
from tilescope_kernels.attention.hopper import MORE_QUERIES, QUERIES
from tilescope_kernels.attention.hopper_few import SHARED_QUERIES


def _forward(*parts: int) -> dict[str, int]:
    """Forward part of a config: queries, keys, warps, stages, TMA, and SPECIALIZED, which is 1 for the Hopper kernel."""
    return dict(zip(("BLOCK_M", "BLOCK_N", "num_warps", "num_stages", "TMA", "SPECIALIZED"), parts, strict=True))


def _config(
    forward: tuple[int, int, int, int, int], kv: tuple[int, int, int, int], q: tuple[int, int, int, int]
) -> dict[str, int]:
    """Config of the Triton kernels. ``kv`` and ``q`` are queries, keys, warps and stages of the dK/dV and the dQ kernel."""
    tiles = ("M", "N", "WARPS", "STAGES")
    backward = [
        (f"{loop}_{name}", value)
        for loop, values in (("KV", kv), ("Q", q))
        for name, value in zip(tiles, values, strict=True)
    ]
    return {**_forward(*forward, 0), **dict(backward)}


#: The three kernels are tuned independently: config i takes the i-th candidate of each list. On an H200 the first is the
#: fastest without a causal mask, the second with one.
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
#: The Hopper kernel, for up to 128 columns and for more.
_SPECIALIZED, _SPECIALIZED_WIDE = (_forward(QUERIES.value, keys, 4, 2, 1, 1) for keys in (128, 64))
#: The Hopper kernel with three warpgroups, for 64 columns. A wave of its programs takes _ROUND times one of two warpgroups. With a
#: causal mask it pays from _LONG queries and _ROUNDS waves on. 4x32x4096 takes 1.10 ms (two warpgroups 1.20, cuDNN 1.15), with a
#: causal mask 0.60 (0.71, Triton kernel 0.69, cuDNN 0.64); 8x16x2048 takes 294 us (321, 308), with a causal mask 191 (205, 201, 186).
#: GPU time, cold L2, H200, 2026-11-27, torch 2.11, triton 3.6.
_SPECIALIZED_NARROW, _ROUND = _forward(MORE_QUERIES.value, 128, 4, 2, 1, 1), 1.35
_LONG, _ROUNDS = 2048, 8
#: The Hopper kernel whose warpgroups share 64 queries, for 64 columns: with a causal mask, and where all its programs run at the same
#: time. With a mask 1x16x1024 takes 14.9 us (the Triton kernel 20.5, cuDNN 18.9), 1x8x2048 20.0 (33.0, 27.4), 2x16x1024 23.9 (27.2, 27.0),
#: 4x16x2048 109 (three warpgroups 115, cuDNN 104); without one 1x8x1024 14.6 (15.8, 17.8), 1x12x1024 18.0 (18.7, 18.3), but 1x32x1024
#: 29.6 (28.5, 28.8). GPU time with that of a launch, cold L2, H200, 2026-11-27, torch 2.11, triton 3.6.
#: For 65 to 128 columns with a mask, where tiles of 128 queries are too few and those of 64 give half of the SMs a program, from
#: _SHARED_LONG queries on: 1x4x4x512x512x128 takes 9.0 us (the Triton kernel 12.7, with TMA 10.5, cuDNN 11.5), in tiles of 128 keys 9.5.
#: No other size was timed: with fewer tiles each still has an SM to itself, with more queries more keys to share out. Kernel durations,
#: cold L2, H200, 2026-11-27, torch 2.11, triton 3.6.
_SPECIALIZED_SHARED, _SHARED_LONG = _forward(SHARED_QUERIES.value, 64, 4, 2, 1, 1), 512
#: Up to this many queries, heads of up to 64 columns use the Triton kernel, without any mask in small tiles.
_SHORT = 1024
CONFIGS = (
    *_EQUAL,
    *({**_EQUAL[0], **_forward(QUERIES.value, keys, 4, stages, 1, 1)} for keys, stages in ((128, 2), (64, 4))),
)

#: Small tiles for small problems, so that more SMs get one. They use pointers: descriptors do not save GPU time here and double
#: the CPU time of a launch. 1x12x1024x64 takes the CPU 81 us instead of 162 forward, 104 instead of 241 backward (H200, 2026-11-26,
#: torch 2.11, triton 3.6).
_FEW = _config((64, 64, 4, 3, 0), (64, 64, 4, 3), (64, 64, 4, 3))
#: The same for more than 64 columns, where two backward programs of three stages do not fit on an SM, and four warps lack registers
#: for larger tiles.
_FEW_OF_128 = _config((64, 64, 4, 3, 0), (32, 64, 4, 2), (64, 32, 4, 2))
#: For fp32, whose products run on CUDA cores: registers bound the tile.
_FULL_PRECISION = _config((32, 32, 8, 2, 0), (32, 32, 8, 2), (32, 32, 8, 2))
#: For GPUs with less than Hopper's 227 KB of shared memory per block.
_SMALL = _config((128, 64, 8, 2, 0), (32, 64, 4, 2), (64, 32, 4, 2))
#: With ``attn_mask``, whose tiles need registers and shared memory as well: with 227 KB of shared memory, and with less.
#: 4x32x4096 with 128 columns and booleans (4, 1, 4096, 4096) takes 4.0 ms forward and 18.4 backward; cuDNN 3.1 and 9.2,
#: PyTorch's memory-efficient kernel 8.4 and 22.1 (H100, 2026-11-25, torch 2.11, triton 3.6, intervals, cold L2).
_MASKED = _config((128, 64, 8, 2, 1), (64, 64, 8, 2), (64, 64, 4, 2))
_MASKED_SMALL = _config((64, 32, 4, 2, 0), (32, 32, 4, 2), (32, 32, 4, 2))
#: For more than 128 columns: without and with a causal mask, in fp32, and with less than 227 KB of shared memory. The backward
#: pass of 4x16x4096 with 256 columns takes 12.5 ms, with a causal mask 7.9 (H100, 2026-11-25, torch 2.11, triton 3.6).
_WIDE = (
    _config((128, 64, 8, 2, 1), (32, 64, 8, 3), (128, 32, 8, 2)),
    _config((128, 64, 8, 2, 1), (64, 64, 8, 2), (64, 32, 8, 3)),
)
_WIDE_FULL_PRECISION = _config((16, 16, 4, 1, 0), (16, 16, 4, 1), (16, 16, 4, 1))
_WIDE_SMALL = _config((64, 32, 8, 1, 0), (16, 32, 8, 1), (32, 16, 4, 1))


def chosen_config(
    q: torch.Tensor, causal: bool, config: str, masked: bool, specializes: bool = False
) -> dict[str, int]:  # fmt: skip
    """The requested config, or the fastest known. ``specializes``: the Hopper kernel accepts the operands."""
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
    # 4x32x1024 takes 89 us in small tiles, 108 in larger ones, 105 to 113 with the Hopper kernel.
    short = columns <= 64 and queries <= _SHORT and not causal and not masked
    if wide or (tiles > (2 if columns <= 64 else 1) * multiprocessors(q) and not short):
        return known
    return _FEW if columns <= 64 else _FEW_OF_128


def _specialized(q: torch.Tensor, tiles: int, causal: bool) -> dict[str, int] | None:
    """Forward part of a config for the Hopper kernel; None where the Triton kernel is faster."""
    batch, heads, queries, columns = q.shape
    programs = multiprocessors(q)
    shared_tiles = cdiv(queries, SHARED_QUERIES.value) * batch * heads
    if columns > 64:
        few = columns <= 128 and causal and queries >= _SHARED_LONG and 2 * shared_tiles >= programs
        fewer = _SPECIALIZED_SHARED if few else None
        return (_SPECIALIZED_WIDE if columns > 128 else _SPECIALIZED) if 2 * tiles >= programs else fewer
    if columns <= 32:
        return None
    # 64 columns have fewer products to hide the exp2 behind: a third warpgroup may pay.
    rounds = cdiv(cdiv(queries, MORE_QUERIES.value) * batch * heads, programs)
    if causal and queries >= _LONG and rounds >= _ROUNDS:
        return _SPECIALIZED_NARROW
    if causal or shared_tiles <= 2 * programs:
        return _SPECIALIZED_SHARED if 2 * shared_tiles >= programs else None
    # 2x16x1024 takes 25 us with the Triton kernel, 31 with two warpgroups, 26 with cuDNN.
    if tiles <= 2 * programs or queries <= _SHORT:
        return None
    return _SPECIALIZED_NARROW if _ROUND * rounds <= cdiv(tiles, programs) else _SPECIALIZED
