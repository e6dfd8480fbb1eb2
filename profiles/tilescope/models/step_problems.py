"""The distinct problems of a step, and those that kernels of the library solve, with what was recorded of these. Pure but for recordings."""

from __future__ import annotations

import functools
import math
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from tilescope.collectors.foreign_files.operator_costs import PIPES
from tilescope.files import bounded_reading, json_shape
from tilescope.models import summary
from tilescope.models.ledger import Entry, Ledger
from tilescope.runs import recordings, store
from tilescope.table.case import Case
from tilescope.table.step import BACKWARD, FORWARD, KERNEL, Operator, Step

_DTYPES = {name: dtype for name, dtype in PIPES.items() if dtype in ("bf16", "fp16", "fp32")}
#: Operators of rows, by the library's kernel that does the same, and the place of the input that has the rows.
_ROWS = {
    "native_layer_norm": ("layer_norm", 0), "native_layer_norm_backward": ("layer_norm", 1),
    "_fused_rms_norm": ("rms_norm", 0), "_fused_rms_norm_backward": ("rms_norm", 1),
    "_softmax": ("softmax", 0), "_softmax_backward_data": ("softmax", 0), "_log_softmax": ("cross_entropy", 0),
    "_log_softmax_backward_data": ("cross_entropy", 0), "rms_norm": ("rms_norm", 0), "layer_norm": ("layer_norm", 0), "softmax": ("softmax", 0),
}  # fmt: skip
_ELEMENTS = {"gelu": ("gelu", 0), "gelu_backward": ("gelu", 0), "native_dropout": ("dropout", 0)}
_PRODUCTS = {"mm": (0, 1), "addmm": (1, 2)}
_ATTENTION = re.compile(r"_?(scaled_dot_product_)?(flash_|efficient_|cudnn_)?attention(_forward)?")
#: Sizes further apart than this factor say nothing of each other.
_FAR = 8.0
_NAME = "problem"


class Solved(NamedTuple):
    """A problem of the library: its kernel, workload and pass, as ``tilescope tune`` takes them."""

    kernel: str
    workload: str
    direction: str


@dataclass(frozen=True)
class Problem:
    """A distinct problem of a step. ``kernel`` and ``workload`` are empty where the library has no kernel for it. ``seconds`` are of all its launches."""

    operator: str
    direction: str
    shapes: tuple[tuple[int, ...], ...]
    dtypes: tuple[str, ...]
    launches: int
    seconds: float
    kernel: str = ""
    workload: str = ""


class Evidence(NamedTuple):
    """A recorded time of a kernel in seconds, at the workload of the recording with that id, and the most that it can take at the asked size."""

    seconds: float
    most: float
    workload: str
    run: str


def of(step: Step, ledger: Ledger) -> list[Problem]:
    """The step's distinct problems, the one with the most time first."""
    groups: dict[tuple[str, str, tuple[tuple[int, ...], ...], tuple[str, ...]], list[Entry]] = {}
    solved: dict[object, Solved | None] = {}
    for entry in ledger.entries:
        operator = step.operator(entry.launch)
        if entry.launch.kind == KERNEL and operator.shapes:
            key = (operator.name, operator.direction, operator.shapes, operator.dtypes)
            groups.setdefault(key, []).append(entry)
            solved[key] = solver(operator)
    found = [
        Problem(*key, len(entries), sum(entry.share for entry in entries), *(solved[key] or ("", ""))[:2])
        for key, entries in groups.items()
    ]
    return sorted(found, key=lambda one: -one.seconds)


def solver(operator: Operator) -> Solved | None:
    """The library's problem that an operator is; None where it has no kernel for it."""
    stem = operator.name.rpartition("::")[2]
    direction = BACKWARD if "backward" in stem else FORWARD
    if known := _ROWS.get(stem) or _ELEMENTS.get(stem):
        shape, dtype = _input(operator, known[1])
        sizes = (math.prod(shape[:-1]), shape[-1]) if shape and stem in _ROWS else (math.prod(shape),)
        return _solved(known[0], sizes, dtype, direction) if shape else None
    if stem in _PRODUCTS:
        (a, dtype), (b, _) = (_input(operator, place) for place in _PRODUCTS[stem])
        # The gradients of a product are products of their own.
        return _solved("matmul", (a[0], b[1], a[1]), dtype, FORWARD) if len(a) == len(b) == 2 else None
    if _ATTENTION.fullmatch(stem):
        return _attention(operator, stem)
    return None


