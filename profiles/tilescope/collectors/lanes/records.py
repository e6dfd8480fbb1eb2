"""Inserts marks around the operations of a kernel's TTGIR, which ``lowering`` makes records of. Pure text."""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from tilescope.collectors import assembly, compiled_text
from tilescope.collectors.lanes import lowering
from tilescope.execution.not_applicable import NotApplicable

#: Kinds of operations, in the order in which figures name them.
WAIT, PRODUCT, COPY, BARRIER, ACCESS, SHARED, CONVERSION, REDUCTION = KINDS = (
    "wait", "product", "copy", "barrier", "access", "shared memory", "conversion", "reduction",
)  # fmt: skip
#: The kinds that are recorded, all of them first. A later set is for a kernel that the records of an earlier set slow down too much.
LEVELS = tuple(
    frozenset(KINDS).difference(left_out)
    for left_out in (
        (), (SHARED, REDUCTION), (SHARED, REDUCTION, COPY, BARRIER), (SHARED, REDUCTION, COPY, BARRIER, CONVERSION),
    )
)  # fmt: skip
#: The scope of a whole program, and the start of the scopes of its partitions.
PROGRAM, PARTITION = "program", "partition"
#: The name of the operation at which all warps of a block meet.
BLOCK_BARRIER = "block barrier"

#: Operations that get a record: their kind and name.
_RECORDED = {
    "ttng.wait_barrier": (WAIT, "wait on barrier"),
    "ttg.async_wait": (WAIT, "wait for copies"),
    "ttng.warp_group_dot_wait": (WAIT, "wait for products"),
    "ttng.async_tma_store_wait": (WAIT, "wait for stores"),
    "ttng.warp_group_dot": (PRODUCT, "product"),
    "tt.dot": (PRODUCT, "product"),
    "tt.dot_scaled": (PRODUCT, "product"),
    "ttng.tc_gen5_mma": (PRODUCT, "product"),
    "ttng.async_tma_copy_global_to_local": (COPY, "TMA load"),
    "ttng.async_tma_gather": (COPY, "TMA load"),
    "ttng.async_tma_copy_local_to_global": (COPY, "TMA store"),
    "ttng.async_tma_scatter": (COPY, "TMA store"),
    "ttng.async_tma_reduce": (COPY, "TMA store"),
    "ttg.async_copy_global_to_local": (COPY, "asynchronous copy"),
    "ttng.arrive_barrier": (BARRIER, "arrive at barrier"),
    "ttng.barrier_expect": (BARRIER, "expect at barrier"),
    "gpu.barrier": (WAIT, BLOCK_BARRIER),
    "ttg.barrier": (WAIT, BLOCK_BARRIER),
    "tt.load": (ACCESS, "load"),
    "tt.descriptor_load": (ACCESS, "load"),
    "tt.gather": (ACCESS, "load"),
    "tt.store": (ACCESS, "store"),
    "tt.descriptor_store": (ACCESS, "store"),
    "tt.atomic_rmw": (ACCESS, "atomic operation"),
    "tt.atomic_cas": (ACCESS, "atomic operation"),
    "ttg.local_load": (SHARED, "read of shared memory"),
    "ttg.local_store": (SHARED, "write to shared memory"),
    # It writes the values that it is given. Without any it only reserves memory.
    "ttg.local_alloc": (SHARED, "write to shared memory"),
    "ttg.convert_layout": (CONVERSION, "layout conversion"),
    "tt.reduce": (REDUCTION, "reduction"),
    "tt.scan": (REDUCTION, "scan"),
}  # fmt: skip
#: What each kind of wait waits for. A wait on a barrier waits for what arrives there.
_AWAITED = {
    "ttg.async_wait": "asynchronous copy", "ttng.warp_group_dot_wait": "product", "ttng.async_tma_store_wait": "TMA store",
}  # fmt: skip
#: The pipes of products by the type of their operands, as roofs are named.
_PIPES = {"f16": "fp16", "bf16": "bf16", "f32": "tf32", "f64": "fp64", "i8": "int8", "f8E4M3FN": "fp8", "f8E5M2": "fp8"}
#: Operations that arrive at the barrier among their operands. The copy of a tile arrives when its bytes have.
_ARRIVES = frozenset({"ttng.async_tma_copy_global_to_local", "ttng.async_tma_gather", "ttng.arrive_barrier"})

#: Others that have a barrier as their first operand.
_AT_BARRIER = frozenset({"ttng.wait_barrier", "ttng.barrier_expect"})

