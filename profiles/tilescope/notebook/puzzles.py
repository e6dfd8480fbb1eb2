"""Grades a learner's solution of a puzzle by Triton's interpreter, on any machine.

A grade answers three questions. Is the result right, at a round and at a ragged size? How many bytes does the kernel request
and touch, relative to the algorithm's? What share of the 32-byte sectors that it touches does it use? The answers come from the
collectors ``check`` and ``interpreter``, in a worker. Imports neither torch nor triton at module level.
"""

from __future__ import annotations

import dataclasses
import functools
import linecache
import math
import re
import textwrap
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import pandas as pd

from tilescope.jobs.plan import Request
from tilescope.jobs.process import Scratch
from tilescope.models import faults
from tilescope.notebook import live_progress, profiling
from tilescope.notebook.cell_source import CannotCarry
from tilescope.runs.store import LoadedRun
from tilescope.table import units
from tilescope.table.run import Failure
from tilescope.table.suggest import unknown

if TYPE_CHECKING:
    from tilescope_kernels.spec import Cost, KernelSpec, Workload

#: The name of the learner's implementation.
YOURS = "yours"
#: The largest accepted ratio of touched bytes to the algorithm's, and the least accepted share of sectors used.
TOUCHED, USED = 1.05, 0.75
#: Limit in seconds to check a size, and to count it. An endless loop is recognised by it.
_LIMIT = 40
#: Factors of the first and the last row of ``x`` (see ``uneven``): with large ones ``exp`` overflows unless the maximum is
#: subtracted, with small ones ``eps`` matters.
_UNEVEN = {"softmax": (1.0, 50.0), "online_max": (1.0, 50.0), "layer_norm": (0.01, 1.0), "rms_norm": (0.01, 1.0)}
#: Characters in a line of a verdict.
_WIDTH = 100


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


@dataclass(frozen=True)
class Verdict:
    """A grade. ``answers`` are whether each question is answered well, with a sentence. ``stub`` says why there is nothing to grade yet."""

    name: str
    stub: str = ""
    answers: Mapping[str, tuple[bool, str]] = field(default_factory=dict)
    hint: str = ""

    @property
    def solved(self) -> bool:
        return bool(self.answers) and all(good for good, _ in self.answers.values())

    def __str__(self) -> str:
        if self.stub:
            return f"{self.name}: not yet: {self.stub}"
        lines = [f"{self.name}: {'solved' if self.solved else 'not solved yet'}"]
        lines += [f"  {what:9}  {'yes' if good else 'no ':3}  {text}" for what, (good, text) in self.answers.items()]
        hint = textwrap.fill(f"  try next   {self.hint}", _WIDTH, subsequent_indent=" " * 13)
        return "\n".join([*lines, hint])


def check(name: str, function: Callable[..., Any]) -> None:
    """Grades ``function`` as a solution of the puzzle ``name`` and prints the verdict.

    Raises ValueError, in one line, for an unknown puzzle, or for a function that cannot be given to the worker.
    """
    print(grade(name, function))


def grade(name: str, function: Callable[..., Any]) -> Verdict:
    """The verdict on ``function``, which takes the arguments of the puzzle's reference. Raises as ``check`` does."""
    # The learner's process has torch loaded, so describing the kernel here saves the start of a worker.
    from tilescope.execution import describe  # noqa: PLC0415

    declared = spec(name, function)
    with Scratch() as folder:
        try:
            kernel = profiling.reference_to(declared, folder / profiling.CELLS)
        except CannotCarry as error:
            return Verdict(name, stub=str(error))
        # The file of a kernel is that of its inputs. A partial (see ``spec``) has none, but its function has.
        described = dataclasses.replace(declared, inputs=getattr(declared.inputs, "func", declared.inputs))
        # The first two limits apply at memory accesses. The timeout ends a loop without any.
        limits = {"check_limit": _LIMIT, "interpreter_limit": _LIMIT, "timeout": _LIMIT}
        request = Request([kernel], collectors=["check", "interpreter"], target="sm_90", settings=limits)
        try:
            return judge(name, live_progress.run(request, folder, _not_too_slow, [describe.entry(kernel, described)]))
        except _TooSlow:
            slow = f"it is not done after {_LIMIT} s: does every loop end, and does a program take a block, not an element?"
            return Verdict(name, stub=slow)


