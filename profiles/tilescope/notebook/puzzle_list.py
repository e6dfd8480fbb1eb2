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

_FLAT, _ROWS = ((8192,), (5003,)), ((64, 1024), (61, 781))


def _hints(wrong: str, bytes_: str, coalesced: str = _LANES) -> Mapping[str, str]:
    return {"wrong": wrong, "bytes": bytes_, "coalesced": coalesced}


PUZZLES: Mapping[str, Puzzle] = {
    "vector_add": Puzzle("vector_add", _FLAT, 1.05, _hints(_MASK, _STREAM)),
    "add_relu": Puzzle("vector_add", _FLAT, 1.05, _hints(
        f"ReLU is tl.maximum(x, 0.0). {_MASK}",
        f"{_STREAM} The sum need never reach memory: that is what fusing saves.",
    )),
    "row_sum": Puzzle("row_sum", _ROWS, 1.05, _hints(
        "Masked lanes must add nothing: tl.load(..., mask=mask, other=0.0).",
        "Add up in registers, store one number a row.",
    )),
    "softmax": Puzzle("softmax", _ROWS, 1.05, _hints(
        "Masked lanes must lose every comparison: other=-float('inf'). Subtract the maximum before tl.exp.", _ROW,
    )),
    # One program a row reads weight and bias again for every row: 4 accesses an element where 2 are needed.
    "layer_norm": Puzzle("layer_norm", _ROWS, 2.1, _hints(
        "Masked lanes are not zero once the mean is subtracted: mask again before the variance. Divide by columns.", _ROW,
    )),
    # Tiles of 32 x 32 read each operand four times at 128 x 128.
    "matmul": Puzzle("matmul", ((128, 128, 128), (97, 71, 83)), 4.0, _hints(
        "Mask rows and columns at the edges, and k as well: padding must be 0. Accumulate in fp32.",
        "A tile of BM x BN reads K * (BM + BN) elements for BM * BN results: larger tiles read less. Try 32 x 32.",
        "Both operands are row-major: the last index of each must follow tl.arange.",
    )),
    "gelu": Puzzle("gelu", _FLAT, 1.05, _hints(
        "tanh(u) is 2 * tl.sigmoid(2 * u) - 1, with u = sqrt(2 / pi) * (x + 0.044715 * x * x * x).", _STREAM,
    )),
    "online_max": Puzzle("online_max", ((32, 2048), (31, 1501)), 1.05, _hints(
        "When the maximum rises from m to n, the sum so far is worth exp(m - n) as much. Return (maximum, maximum + log(sum)).",
        "One pass: a loop over blocks of columns that carries the maximum and the sum along.",
    )),
    # One program a row reads the weight again for every row: 3 accesses an element where 2 are needed.
    "rms_norm": Puzzle("rms_norm", _ROWS, 1.6, _hints(
        "Divide the sum of squares by columns, not by the block; add eps inside the root.", _ROW,
    )),
}  # fmt: skip
