"""Prediction of the speedup from fusing a chain of PyTorch operations, by shape, dtype and target. Pure.

Unfused, every operation is a launch that reads its operands from HBM and writes its result back. Fused, one launch reads the
chain's inputs and writes its result. Memory-bound code gains the ratio of these bytes, and the delays of the launches that are gone.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from dataclasses import dataclass

from tilescope_kernels.spec import DTYPES

from tilescope.hardware import device, roofs
from tilescope.hardware.occupancy import REGISTERS
from tilescope.table import units
from tilescope.table.run import Device
from tilescope.table.suggest import unknown

#: The widest load of a thread, in bytes.
VECTOR = 16
#: Below this time, in seconds, a launch costs more than its bytes.
_SHORT = 5e-6
#: Bytes of a multiprocessor's registers: a row held by one block fits into them or spills.
_REGISTER_FILE = REGISTERS * 4
#: Share of masked lanes above which a block counts as wasteful.
_MASKED = 0.25
#: First architecture whose instructions convert and multiply the dtype (CUDA C++ Programming Guide, "Arithmetic
#: Instructions"; PTX ISA, "cvt" and "mma").
_NATIVE = {"bf16": 80, "fp8": 89}
#: First architecture with bulk tensor copies (PTX ISA, "cp.async.bulk.tensor").
_TMA = 90


@dataclass(frozen=True)
class Operation:
    """Memory traffic of one PyTorch operation, which also reads the chain's running value once.

    ``tensors``, ``rows`` and ``masks`` count further operands: of the full shape, of one row's shape, and of the full shape
    with one byte an element. ``whole_row``: an element of the result needs the whole row. ``reduces``: the result has
    one element a row. ``keeps_mask``: it also writes a mask of one byte an element, as dropout does.
    """

    tensors: int = 0
    rows: int = 0
    masks: int = 0
    whole_row: bool = False
    reduces: bool = False
    keeps_mask: bool = False


_UNARY = ("abs", "cos", "exp", "exp2", "gelu", "log", "neg", "reciprocal", "relu", "rsqrt", "scale", "sigmoid", "silu",
          "sin", "sqrt", "square", "tanh")  # fmt: skip
_BINARY = ("add", "div", "maximum", "minimum", "mul", "sub")
_REDUCTIONS = ("amax", "amin", "mean", "sum")

OPERATIONS: dict[str, Operation] = {
    **dict.fromkeys(_UNARY, Operation()),
    **dict.fromkeys(_BINARY, Operation(tensors=1)),
    **dict.fromkeys(_REDUCTIONS, Operation(whole_row=True, reduces=True)),
    "addcmul": Operation(tensors=2),
    "bias": Operation(rows=1),
    "dropout": Operation(keeps_mask=True),
    "layer_norm": Operation(rows=2, whole_row=True),
    "log_softmax": Operation(whole_row=True),
    "masked_fill": Operation(masks=1),
    "rms_norm": Operation(rows=1, whole_row=True),
    "softmax": Operation(whole_row=True),
}
#: Operations that are compute-bound; later operations are fused into the end of their kernels.
_PRODUCTS = ("addmm", "attention", "bmm", "conv", "linear", "matmul", "mm")


@dataclass(frozen=True)
class Problem:
    """Sizes and dtype of the running value; the last extent is the length of a row."""

    shape: tuple[int, ...]
    dtype: str

    @property
    def elements(self) -> int:
        return math.prod(self.shape)

    @property
    def bytes(self) -> int:
        return self.elements * DTYPES[self.dtype][1]

    @property
    def columns(self) -> int:
        return self.shape[-1]

    @property
    def row_bytes(self) -> int:
        return self.columns * DTYPES[self.dtype][1]


@dataclass(frozen=True)
class Chain:
    """Operations in their order, and the bytes moved by one launch each (unfused) and by one launch in all (fused).

    ``whole_row``: one of them needs a whole row at once. ``aligned_rows``: one of them works by rows, so that the alignment of
    rows matters.
    """

    names: tuple[str, ...]
    unfused_bytes: int
    fused_bytes: int
    whole_row: bool
    aligned_rows: bool


@dataclass(frozen=True)
class Line:
    """One line of the answer: its ``topic``, its ``text``, and whether it is ``good`` news (None: neither)."""

    topic: str
    text: str
    good: bool | None = None


@dataclass(frozen=True)
class Answer:
    """The prediction for fusing a chain on a target."""

    chain: Chain
    problem: Problem
    target: str
    lines: tuple[Line, ...]

    @property
    def bound(self) -> float:
        """The speedup by the bytes alone: unfused bytes / fused bytes."""
        return self.chain.unfused_bytes / self.chain.fused_bytes


def parse_chain(text: str) -> tuple[str, ...]:
    """The names in ``add,relu,mul``. Raises ValueError for an empty chain, an unknown name, or a product."""
    names = tuple(part.strip() for part in text.split(",") if part.strip())
    if not names:
        raise ValueError("no chain: name operations in their order, as in 'add,relu,mul'")
    for place, name in enumerate(names):
        if name in _PRODUCTS:
            raise ValueError(
                f"{name} is no pass over memory: later operations are fused into the end of its kernel, before the tile is "
                f"stored; ask about the operations {'after' if not place else 'beside'} it"
            )
        if name not in OPERATIONS:
            raise ValueError(unknown("operation", name, OPERATIONS))
        if place and OPERATIONS[names[place - 1]].reduces:
            raise ValueError(f"{names[place - 1]} leaves one value a row: end the chain with it")
    return names


def parse_problem(text: str) -> Problem:
    """The sizes and dtype in ``16384x4096-bf16``. Raises ValueError with the expected form for other text."""
    match = re.fullmatch(r"(\d+(?:x\d+)*)-(\w+)", text.strip())
    if not match:
        raise ValueError(f"shape {text!r} is not sizes and a dtype, as in 16384x4096-bf16")
    shape = tuple(int(size) for size in match[1].split("x"))
    if match[2] not in DTYPES:
        raise ValueError(unknown("dtype", match[2], DTYPES))
    if 0 in shape:
        raise ValueError(f"shape {text!r} is empty: every size must be at least 1")
    return Problem(shape, match[2])


def count(names: tuple[str, ...], problem: Problem) -> Chain:
    """The chain with its bytes by OPERATIONS: each operand is read once and each result written once."""
    full, row, mask = problem.bytes, problem.row_bytes, problem.elements
    each_row = full // problem.columns
    operations = [OPERATIONS[name] for name in names]
    operands = sum(op.tensors * full + op.rows * row + op.masks * mask for op in operations)
    results = sum(each_row if op.reduces else full for op in operations)
    masks = sum(mask for op in operations if op.keeps_mask)
    last = each_row if operations[-1].reduces else full
    whole_row = any(op.whole_row for op in operations)
    return Chain(
        names,
        unfused_bytes=len(names) * full + operands + results + masks,
        # A fused kernel writes no mask for dropout: the backward pass draws the same numbers from the seed (tl.rand).
        fused_bytes=full + operands + last,
        whole_row=whole_row,
        aligned_rows=whole_row or any(op.rows for op in operations),
    )


def ask(chain: Chain, problem: Problem, target: str) -> Answer:
    """The answer for a chain whose bytes are counted. Raises ValueError for a target without known figures."""
    gpu = device.for_target(target)
    unfused, fused = chain.unfused_bytes, chain.fused_bytes
    passes = [
        f"{total / problem.bytes:.3g} passes over {units.text(problem.bytes, 'byte')}" for total in (unfused, fused)
    ]
    moved = f"{units.text(unfused, 'byte')} against {units.text(fused, 'byte')}"
    bound = f"{units.times(unfused / fused)} faster by the bytes alone, more where launches are short: {moved}"
    roof = roofs.roof(gpu, "hbm")
    lines = (
        Line("memory", f"{passes[0]} unfused, {passes[1]} fused"),
        Line("bound", bound, True) if unfused != fused else Line("bound", f"nothing to win: a single operation moves {moved}", False),
        *([_times(chain, roof.value, gpu.name)] if roof else []),
        _cache(chain, problem, gpu), _vector(chain, problem), _block(chain, problem), *_support(problem, target),
    )  # fmt: skip
    return Answer(chain, problem, target, lines)


def _times(chain: Chain, bandwidth: float, name: str) -> Line:
    before, after = (units.text(b / bandwidth, "second") for b in (chain.unfused_bytes, chain.fused_bytes))
    text = f"at least {before} unfused, {after} fused at the datasheet bandwidth of {name}"
    if chain.fused_bytes / bandwidth >= _SHORT:
        return Line("time", text)
    many = len(chain.names) > 1
    cost = f"{len(chain.names)} launches cost more than their" if many else "the launch costs more than its"
    return Line("time", f"{text}; so short that {cost} bytes")


def _cache(chain: Chain, problem: Problem, gpu: Device) -> Line:
    sizes = f"one tensor is {units.text(problem.bytes, 'byte')}, L2 of {gpu.name} {units.text(gpu.l2_bytes, 'byte')}"
    if len(chain.names) == 1:
        return Line("L2", sizes)
    if 2 * problem.bytes <= gpu.l2_bytes:
        stay = "results may stay there between launches, so the win can be far below the bound"
        return Line("L2", f"{sizes}: {stay}", False)
    return Line("L2", f"{sizes}: results go through HBM between launches", True)


def _vector(chain: Chain, problem: Problem) -> Line:
    size, what = (problem.row_bytes, "a row") if chain.aligned_rows else (problem.bytes, "the tensor")
    loads = f"loads of {VECTOR // DTYPES[problem.dtype][1]} elements a thread"
    if size % VECTOR == 0:
        return Line("vectors", f"{what} of {size:,} bytes is a multiple of {VECTOR}: {loads}", True)
    if not chain.aligned_rows:
        return Line("vectors", f"{loads}, but for the last {size % VECTOR} bytes, which a mask ends", True)
    return Line(
        "vectors",
        f"a row of {size:,} bytes is no multiple of {VECTOR}: rows start unaligned and loads narrow to "
        f"{math.gcd(size, VECTOR)} bytes; pad the row's stride to {-(-size // VECTOR) * VECTOR:,}",
        False,
    )


def _block(chain: Chain, problem: Problem) -> Line:
    if not chain.whole_row:
        block = 1024
        tail, programs = problem.elements % block, units.several(-(-problem.elements // block), "program")
        masks = f"the last of {programs} masks {units.several(block - tail, 'lane')}"
        return Line("BLOCK", f"flat blocks of {block} elements: {masks if tail else 'it divides the tensor'}", True)
    block = 1 << (problem.columns - 1).bit_length()
    masked = 1 - problem.columns / block
    held = units.text(4 * block, "byte")
    if 4 * block > _REGISTER_FILE // 2:
        room = units.text(_REGISTER_FILE, "byte")
        text = f"a row needs BLOCK={block}, {held} in fp32 of {room} of registers: walk it in chunks"
        return Line("BLOCK", f"{text} (two passes, or online)", False)
    lanes = f"{masked * 100:.0f} % of its lanes are masked" if masked else "no lane is masked"
    return Line("BLOCK", f"a program a row with BLOCK={block} ({held} in fp32): {lanes}", masked < _MASKED)


def _support(problem: Problem, target: str) -> Iterator[Line]:
    generation, first = int(re.sub(r"\D", "", target)), _NATIVE.get(problem.dtype, 0)
    native = f"{problem.dtype} is native to {target}{'; accumulate in fp32' if first else ''}"
    lacks = f"{target} has no {problem.dtype} instructions (from sm_{first} on): it is emulated or refused"
    yield Line("dtype", native if generation >= first else lacks, generation >= first)
    if generation < _TMA:
        yield Line("TMA", f"{target} has none (from sm_{_TMA} on): tl.load with pointers")
    elif problem.row_bytes % VECTOR:
        stride = f"rows of {problem.row_bytes:,} bytes break its stride of {VECTOR}"
        yield Line("TMA", f"{target} has it, but {stride}: pad them", False)
    else:
        yield Line("TMA", f"{target} has it and the strides fit; a pass over memory gains little over tl.load", True)