class _TooSlow(Exception):
    """A size that took longer than ``_LIMIT``, after which the others are not tried."""


def _not_too_slow(event: Mapping[str, Any]) -> None:
    """Listens to the job's events; raises _TooSlow when a size takes too long."""
    if event.get("limited") or "did not answer" in event.get("message", ""):
        raise _TooSlow


def spec(name: str, function: Callable[..., Any]) -> KernelSpec:
    """The puzzle's kernel as the library declares it, with ``function`` as its only implementation. Imports torch."""
    from tilescope_kernels.spec import Implementation, Workload  # noqa: PLC0415

    from tilescope.execution import execute  # noqa: PLC0415 (imports torch)

    if name not in PUZZLES:
        raise ValueError(unknown("puzzle", name, PUZZLES))
    puzzle = PUZZLES[name]
    declared = execute.load_spec(puzzle.kernel)
    changed: dict[str, Any] = {"reference": add_relu, "cost": add_relu_cost} if name == "add_relu" else {}
    if name in _UNEVEN:
        changed["inputs"] = functools.partial(uneven, inputs=declared.inputs, span=_UNEVEN[name])
    sizes = [dict(zip(declared.dims, size, strict=True)) for size in puzzle.sizes]
    return dataclasses.replace(
        declared,
        name=name,
        implementations={YOURS: Implementation(function)},
        workloads=tuple(Workload(size, "fp32") for size in sizes),
        passes=("forward",),
        **changed,
    )


def uneven(
    workload: Workload, device: Any, *, inputs: Callable[..., dict[str, Any]], span: tuple[float, float]
) -> dict[str, Any]:
    """The ``inputs`` of a workload, with the rows of ``x`` scaled by factors across ``span``, evenly on a logarithmic scale."""
    import torch  # noqa: PLC0415

    drawn = inputs(workload, device)
    x = drawn["x"].detach()
    first, last = (math.log10(end) for end in span)
    scale = torch.logspace(first, last, x.shape[0], dtype=x.dtype, device=x.device)
    return {**drawn, "x": x * scale[:, None]}


def add_relu(x: Any, y: Any) -> Any:
    return (x + y).relu()


def add_relu_cost(workload: Workload, direction: str) -> Cost:
    """One addition an element (a comparison is no operation); two tensors read, one written."""
    from tilescope_kernels.spec import Cost  # noqa: PLC0415 (imports torch)

    size = workload.elements * workload.itemsize
    return Cost(flops=workload.elements, bytes_read=2 * size, bytes_written=size)


def judge(name: str, loaded: LoadedRun) -> Verdict:
    puzzle, table = PUZZLES[name], loaded.table
    stub = _stub(loaded)
    if stub:
        return Verdict(name, stub=stub)
    right, errors, where = _correct(name, loaded)
    asked, touched = _ratio(table, "requested_bytes"), _ratio(table, "unique_bytes")
    used = _sectors_used(table)
    thrifty = asked <= puzzle.asked and touched <= TOUCHED
    moved = f"asks for {units.times(asked)} and touches {units.times(touched)} what the algorithm needs"
    limits = "" if thrifty else f" (good: {units.times(puzzle.asked)} and {units.times(TOUCHED)})"
    answers = {
        "correct": (right, errors),
        "bytes": (thrifty, moved + limits),
        "coalesced": (used >= USED, f"uses {used:.0%} of the sectors it touches"),
    }
    hints = {**puzzle.hints, "correct": f"{where} {puzzle.hints['wrong']}".strip()}
    missing = (hints[what] for what, (good, _) in answers.items() if not good)
    return Verdict(name, "", answers, next(missing, "profile it at larger sizes, as in own_kernel.ipynb."))


def _stub(loaded: LoadedRun) -> str:
    """The reason why there is nothing to grade, in one line; empty where there is something."""
    for failure in loaded.run.failures:
        nothing = _UNWRITTEN.search(failure.message)
        if nothing and nothing[1] == nothing[2]:
            return "nothing is written to the output: fill in the kernel"
        if failure.collector == "interpreter" or not (nothing or "is not finite" in failure.message):
            return _with_source(failure)
    if not loaded.table["metric"].str.startswith("sector_efficiency").any():
        return "no Triton kernel is launched: launch yours with kernel[grid](...)"
    return ""


