"""Configs of ``attention``, the choice of one and of a kernel for a problem, and sizes and scales that kernels share.

The kernels are imported where they are called.
"""

from __future__ import annotations

import math

import torch
import triton

from tilescope_kernels._shared.launching import cdiv, multiprocessors, shared_memory
from tilescope_kernels._shared.operators import unpack
from tilescope_kernels.spec import Config

#: Queries of a program of ``hopper``, of one with three warpgroups, and of ``hopper_few``.
QUERIES, MORE_QUERIES, SHARED_QUERIES = 128, 192, 64


@triton.constexpr_function
def padded(columns):
    """Width of a tile: the next power of two, at least 16, which is the least that ``tl.dot`` takes."""
    return max(16, triton.next_power_of_2(columns))


def is_added(mask: torch.Tensor | None) -> bool:
    """Whether a mask is of numbers."""
    return mask is not None and mask.dtype != torch.bool


def checked_scale(scale: float | None, query: torch.Tensor) -> float:
    """``scale``, by default 1 / sqrt(columns). Raises ValueError for a scale below 0 and for one that is not finite."""
    found = 1.0 / math.sqrt(max(query.shape[-1], 1)) if scale is None else float(scale)
    if not 0.0 <= found < math.inf:
        raise ValueError(f"scale is {scale}: give a number of at least 0")
    return found


def scale_of_scores(scale: float, mask: torch.Tensor | None) -> float:
    """``score_scale`` of the kernels: ``scale`` to base 2, for the hardware computes exp2, unless numbers are added to the scores."""
    return scale if is_added(mask) else scale * math.log2(math.e)


def lse_shape(q: torch.Tensor, mask: torch.Tensor | None) -> tuple[int, ...]:
    """Shape of the log-sum-exp of the rows of ``q`` (batch, heads, queries, columns)."""
    return (*q.shape[:2], 2, q.shape[2]) if is_added(mask) else tuple(q.shape[:3])


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
_SPECIALIZED, _SPECIALIZED_WIDE = (_forward(QUERIES, keys, 4, 2, 1, 1) for keys in (128, 64))
#: The Hopper kernel with three warpgroups, for 64 columns. A wave of its programs takes _ROUND times one of two warpgroups. With a
#: causal mask it is faster from _LONG queries and _ROUNDS waves on.
_SPECIALIZED_NARROW, _ROUND = _forward(MORE_QUERIES, 128, 4, 2, 1, 1), 1.35
_LONG, _ROUNDS = 2048, 8
#: The Hopper kernel whose warpgroups share 64 queries. For 64 columns it is faster with a causal mask, and where all its programs run
#: at the same time. For 65 to 128 columns it is faster with a mask from _SHARED_LONG queries on, where tiles of 128 queries are too few
#: and tiles of 64 queries give half of the SMs a program.
_SPECIALIZED_SHARED, _SHARED_LONG = _forward(SHARED_QUERIES, 64, 4, 2, 1, 1), 512
#: Up to this many queries, heads of up to 64 columns use the Triton kernel, without any mask in small tiles. Many heads of few queries
#: use the Hopper kernel again.
_SHORT, _FEWEST = 1024, 256
#: Gradients: least multiply-adds of a product and most queries of a short head for the Hopper kernels, and programs per SM up to which
#: tiles are few, because all programs are resident at once.
_LEAST_BACKWARD, _SHORT_BACKWARD, SIDE_BY_SIDE = 8 * 10**8, 512, 2
#: Decoding: most queries and fewest keys. More queries fill the GPU without a split, and fewer keys do not pay for one.
_DECODED, _LEAST_KEYS = 16, 512
CONFIGS = (
    *_EQUAL,
    *({**_EQUAL[0], **_forward(QUERIES, keys, 4, stages, 1, 1)} for keys, stages in ((128, 2), (64, 4))),
)

#: Small tiles for small problems, so that more SMs get one. They use pointers: descriptors do not save GPU time here and double
#: the CPU time of a launch.
_FEW = _config((64, 64, 4, 3, 0), (64, 64, 4, 3), (64, 64, 4, 3))
#: The same for more than 64 columns, where two backward programs of three stages do not fit on an SM, and four warps lack registers
#: for larger tiles.
_FEW_OF_128 = _config((64, 64, 4, 3, 0), (32, 64, 4, 2), (64, 32, 4, 2))
#: For more than 128 columns and fewer tiles of 128 queries than SMs, and for many heads of few queries.
_FEW_WIDE = _forward(64, 64, 4, 3, 1, 0)
_SHORT_ROWS = CONFIGS[12]
#: For fp32, whose products run on CUDA cores: registers bound the tile.
_FULL_PRECISION = _config((32, 32, 8, 2, 0), (32, 32, 8, 2), (32, 32, 8, 2))
#: For GPUs with less than Hopper's 227 KB of shared memory per block.
_SMALL = _config((128, 64, 8, 2, 0), (32, 64, 4, 2), (64, 32, 4, 2))
#: With ``attn_mask``, whose tiles need registers and shared memory as well: with 227 KB of shared memory, and with less.
_MASKED = _config((128, 64, 8, 2, 1), (64, 64, 8, 2), (64, 64, 4, 2))
_MASKED_SMALL = _config((64, 32, 4, 2, 0), (32, 32, 4, 2), (32, 32, 4, 2))
#: For more than 128 columns: without and with a causal mask, in fp32, and with less than 227 KB of shared memory.
_WIDE = (
    _config((128, 64, 8, 2, 1), (32, 64, 8, 3), (128, 32, 8, 2)),
    _config((128, 64, 8, 2, 1), (64, 64, 8, 2), (64, 32, 8, 3)),
)
_WIDE_FULL_PRECISION = _config((16, 16, 4, 1, 0), (16, 16, 4, 1), (16, 16, 4, 1))
_WIDE_SMALL = _config((64, 32, 8, 1, 0), (16, 32, 8, 1), (32, 16, 4, 1))