_OPERATION = re.compile(r'^(\s*)(?:(%[\w.#:, %$-]+?) = )?"?((?:tt|ttg|ttng|gpu)\.[a-z0-9_]+)"?(?![\w.])(.*)$')
_VALUE = re.compile(r"%[\w.$-]+")
_REGION = re.compile(r"^\s*(partition\d+)\((.*)\) num_warps\(\d+\) \{")
_VIEW = re.compile(r"^\s*(%[\w.$-]+) = ttg\.(?:memdesc_index|memdesc_subslice|memdesc_subview) (%[\w.$-]+)")
_SPECIALIZED = re.compile(r"^\s*(?:%[\w.:#-]+ = )?ttg\.warp_specialize\((.*?)\)")
_PENDING = re.compile(r"\bpendings = (\d+)")
#: The last extent and the type of a product's left operand, and the extents of its result.
_EXTENTS = re.compile(r" : [^<]*<(?:\d+x)*(\d+)x([a-z]\w*)\b.*-> [^<]*<((?:\d+x)+)")


@dataclass
class Operation:
    """A recorded operation. ``line`` is its line of the kernel's file, 0 where the compiler names none.

    ``barrier`` is the barrier among its operands by its name in TTGIR, ``partition`` the partition that it is in.
    After a wait for products ``pending`` of them may still be in flight. A product has ``flops`` of the tensor cores' ``pipe``. ``uses`` are the lines of the loads whose values the operation
    itself or, in ``then_uses``, the arithmetic after it is the first to need. ``awaits`` are names and lines of what a wait waits for.
    """

    scope: str
    kind: str
    name: str
    line: int
    barrier: str = ""
    uses: list[int] = field(default_factory=list)
    then_uses: list[int] = field(default_factory=list)
    awaits: list[tuple[str, int]] = field(default_factory=list)
    arrives: bool = False
    operation: str = ""
    partition: str = ""
    pending: int = 0
    flops: int = 0
    pipe: str = ""


@dataclass(frozen=True)
class Recorded:
    """TTGIR with marks, and what each scope's number stands for: a recorded operation, the program or a partition.

    Operations of the kinds ``without`` have no records.
    """

    text: str
    scopes: list[Operation | str]
    file: str
    without: list[str]


def insert(text: str, kinds: Collection[str] = frozenset(KINDS)) -> Recorded:
    """TTGIR with a record of its start and end around each operation of these kinds, and around the program and each partition.

    Raises NotApplicable for a module with several functions.
    """
    file = _file(text)
    if len(re.findall(r"^\s*tt\.func ", text, re.MULTILINE)) != 1:
        raise NotApplicable("the kernel calls a function that is not inlined: take noinline off it")
    walk = _Walk(file, kinds, one_return=len(re.findall(r"^\s*tt\.return\b", text, re.MULTILINE)) == 1)
    lines = list(walk.lines(text))
    return Recorded("\n".join(lines), walk.scopes, file, walk.link())


def _file(text: str) -> str:
    """The name of the file of the kernel's function, whose location names it."""
    locations = dict(re.findall(r'^(#loc\d*) = loc\("([^"]+)":\d+:\d+\)', text, re.MULTILINE))
    # A function's text ends at the first brace in its column, whose location is the function's.
    function = re.search(r"^(\s*)tt\.func .*?^\1\} loc\((#loc\d*)\)", text, re.MULTILINE | re.DOTALL)
    return Path(locations.get(function[2], "")).name if function else ""


def fewer(levels: Sequence[frozenset[str]], operations: Iterable[Operation]) -> list[frozenset[str]]:
    """The levels after the first that leave out some of these operations, and leave waits, products or accesses among them."""
    there = {one.kind for one in operations}
    return [one for one in levels[1:] if one & there < levels[0] & there and one & there & {WAIT, PRODUCT, ACCESS}]