#: The message of ``check`` on NaN, which memory holds until it is written.
_UNWRITTEN = re.compile(r"has NaN in (\d+) of (\d+) elements")


def _with_source(failure: Failure) -> str:
    """A failure's message with the text of the learner's line that it names."""
    found = re.search(r"line (\d+)", failure.message)
    file = failure.case.partition(".py:")[0] + ".py"
    text = linecache.getline(file, int(found[1])).strip() if found else ""
    # The number is left out: it counts lines of the worker's file, which the learner does not see.
    message = re.sub(r", line \d+", "", _bare(failure))
    if faults.of_failure(failure).rule == faults.OUTSIDE:
        message += " (mask those lanes, or look at the offsets)"
    return f"{message}, at: {text}" if text else message


def _bare(failure: Failure) -> str:
    """A failure's message without the name of its class, and with the case's size instead of its whole name."""
    return re.sub(r"^\S+/forward/([^,\s]+),?", r"\1", faults.plain(failure.message)).removesuffix(
        ": wrong, or never written"
    )


def _correct(name: str, loaded: LoadedRun) -> tuple[bool, str, str]:
    """Whether every size is right, the errors as text, and a sentence on where to look if one is wrong."""
    table = loaded.table
    wrong = [_bare(failure) for failure in loaded.run.failures if failure.collector == "check"]
    errors = table[table["metric"] == "relative_error"].set_index("workload")["value"]
    allowed = float(table.loc[table["metric"] == "tolerance", "value"].min()) if len(errors) else math.nan
    unchecked = len(PUZZLES[name].sizes) - len(errors) - len(wrong)
    said = [f"{workload} is off by {error:.1e}" for workload, error in errors.items()] + wrong
    if unchecked > 0:
        said.append(f"{unchecked} of {len(PUZZLES[name].sizes)} sizes could not be checked")
    text = "; ".join(said) + (f" (allowed: {allowed:.0e})" if len(errors) else "")
    right = errors <= allowed
    if not wrong and not unchecked and bool(right.all()):
        return True, text, ""
    round_size = "x".join(map(str, PUZZLES[name].sizes[0])) + "-fp32"
    return False, text, _where(right.to_dict(), round_size, wrong)


def _where(right: Mapping[Any, bool], round_size: str, wrong: list[str]) -> str:
    """A sentence on where to look, from the sizes that are ``right`` and the messages on ``wrong`` ones; may be empty."""
    if any(_UNWRITTEN.search(message) for message in wrong):
        return "NaN is what overflows, or is never written: does the grid reach every result?"
    if right.get(round_size) and not all(right.values()):
        return "Right at the round size, wrong at the ragged one: look at the mask."
    if round_size in right and not right[round_size]:
        return "Wrong at the round size as well: look at the formula and the offsets before the mask."
    return ""


def _ratio(table: pd.DataFrame, stem: str) -> float:
    """The largest ratio over sizes of all launches' bytes to the algorithm's."""
    names = {"moved": f"{stem}_{{}}", "needed": "algorithm_bytes_{}"}
    sums = {
        kind: table[table["metric"].isin([name.format(way) for way in ("read", "written")])]
        .groupby("workload")["value"]
        .sum()
        for kind, name in names.items()
    }
    return float((sums["moved"] / sums["needed"]).max())


def _sectors_used(table: pd.DataFrame) -> float:
    """The smallest share over sizes of requested bytes in the touched sectors."""
    wide = table.pivot_table(index=["workload", "launch"], columns="metric", values="value")
    asked = pd.concat([wide[f"requested_bytes_{way}"] for way in ("read", "written")], keys=("read", "written"))
    share = pd.concat([wide[f"sector_efficiency_{way}"] for way in ("read", "written")], keys=("read", "written"))
    known = share.notna() & (asked > 0)
    by_size = pd.DataFrame({"asked": asked[known], "touched": asked[known] / share[known]}).groupby("workload").sum()
    return float((by_size["asked"] / by_size["touched"]).min())