def chosen_config(
    q: torch.Tensor, causal: bool, config: str, masked: bool, specializes: bool = False
) -> dict[str, int]:
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
    many = tiles > (2 if columns <= 64 else 1) * multiprocessors(q)
    # Small tiles are faster than the Hopper kernel up to _SHORT queries.
    short = columns <= 64 and queries <= _SHORT and not causal and not masked
    if wide:
        return known if masked or tiles >= multiprocessors(q) else {**known, **_FEW_WIDE}
    small = _FEW if columns <= 64 else _FEW_OF_128
    return small if not many else _SHORT_ROWS if short else known


def _specialized(q: torch.Tensor, tiles: int, causal: bool) -> dict[str, int] | None:
    """Forward part of a config for the Hopper kernel; None where the Triton kernel is faster."""
    batch, heads, queries, columns = q.shape
    programs = multiprocessors(q)
    shared_tiles = cdiv(queries, SHARED_QUERIES) * batch * heads
    if columns > 64:
        few = columns <= 128 and causal and queries >= _SHARED_LONG and 2 * shared_tiles >= programs
        fewer = _SPECIALIZED_SHARED if few else None
        return (_SPECIALIZED_WIDE if columns > 128 else _SPECIALIZED) if 2 * tiles >= programs else fewer
    if columns <= 32:
        return None
    # 64 columns have fewer products to hide the exp2 behind: a third warpgroup may pay.
    rounds = cdiv(cdiv(queries, MORE_QUERIES) * batch * heads, programs)
    if causal and rounds >= _ROUNDS:
        return _SPECIALIZED_NARROW if queries >= _LONG else _SPECIALIZED
    if causal or shared_tiles <= 2 * programs:
        return _SPECIALIZED_SHARED if 2 * shared_tiles >= programs else None
    # The Triton kernel is faster than two warpgroups with few tiles or short queries.
    if tiles <= 2 * programs or _FEWEST < queries <= _SHORT:
        return None
    return _SPECIALIZED_NARROW if _ROUND * rounds <= cdiv(tiles, programs) else _SPECIALIZED


def specializes_backward(q: torch.Tensor, k: torch.Tensor, causal: bool) -> bool:
    """Whether the problem is large enough for the Hopper kernels' gradient: half of the SMs get a program, and a product has ``_LEAST_BACKWARD`` multiply-adds.

    Many short heads of 64 columns without a mask are faster in Triton.
    """
    batch, heads, queries, columns = q.shape
    is_short = columns <= 64 and not causal and queries <= _SHORT_BACKWARD
    if is_short and cdiv(queries, 128) * batch * heads > 2 * multiprocessors(q):
        return False
    # In two passes a program has half as many keys.
    programs = cdiv(queries, QUERIES) * batch * heads * (1 if padded(columns) <= 128 else 2)
    return padded(columns) >= 64 and 2 * programs >= multiprocessors(q) and q.numel() * k.shape[2] >= _LEAST_BACKWARD


def tiles_of(q: torch.Tensor, k: torch.Tensor, chosen: Config) -> tuple[int, int]:
    """Number of tiles of keys and of queries."""
    (batch, heads, queries, _), (kv_heads, keys) = q.shape, k.shape[1:3]
    return cdiv(keys, chosen["KV_N"]) * batch * kv_heads, cdiv(queries, chosen["Q_M"]) * batch * heads


def few(q: torch.Tensor, k: torch.Tensor, chosen: Config) -> bool:
    """Whether dK, dV and dQ fit in one launch: with the same warps and stages, and all programs resident at once."""
    alike = all(chosen[f"KV_{name}"] == chosen[f"Q_{name}"] for name in ("WARPS", "STAGES"))
    return alike and sum(tiles_of(q, k, chosen)) <= SIDE_BY_SIDE * multiprocessors(q)


def decode_serves(queries: int, keys: int, causal: bool, save: bool) -> bool:
    """Whether ``decode`` serves: there are few enough queries and enough keys.

    Never with a causal mask, which lets n queries see only n keys. Never with ``save``: the log-sum-exp that a backward
    pass needs is not written.
    """
    return queries <= _DECODED and keys >= _LEAST_KEYS and not causal and not save
