"""Models what an operator must move and compute, from the shapes and dtypes of its inputs in a trace. Pure.

Each input is read once and each result written once. A trace has no shapes of results: each rule derives them.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from typing import NamedTuple

#: Bytes of an element by the name that PyTorch's traces give its dtype.
SIZES = {
    "float": 4, "c10::bfloat16": 2, "c10::half": 2, "double": 8, "int": 4, "long int": 8, "long": 8, "short": 2, "bool": 1,
    "unsigned char": 1, "signed char": 1, "c10::float8_e4m3fn": 1, "c10::float8_e5m2": 1, "float32": 4, "bfloat16": 2,
    "float16": 2, "float64": 8, "int64": 8, "int32": 4,
}  # fmt: skip
#: Pipe of a product by dtype.
PIPES = {
    "c10::bfloat16": "bf16", "bfloat16": "bf16", "c10::half": "fp16", "float16": "fp16", "float": "fp32", "float32": "fp32",
    "double": "fp64", "c10::float8_e4m3fn": "fp8", "signed char": "int8",
}  # fmt: skip
_IN_PLACE = re.compile(r"[a-z0-9]_$")
#: Operators that write their first input without reading it.
_OVERWRITES = ("copy_", "fill_", "zero_")
#: Operators with a small result.
_REDUCES = ("sum", "mean", "amax", "amin", "max", "min", "argmax", "argmin", "norm", "linalg_vector_norm", "any", "all", "nll_loss_forward", "std", "var")  # fmt: skip
_LOOKUPS = ("embedding", "index_select", "gather")
_PRODUCTS = {
    "mm": (0, 1),
    "addmm": (1, 2),
    "_addmm_activation": (1, 2),
    "bmm": (0, 1),
    "baddbmm": (1, 2),
    "_scaled_mm": (0, 1),
    "_grouped_mm": (0, 1),
}
_ATTENTION = re.compile(r"_?(scaled_dot_product_)?(flash|efficient|cudnn)?_?attention\w*")
_CONVOLUTION = ("cudnn_convolution", "_convolution", "convolution", "miopen_convolution", "_conv_depthwise2d")


class Cost(NamedTuple):
    """Bytes that an operator must move and its operations; None where they are not known."""

    bytes_needed: float | None
    flops: float | None


_UNKNOWN = Cost(None, None)


def cost(name: str, shapes: Sequence[Sequence[int]], dtypes: Sequence[str], values: Sequence[str] = ()) -> Cost:
    """The cost of an operator. ``values`` are the texts of its other arguments, as the trace has them."""
    stem = name.rpartition("::")[2]
    sizes = [SIZES.get(dtype.lower(), 0) for dtype in dtypes]
    held = {
        place: float(math.prod(shape) * size)
        for place, (shape, size) in enumerate(zip(shapes, sizes, strict=False))
        if size
    }
    if not held:
        return _UNKNOWN
    read = sum(held.values())
    if stem in _CONVOLUTION and {0, 1} <= held.keys():
        return _convolution(stem, shapes, sizes, values, read)
    if stem == "convolution_backward" and {0, 1, 2} <= held.keys():
        # The gradients of input and weight each take as many operations as the forward pass.
        once = 2.0 * math.prod(shapes[0]) * math.prod(shapes[2][1:])
        return Cost(read + held[1] + held[2], 2 * once)
    if stem in _PRODUCTS or _ATTENTION.fullmatch(stem):
        of = (stem, shapes, held, values, read)
        return _attention(*of) if _ATTENTION.fullmatch(stem) else _product(stem, shapes, sizes, read)
    if stem.startswith(_LOOKUPS) and "backward" not in stem and len(held) > 1:
        table, index = list(held)[:2]
        rows = math.prod(shapes[index]) * sizes[table] * (1 if stem == "gather" else (shapes[table] or [1])[-1])
        return Cost(held[index] + 2.0 * rows, None)
    return Cost(read + _written(stem, held), None)


def _written(stem: str, held: dict[int, float]) -> float:
    """Bytes that another operator writes beside its inputs: nothing where the result is among them, else as many as its largest input has."""
    # Inductor's launchers name results among their inputs.
    if stem in (*_OVERWRITES, *_REDUCES) or stem.startswith("triton_"):
        return 0.0
    return held.get(0, 0.0) if _IN_PLACE.search(stem) else max(held.values())


def _product(stem: str, shapes: Sequence[Sequence[int]], sizes: Sequence[int], read: float) -> Cost:
    a, b = (shapes[place] if place < len(shapes) else () for place in _PRODUCTS[stem])
    if len(a) < 2 or len(b) < 2:
        return _UNKNOWN
    batch = math.prod(a[:-2])
    rows, inner, columns = a[-2], a[-1], b[-1]
    size = sizes[_PRODUCTS[stem][0]]
    return Cost(read + float(batch * rows * columns * size), 2.0 * batch * rows * inner * columns)


def _convolution(
    stem: str, shapes: Sequence[Sequence[int]], sizes: Sequence[int], values: Sequence[str], read: float
) -> Cost:
    image, weight = shapes[0], shapes[1]
    lists = [[int(number) for number in re.findall(r"-?\d+", value)] for value in values if value.startswith("[")]
    # cuDNN's functions take padding and stride, others stride and padding, the depthwise one after the kernel's size.
    order = {"cudnn_convolution": (1, 0), "miopen_convolution": (1, 0), "_conv_depthwise2d": (1, 2)}.get(stem, (0, 1))
    if (
        len(image) != len(weight)
        or len(lists) <= max(order)
        or {len(lists[place]) for place in order} != {len(image) - 2}
    ):
        return Cost(read + float(math.prod(image) * sizes[0]), None)
    stride, padding = (lists[place] for place in order)
    out = [
        max((extent + 2 * pad - kernel) // max(step, 1) + 1, 1)
        for extent, kernel, step, pad in zip(image[2:], weight[2:], stride, padding, strict=True)
    ]
    written = math.prod((image[0], weight[0], *out))
    return Cost(read + float(written * sizes[0]), 2.0 * written * math.prod(weight[1:]))


def _attention(
    stem: str, shapes: Sequence[Sequence[int]], held: dict[int, float], values: Sequence[str], read: float
) -> Cost:
    """Products of queries with keys, and of weights with values: twice 2 BHMND; five of them backward; half where the call may be causal."""
    backward = "backward" in stem
    first = 1 if backward else 0
    if any(place not in held or len(shapes[place]) != 4 for place in (first, first + 1)):
        return Cost(read, None)
    query, key = shapes[first], shapes[first + 1]
    # FlashAttention's own functions take (batch, rows, heads, columns), all others (batch, heads, rows, columns).
    heads, rows = (2, 1) if stem.startswith(("_flash", "_efficient")) else (1, 2)
    flops = 2.0 * (5 if backward else 2) * query[0] * query[heads] * query[rows] * key[rows] * query[3]
    written = sum(held[place] for place in range(first, first + 3) if place in held) if backward else held[first]
    return Cost(read + written, flops / 2 if "True" in values else flops)
