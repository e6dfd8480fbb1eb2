"""The puzzles: kernels of the library for a learner to write, the sizes to grade them at, and hints."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class Puzzle:
    """A kernel of the library for a learner to write.

    ``kernel`` is its name in the catalog. ``sizes`` are the extents to grade at, in fp32, a round one and a ragged one.
    ``asked`` is the largest accepted ratio of requested bytes to the algorithm's; it is above 1 where a good kernel reads
    data again that the caches hold. ``hints`` are for each failed answer: ``wrong``, ``bytes``, ``coalesced``.
    """

    kernel: str
    sizes: tuple[tuple[int, ...], tuple[int, ...]]
    asked: float
    hints: Mapping[str, str]


_LANES = (
    "Neighbouring lanes should touch neighbouring addresses: index the fastest dimension with tl.arange, and give each "
    "program a block, not an element."
)
_MASK = "Compare a ragged size with the mask: the last block is not full."
_ROW = (
    "Load each row once, into one block of triton.next_power_of_2(columns) lanes, and keep it: every further tl.load of it, "
    "and every intermediate result in memory, is paid for again."
)
_STREAM = "Load each input once, compute in registers, store once."

PUZZLES: Mapping[str, Puzzle] = {
    "vector_add": Puzzle("vector_add", ((8192,), (5003,)), 1.05, {"wrong": _MASK, "bytes": _STREAM, "coalesced": _LANES}),
    "add_relu": Puzzle(
        "vector_add",
        ((8192,), (5003,)),
        1.05,
        {
            "wrong": f"ReLU is tl.maximum(x, 0.0). {_MASK}",
            "bytes": f"{_STREAM} The sum need never reach memory: that is what fusing saves.",
            "coalesced": _LANES,
        },
    ),
    "row_sum": Puzzle(
        "row_sum",
        ((64, 1024), (61, 781)),
        1.05,
        {
            "wrong": "Masked lanes must add nothing: tl.load(..., mask=mask, other=0.0).",
            "bytes": "Add up in registers, store one number a row.",
            "coalesced": _LANES,
        },
    ),
    "softmax": Puzzle(
        "softmax",
        ((64, 1024), (61, 781)),
        1.05,
        {
            "wrong": "Masked lanes must lose every comparison: other=-float('inf'). Subtract the maximum before tl.exp.",
            "bytes": _ROW,
            "coalesced": _LANES,
        },
    ),
    "layer_norm": Puzzle(
        "layer_norm",
        ((64, 1024), (61, 781)),
        # One program a row reads weight and bias again for every row: 4 accesses an element where 2 are needed.
        2.1,
        {
            "wrong": "Masked lanes are not zero once the mean is subtracted: mask again before the variance. Divide by columns.",
            "bytes": _ROW,
            "coalesced": _LANES,
        },
    ),
    "matmul": Puzzle(
        "matmul",
        ((128, 128, 128), (97, 71, 83)),
        # Tiles of 32 x 32 read each operand four times at 128 x 128.
        4.0,
        {
            "wrong": "Mask rows and columns at the edges, and k as well: padding must be 0. Accumulate in fp32.",
            "bytes": "A tile of BM x BN reads K * (BM + BN) elements for BM * BN results: larger tiles read less. Try 32 x 32.",
            "coalesced": "Both operands are row-major: the last index of each must follow tl.arange.",
        },
    ),
    "gelu": Puzzle(
        "gelu",
        ((8192,), (5003,)),
        1.05,
        {
            "wrong": "tanh(u) is 2 * tl.sigmoid(2 * u) - 1, with u = sqrt(2 / pi) * (x + 0.044715 * x * x * x).",
            "bytes": _STREAM,
            "coalesced": _LANES,
        },
    ),
    "online_max": Puzzle(
        "online_max",
        ((32, 2048), (31, 1501)),
        1.05,
        {
            "wrong": "When the maximum rises from m to n, the sum so far is worth exp(m - n) as much. Return (maximum, "
            "maximum + log(sum)).",
            "bytes": "One pass: a loop over blocks of columns that carries the maximum and the sum along.",
            "coalesced": _LANES,
        },
    ),
    "rms_norm": Puzzle(
        "rms_norm",
        ((64, 1024), (61, 781)),
        # One program a row reads the weight again for every row: 3 accesses an element where 2 are needed.
        1.6,
        {
            "wrong": "Divide the sum of squares by columns, not by the block; add eps inside the root.",
            "bytes": _ROW,
            "coalesced": _LANES,
        },
    ),
}  # fmt: skip