class _Walk:
    """Copies the lines of a text with records between them."""

    def __init__(self, file: str, kinds: Collection[str], *, one_return: bool) -> None:
        self.file, self.kinds, self.one_return = file, kinds, one_return
        self.scopes: list[Operation | str] = []
        self._marks = 0
        self._open: tuple[str, Operation] | None = None
        self._place = ""
        self._passed: list[str] = []
        self._roots: dict[str, str] = {}
        self._loaded: dict[str, int] = {}
        self._last: Operation | None = None
        self._all: list[Operation] = []

    def lines(self, text: str) -> Iterator[str]:
        placed = compiled_text.read("ttgir", assembly.portable(text), self.file)
        at = 0
        for line in text.splitlines():
            if re.match(r"^#loc\d* = loc\(", line):
                yield line
                continue
            bare, number = placed[at].text, placed[at].line
            if bare.rstrip().endswith("({"):
                # The location of an operation with a region follows the region.
                end = bare[: len(bare) - len(bare.lstrip())] + "})"
                number = next((after.line for after in placed[at:] if after.text.startswith(end)), None)
            at += 1
            yield from self._line(line, bare, number or 0)

    def _line(self, line: str, bare: str, number: int) -> Iterator[str]:
        indent = line[: len(line) - len(line.lstrip())]
        if self._open:
            yield line
            if bare.startswith(self._open[0] + "})"):
                yield self._end(self._open[1], indent)
                self._open = None
            return
        if region := _REGION.match(line):
            yield line
            self._place = region[1]
            given = re.findall(r"(%[\w.$-]+): ", region[2])
            self._roots |= {own: self._root(passed) for own, passed in zip(given, self._passed, strict=False)}
            yield self._start(self._place, indent + "  ")
        elif re.match(r"^\s*tt\.func ", line):
            yield line
            if self.one_return:
                yield self._start(PROGRAM, indent + "  ")
        elif re.match(r"^\s*tt\.return\b", line) and self.one_return:
            yield self._end(PROGRAM, indent)
            yield line
        elif re.match(r"^\s*ttg\.warp_return\b", line) and self._place:
            yield self._end(self._place, indent)
            yield line
            self._place = ""
        else:
            yield from self._operation(line, bare, indent, number)

    def _start(self, scope: Operation | str, indent: str) -> str:
        self.scopes.append(scope)
        return self._mark(2 * (len(self.scopes) - 1), indent)

    def _end(self, scope: Operation | str, indent: str) -> str:
        return self._mark(2 * next(at for at, one in enumerate(self.scopes) if one is scope) + 1, indent)

    def _mark(self, record: int, indent: str) -> str:
        self._marks += 1
        given = '{constraints = "=r", packed_element = 1 : i32, pure = false}'
        return f'{indent}%tilescope_{self._marks} = tt.elementwise_inline_asm "{lowering.mark(record)}" {given} -> i32'

    def _operation(self, line: str, bare: str, indent: str, number: int) -> Iterator[str]:
        if specialized := _SPECIALIZED.match(bare):
            self._passed = _VALUE.findall(specialized[1])
        if view := _VIEW.match(bare):
            self._roots[view[1]] = self._root(view[2])
        found = _OPERATION.match(bare)
        known = _RECORDED.get(found[3]) if found else None
        values = _VALUE.findall(found[4] if found else bare.partition("=")[2])
        used = sorted({self._loaded.pop(value) for value in values if value in self._loaded})
        if not found or known is None or (found[3] == "ttg.local_alloc" and not values):
            if self._last is not None:
                self._last.then_uses += used
            yield line
            return
        kind, name = known
        if found[3] == "tt.load":
            self._loaded |= dict.fromkeys(_VALUE.findall(found[2] or ""), number)
        scope = f"{name}, line {number}" if number else name
        arrives = found[3] in _ARRIVES
        made = Operation(
            scope, kind, name, number, uses=used, operation=found[3], arrives=arrives, partition=self._place
        )
        if pending := _PENDING.search(found[4]):
            made.pending = int(pending[1])
        if kind == PRODUCT and (extents := _EXTENTS.search(found[4])):
            made.flops = 2 * int(extents[1]) * math.prod(map(int, extents[3].split("x")[:-1]))
            made.pipe = _PIPES.get(extents[2], "")
        if arrives or found[3] in _AT_BARRIER:
            made.barrier = self._root(_barrier(found[3], found[4]))
        self._all.append(made)
        if kind not in self.kinds:
            if self._last is not None:
                self._last.then_uses += used
            yield line
            return
        self._last = made
        yield self._start(made, indent)
        yield line
        if bare.rstrip().endswith("({"):
            self._open = (indent, made)
        else:
            yield self._end(made, indent)

    def _root(self, value: str) -> str:
        """The allocation that a view of a barrier is part of."""
        return self._roots.get(value, value)

    def link(self) -> list[str]:
        """Finds what each wait waits for. Returns the kinds of operations without records."""
        for one in self._all:
            if one.kind != WAIT:
                continue
            if one.barrier:
                made = [(o.name, o.line) for o in self._all if o.arrives and o.barrier == one.barrier]
            else:
                made = [(o.name, o.line) for o in self._all if o.name == _AWAITED.get(one.operation)]
            copies = [pair for pair in made if pair[0] != "arrive at barrier"]
            one.awaits = list(dict.fromkeys(copies or made))
        return sorted({one.kind for one in self._all}.difference(self.kinds))


def _barrier(operation: str, text: str) -> str:
    """The barrier among the operands of an operation: that of a copy comes after its indices and its tile."""
    operands = _VALUE.findall((text.partition("]")[2] if "tma" in operation else text).partition(" : ")[0])
    return operands["tma" in operation] if len(operands) > ("tma" in operation) else ""