def _attention(operator: Operator, stem: str) -> Solved | None:
    (query, dtype), (key, _) = _input(operator, 0), _input(operator, 1)
    if len(query) != 4 or len(key) != 4 or not operator.flops:
        return None
    heads, rows = (2, 1) if stem.startswith(("_flash", "_efficient")) else (1, 2)
    whole = 4.0 * query[0] * query[heads] * query[rows] * key[rows] * query[3]
    kernel = "causal_attention" if operator.flops < whole else "attention"
    sizes = (query[0], key[heads], query[heads] // max(key[heads], 1), query[rows], key[rows], query[3])
    return _solved(kernel, sizes, dtype, FORWARD)


def _input(operator: Operator, place: int) -> tuple[tuple[int, ...], str]:
    if place >= min(len(operator.shapes), len(operator.dtypes)):
        return (), ""
    return operator.shapes[place], _DTYPES.get(operator.dtypes[place].lower(), "")


def _solved(kernel: str, sizes: Sequence[int], dtype: str, direction: str) -> Solved | None:
    return Solved(kernel, f"{'x'.join(map(str, sizes))}-{dtype}", direction) if dtype and all(sizes) else None


def read(file: Path, kernel: str) -> list[str]:
    """The workloads of a kernel in a file of problems. Raises ValueError, in one line, for another file, and for a kernel that it lacks."""
    if not file.is_file():
        raise ValueError(f"no file {file}: make it with 'tilescope model --problems {file} script.py'")
    try:
        known = json_shape.fit(bounded_reading.data_of(file), list[Problem], "it")
    except (bounded_reading.Unreadable, json_shape.Misfit) as error:
        raise ValueError(
            f"{file} is no file of problems ({error}): make it with 'tilescope model --problems {file} script.py'"
        ) from error
    found = list(dict.fromkeys(one.workload for one in known if one.kernel == kernel))
    if not found:
        kernels = ", ".join(sorted({one.kernel for one in known if one.kernel})) or "no kernel"
        raise ValueError(f"{file} has no problem of {kernel}: it has {kernels}")
    return found


@functools.lru_cache(maxsize=64)
def evidence(solved: Solved, device: str) -> Evidence | None:
    """The recorded time of the library's kernel on this device at this size or, by the number of elements, scaled from the nearest one; None without one."""
    try:
        rows = _recorded(solved.kernel, device)
    except (store.StoreError, OSError):
        return None
    dtype = Case(solved.kernel, "", "", solved.workload).dtype
    fitting = [
        (workload, seconds, run)
        for direction, workload, seconds, run in rows
        if direction == solved.direction and Case(_NAME, "", "", workload).dtype == dtype
    ]
    asked = _size(solved.workload)
    near = min(fitting, key=lambda one: abs(math.log(_size(one[0]) / asked)), default=None)
    if near is None or not 1 / _FAR <= _size(near[0]) / asked <= _FAR:
        return None
    scaled = near[1] * asked / _size(near[0])
    # A smaller size takes no longer, and a larger one grows at most with its elements.
    return Evidence(scaled, max(near[1], scaled), near[0], near[2])


@functools.cache
def _recorded(kernel: str, device: str) -> list[tuple[str, str, float, str]]:
    """Pass, workload and seconds of each recorded case of the kernel's Triton implementation, and the recording."""
    summaries = [one for one in recordings.of_kernel(kernel) if one.device == device]
    if not summaries:
        return []
    loaded = store.open_run(summaries[0].path)
    table = loaded.table[
        (loaded.table["kernel"] == kernel) & (loaded.table["impl"] == "triton") & (loaded.table["config"] == "")
    ]
    rows = summary.of_run(loaded, table)
    timed: Iterable[tuple[str, str, float]] = zip(rows["pass"], rows["workload"], rows["gpu_time"], strict=True)
    return [(direction, workload, seconds, loaded.run.id) for direction, workload, seconds in timed if seconds > 0]


def _size(workload: str) -> float:
    return float(math.prod(int(size) for size in re.findall(r"\d+", workload.partition("-")[0])))
