"""What a kernel computes in all programs of a launch, by its TTIR, without interpreting them. Pure.

Each value of the kernel gets the range of its numbers, by interval arithmetic from the grid, the launch's numbers and constants, and
the lanes in which it has none, from masked loads without ``other``. A value that is not known has no range, and nothing is concluded
from it.
"""

from __future__ import annotations

import dataclasses
import math
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

from tilescope.collectors import assembly, ttir
from tilescope.collectors.ttir import Operation
from tilescope.execution import kernel_syntax

if TYPE_CHECKING:
    from tilescope.execution.launches import Launch

#: The largest 32-bit integer.
LARGEST = 2**31 - 1
_AXES = {"x": 0, "y": 1, "z": 2}
#: Rounds in which the ranges of a loop's carried values must settle.
_ROUNDS = 4


class Range(NamedTuple):
    """The least and the largest value."""

    low: int
    high: int


@dataclass(frozen=True)
class Value:
    """What is known of a value: its ``range``, the dimensions along which it ``varies``, and the parameter whose memory it is in.

    ``wraps`` is the line of its first part that does not fit its type. ``empty`` is the line of a load that left lanes without
    a value, ``along`` are the dimensions of those lanes, which are ``filled`` with zeros if a block pointer's bounds left them out. ``zero`` are the dimensions along which lanes that a mask leaves out are 0.
    ``short`` elements fit TF32, because they were converted from a narrower type.
    """

    range: Range | None = None
    varies: frozenset[int] = frozenset()
    parameter: str = ""
    wraps: int | None = None
    empty: int | None = None
    along: frozenset[int] = frozenset()
    filled: bool = False
    zero: frozenset[int] = frozenset()
    short: bool = False


_UNKNOWN = Value()
#: A conversion from a type whose every value fits the 11 significant bits of TF32.
_NARROW = re.compile(r": (?:tensor<[\dx]+x)?(?:b?f16|f8\w+|i8|i1)>? (?:to|->) (?:tensor<[\dx]+x)?f32\b")
#: Among the dimensions of lanes without a value: these lanes are at unknown places.
_ANYWHERE = -1


def _elements(tensor: Any) -> int:
    """The elements from a tensor's first one to the end of its memory."""
    return int(tensor.untyped_storage().nbytes() // tensor.element_size() - tensor.storage_offset())


class Code:
    """What a kernel computes in the programs up to ``last`` on each axis. ``wrapping`` has the largest offset by the line of the
    wrapping arithmetic and the parameter, ``undefined`` the lines of loads that leave lanes without a value, each with the line
    that combines them, and ``tf32`` the lines of fp32 products as TF32.

    ``given`` are the launch's arguments, ``sizes`` the elements from a parameter's address to the end of its memory, and ``bounded``
    the lines of loads by block pointers that leave out what is out of bounds.
    """

    def __init__(
        self,
        function: ttir.Function | None,
        last: Sequence[int],
        given: Mapping[str, Any],
        sizes: Mapping[str, int],
        bounded: Collection[int] = (),
    ) -> None:
        self.function, self.last, self.given, self.sizes, self.bounded = function, last, given, sizes, bounded
        self.values: dict[str, Value] = {}
        self.wrapping: dict[tuple[int, str], int] = {}
        self.undefined: dict[int, int] = {}
        self.tf32: set[int] = set()
        for name, kind in function.parameters.items() if function else ():
            number = self.given.get(name.lstrip("%"))
            known = Range(int(number), int(number)) if isinstance(number, int) else None
            self.values[name] = Value(known, parameter=name.lstrip("%") if "!tt.ptr" in kind else "")
        self._block(function.body if function else ())

    @classmethod
    def of_launch(cls, launch: Launch, text: str) -> Code:
        """The code of a launch whose kernel has this TTIR."""
        sizes = {n: _elements(tensor) for n, tensor in launch.arguments.items() if hasattr(tensor, "untyped_storage")}
        function = ttir.read(assembly.portable(text), launch.file.name)
        bounded = kernel_syntax.lines_with(launch.function.fn, "load", "boundary_check")
        return cls(function, [extent - 1 for extent in launch.grid], launch.arguments, sizes, bounded)

    def first(self, line: int) -> str:
        """The first program in which the line wraps."""
        for axis, most in enumerate(self.last):
            low, high = -1, most
            while high - low > 1:
                middle = (low + high) // 2
                last = [*self.last[:axis], middle, *self.last[axis + 1 :]]
                fewer = Code(self.function, last, self.given, self.sizes)
                low, high = (low, middle) if any(line == at for at, _ in fewer.wrapping) else (middle, high)
            if high:
                return f"program_id({axis}) = {high:,}"
        return "the first program"

    def _block(self, operations: Sequence[Operation]) -> list[Value]:
        """Follows the operations. Returns what the block yields."""
        for operation in operations:
            if operation.name in ("scf.yield", "scf.condition"):
                return [self._of(name) for name in operation.operands]
            method = _METHODS.get(operation.name)
            results = method(self, operation) if method else [_elementwise(operation, self._operands(operation))]
            for name, value in zip(operation.results, [*results, *[_UNKNOWN] * len(operation.results)], strict=False):
                self.values[name] = value
        return []

    def _of(self, name: str) -> Value:
        return self.values.get(name, _UNKNOWN)

    def _operands(self, operation: Operation) -> list[Value]:
        return [self._of(name) for name in operation.operands]

    def _loop(self, operation: Operation) -> list[Value]:
        index, *bounds = operation.operands[:4]
        start, stop, step = ([self._of(name).range for name in bounds] + [None] * 3)[:3]
        before = [self._of(first) for _, first in operation.carried]
        names = [name for name, _ in operation.carried]
        turns, within = None, None
        if start and stop and step and step.low > 0:
            turns = max(0, -((start.low - stop.high) // step.low))
            past = stop.high - 1 - start.low
            if start.low == start.high and step.low == step.high:
                past -= past % step.low
            within = Range(start.low, start.low + max(0, past))
        self.values[index] = Value(within)
        carried, after = before, before
        for turn in range(_ROUNDS):
            self.values |= dict(zip(names, carried, strict=True))
            kept = dict(self.wrapping), dict(self.undefined)
            after = self._block(operation.regions[0])
            if len(after) != len(before):
                return []
            grown = [_grown(*values, turns, settled=turn > 0) for values in zip(before, carried, after, strict=True)]
            if grown == carried:
                break
            # Conclusions from values that still change are dropped.
            carried, (self.wrapping, self.undefined) = grown, kept
            if turn == _ROUNDS - 2:
                carried = [dataclasses.replace(value, range=None, wraps=None) for value in carried]
        return carried

    def _while(self, operation: Operation) -> list[Value]:
        """A loop whose condition may bound a carried value from above. What its turns make of the others is not known."""
        before, body = operation.regions
        carried = dict(operation.carried)
        self.values |= {name: dataclasses.replace(self._of(first), range=None) for name, first in carried.items()}
        self._block(before)
        condition, *passed = before[-1].operands
        test = next((one for one in before if condition in one.results), before[-1])
        strict = {"slt": 1, "sle": 0}.get(test.text.split(",")[0].strip())
        for name, given in zip(operation.arguments, passed, strict=False):
            start, value = self._of(carried.get(given, "")).range, self._of(given)
            if (
                strict is not None
                and test.operands[0] == given
                and start
                and (bound := self._of(test.operands[1]).range)
            ):
                value = dataclasses.replace(value, range=Range(start.low, max(start.low, bound.high - strict)))
            self.values[name] = value
        self._block(body)
        return []

    def _branch(self, operation: Operation) -> list[Value]:
        condition = self._of(operation.operands[0]).range if operation.operands else None
        chosen = operation.regions
        if condition and condition.low == condition.high and len(chosen) == 2:
            chosen = [chosen[0] if condition.low else chosen[1]]
        elif condition == (0, 0):
            chosen = []
        yielded = [self._block(region) for region in chosen]
        if not yielded or len({len(values) for values in yielded}) > 1:
            return []
        return [_either(*values) for values in zip(*yielded, strict=True)]

    def _pointer(self, operation: Operation) -> list[Value]:
        base, offset = self._operands(operation)[:2]
        reach = max(map(abs, offset.range)) if offset.range else 0
        # A tensor without so many elements is not reached there, so its masks leave such lanes out.
        if offset.wraps and base.parameter and self.sizes.get(base.parameter, 0) > LARGEST:
            key = offset.wraps, base.parameter
            self.wrapping[key] = max(reach, self.wrapping.get(key, 0))
        return [dataclasses.replace(base, range=None, varies=base.varies | offset.varies)]

    def _load(self, operation: Operation) -> list[Value]:
        operands = self._operands(operation)
        varies = frozenset().union(*(value.varies for value in operands))
        if len(operands) != 2 or operation.line is None or operands[1].range == (1, 1):
            zero = operands[1].varies if len(operands) == 3 and operands[2].range == (0, 0) else frozenset[int]()
            return [Value(varies=varies, zero=zero)]
        filled = operation.line in self.bounded
        return [Value(varies=varies, empty=operation.line, along=operands[1].varies, filled=filled)]

    def _reduce(self, operation: Operation) -> list[Value]:
        axis = operation.number("axis")
        # ``tl.flip`` and ``tl.sort`` swap the lanes of a pair by this reduction.
        swaps = _shapes(operation)[0][axis] == 2 and any(one.name == "arith.xori" for one in operation.regions[0])
        adds = _adds(operation)
        results = []
        for value in self._operands(operation)[: len(operation.results)]:
            left = _moved(value, lambda n: None if n == axis else n - (n > axis))
            empty, along = None if axis in value.along else value.empty, left.along
            if swaps and value.along:
                empty, along = value.empty, frozenset({_ANYWHERE})
            elif not (adds and value.filled):
                self._fill(operation, value, axis)
            results.append(Value(varies=left.varies, empty=empty, along=along, filled=adds and value.filled))
        return results

    def _compare(self, operation: Operation) -> list[Value]:
        """A comparison. That of ``tl.sort`` is between lanes and those with which they were swapped."""
        a, b = self._operands(operation)
        if a.along and b.along and (_ANYWHERE in a.along) != (_ANYWHERE in b.along):
            self._fill(operation, a, min(a.along))
        return [_elementwise(operation, [a, b])]

    def _histogram(self, operation: Operation) -> list[Value]:
        if len(operands := self._operands(operation)) == 1:
            self._fill(operation, operands[0], 0)
        return [_UNKNOWN]

    def _atomic(self, operation: Operation) -> list[Value]:
        """An atomic, which combines the lanes of one address."""
        place, value, *mask = self._operands(operation)
        for axis in value.along - place.varies.union(*(one.varies for one in mask)):
            self._fill(operation, value, axis)
        return [_UNKNOWN]

    def _dot(self, operation: Operation) -> list[Value]:
        a, b = self._operands(operation)[:2]
        for value, axis, other, along in ((a, 1, b, 0), (b, 0, a, 1)):
            zeros = other.zero | other.along if other.filled else other.zero
            if along not in zeros and not value.filled:
                self._fill(operation, value, axis)
        rounded = re.search(r"inputPrecision = tf32\b", operation.text) and "xf32> *" in operation.text
        if operation.line and rounded and not (a.short and b.short):
            self.tf32.add(operation.line)
        return [Value(varies=frozenset({0, 1}))]

    def _fill(self, operation: Operation, value: Value, axis: int) -> None:
        """Notes lanes without a value that an operation combines along an axis."""
        if value.empty and operation.line and {axis, _ANYWHERE} & value.along:
            self.undefined.setdefault(value.empty, operation.line)

    def _scan(self, operation: Operation) -> list[Value]:
        """A scan. Lanes without a value are behind the others, which a scan in reverse combines with them."""
        operands = self._operands(operation)[: len(operation.results)]
        for value in operands if "reverse = true" in operation.text else ():
            if not (value.filled and _adds(operation)):
                self._fill(operation, value, operation.number("axis"))
        return [dataclasses.replace(value, range=None, wraps=None) for value in operands]

    def _program(self, operation: Operation) -> list[Value]:
        """The number of the program along an axis, or of all programs."""
        last = self.last[_AXES[operation.text.split()[0]]]
        return [Value(Range(0, last) if operation.name == "tt.get_program_id" else Range(last + 1, last + 1))]

    def _arange(self, operation: Operation) -> list[Value]:
        return [Value(Range(operation.number("start"), operation.number("end") - 1), frozenset({0}))]

    def _constant(self, operation: Operation) -> list[Value]:
        number = re.match(r"\s*(?:dense<)?(-?\d+|true|false|0\.0+e\+00)>?(?: : |$)", operation.text)
        if not number:
            return [_UNKNOWN]
        value = 1 if number[1] == "true" else 0 if number[1] == "false" or "." in number[1] else int(number[1])
        return [Value(Range(value, value))]

    def _expand(self, operation: Operation) -> list[Value]:
        axis = operation.number("axis")
        return [_moved(value, lambda n: n + (n >= axis)) for value in self._operands(operation)]

    def _transpose(self, operation: Operation) -> list[Value]:
        order = re.search(r"order = array<i32: ([\d, ]+)>", operation.text)
        (value,) = self._operands(operation)
        if not order:
            return [Value(value.range)]
        places = {int(old): new for new, old in enumerate(order[1].split(","))}
        return [_moved(value, lambda n: places.get(n, n))]

    def _reshape(self, operation: Operation) -> list[Value]:
        """Lanes without a value, which are the last ones, are along the outermost dimension of those that a dimension becomes."""
        (value,), (before, after) = self._operands(operation), _shapes(operation)
        ends = [math.prod(after[place:]) for place in range(len(after) + 1)]

        def place(axis: int) -> int | None:
            if axis == _ANYWHERE:
                return axis
            behind = math.prod(before[axis + 1 :])
            within = [n for n in range(len(after)) if ends[n] > behind and ends[n + 1] < behind * before[axis]]
            return within[0] if within else None

        return [_moved(value, place)]

    def _same(self, operation: Operation) -> list[Value]:
        return self._operands(operation)[:1]


def _adds(operation: Operation) -> bool:
    """Whether a reduction or a scan adds, to which zeros add nothing."""
    return operation.regions[0][0].name in ("arith.addf", "arith.addi")


def _shapes(operation: Operation) -> list[list[int]]:
    """The shapes of its blocks, in the order of its text."""
    return [[int(n) for n in shape.split("x")[:-1]] for shape in re.findall(r"tensor<((?:\d+x)+)", operation.types)]


def _moved(value: Value, place: Callable[[int], int | None]) -> Value:
    """The value with its dimensions at other places; None for a dimension that is gone."""
    varies, along, zero = (
        frozenset(at for n in dims if (at := place(n)) is not None) for dims in (value.varies, value.along, value.zero)
    )
    return dataclasses.replace(value, varies=varies, along=along, zero=zero)


def _elementwise(operation: Operation, operands: list[Value]) -> Value:
    """The value of an operation on elements. An operation that moves them elsewhere has no range, and no lanes are known of it."""
    family = operation.name.partition(".")[0]
    if family not in ("arith", "math") and operation.name not in _ELEMENTWISE:
        return _UNKNOWN
    varies = frozenset().union(*(value.varies for value in operands))
    empty = next((value for value in operands if value.empty), _UNKNOWN)
    along = frozenset().union(*(value.along for value in operands if value.empty))
    zero = frozenset[int]()
    filled = False
    if operation.name in ("arith.mulf", "arith.extf", "arith.truncf"):
        filled = any(value.filled and value.along >= along for value in operands)
        zero = zero.union(*(value.zero for value in operands))
    elif operation.name in ("arith.uitofp", "arith.extui") and re.search(r"i1>? to ", operation.text):
        zero = varies
    elif operation.name == "arith.select" and (0, 0) in (operands[1].range, operands[2].range):
        zero = operands[0].varies
    # ``tl.where`` and a product with zeros give those lanes a value.
    along = frozenset() if operation.name == "arith.select" else along - zero
    empty = empty if along else _UNKNOWN
    compute = _RANGES.get(operation.name)
    ranges = [value.range for value in operands]
    known = [one for one in ranges if one]
    result = compute(operation, *known) if compute and len(known) == len(ranges) and known else None
    short = bool(_NARROW.search(operation.text))
    if operation.name == "arith.select":
        result = _hull(ranges[1:])
        short = all(value.short or value.range == (0, 0) for value in operands[1:])
    varies = frozenset() if result and result.low == result.high else varies
    wraps = next((value.wraps for value in operands if value.wraps), None)
    if result and operation.name in _GROWING and operation.width == 32 and not wraps:
        wraps = operation.line if result.high > LARGEST or result.low < -LARGEST - 1 else None
    if operation.name in _HASHING or operation.name.startswith("arith.cmp"):
        wraps = None
    return Value(result, varies, wraps=wraps, empty=empty.empty, along=along, filled=filled, zero=zero, short=short)


def _hull(ranges: Sequence[Range | None]) -> Range | None:
    known = [one for one in ranges if one]
    if not known or len(known) < len(ranges):
        return None
    return Range(min(one.low for one in known), max(one.high for one in known))


def _either(*values: Value) -> Value:
    """A value that is one of several."""
    empty = next((value for value in values if value.empty), _UNKNOWN)
    return Value(
        _hull([value.range for value in values]),
        frozenset().union(*(value.varies for value in values)),
        values[0].parameter if len({value.parameter for value in values}) == 1 else "",
        next((value.wraps for value in values if value.wraps), None),
        empty.empty,
        empty.along,
        any(value.empty for value in values) and all(value.filled for value in values if value.empty),
    )


def _grown(before: Value, now: Value, after: Value, turns: int | None, *, settled: bool) -> Value:
    """The value that a loop carries: ``before`` the loop, or what all turns make of it. One turn makes ``after`` of ``now``."""
    either = _either(before, after)
    if not (before.range and now.range and after.range) or turns is None:
        return dataclasses.replace(either, range=None, wraps=None) if now.range != after.range else either
    if settled:
        low, high = after.range.low - now.range.low, after.range.high - now.range.high
        reached = Range(before.range.low + min(0, low) * turns, before.range.high + max(0, high) * turns)
        return dataclasses.replace(either, range=reached if reached == now.range else None)
    low, high = after.range.low - before.range.low, after.range.high - before.range.high
    return dataclasses.replace(
        either, range=Range(before.range.low + min(0, low) * turns, before.range.high + max(0, high) * turns)
    )


def _corners(combine: Callable[[int, int], int]) -> Callable[..., Range | None]:
    """The range of a function that is monotone in each argument."""

    def computed(_: Operation, a: Range, b: Range) -> Range:
        found = [combine(x, y) for x in a for y in b]
        return Range(min(found), max(found))

    return computed


def _quotient(_: Operation, a: Range, b: Range) -> Range | None:
    if b.low <= 0:
        return None
    found = [int(abs(x) // y) * (1 if x >= 0 else -1) for x in a for y in b]
    return Range(min(found), max(found))


def _remainder(_: Operation, a: Range, b: Range) -> Range | None:
    if a.low < 0 or b.high <= 0:
        return None
    return Range(a.low, a.high) if a.high < b.low else Range(0, min(a.high, b.high - 1))


def _masked(_: Operation, a: Range, b: Range) -> Range | None:
    return Range(0, min(a.high, b.high)) if a.low >= 0 and b.low >= 0 else None


def _shifted(_: Operation, a: Range, b: Range) -> Range | None:
    return Range(a.low << b.low, a.high << b.high) if a.low >= 0 and b.low >= 0 and b.high < 64 else None


def _compared(operation: Operation, a: Range, b: Range) -> Range:
    """Whether a comparison is always or never true."""
    kind = operation.text.split(",")[0].strip()
    always = {"slt": a.high < b.low, "sle": a.high <= b.low, "sgt": a.low > b.high, "sge": a.low >= b.high}
    never = {"slt": a.low >= b.high, "sle": a.low > b.high, "sgt": a.high <= b.low, "sge": a.high < b.low}
    return Range(1, 1) if always.get(kind) else Range(0, 0) if never.get(kind) else Range(0, 1)


_RANGES: dict[str, Callable[..., Range | None]] = {
    "arith.addi": _corners(lambda x, y: x + y),
    "arith.subi": _corners(lambda x, y: x - y),
    "arith.muli": _corners(lambda x, y: x * y),
    **dict.fromkeys(("arith.minsi", "arith.minui"), _corners(min)),
    **dict.fromkeys(("arith.maxsi", "arith.maxui"), _corners(max)),
    **dict.fromkeys(("arith.divsi", "arith.divui"), _quotient),
    **dict.fromkeys(("arith.remsi", "arith.remui"), _remainder),
    "arith.andi": _masked,
    "arith.shli": _shifted,
    **dict.fromkeys(("arith.extsi", "arith.extui", "arith.trunci", "arith.index_cast"), lambda _, a: a),
    "arith.cmpi": _compared,
}
#: Operations of Triton's that leave lanes at their places along the dimensions of their operands.
_ELEMENTWISE = frozenset({"tt.clampf", "tt.bitcast", "tt.fp_to_fp", "tt.join", "tt.cat"})
#: Operations whose result may not fit, and those that are meant to lose bits.
_GROWING = frozenset({"arith.addi", "arith.subi", "arith.muli", "arith.shli"})
_HASHING = frozenset({"arith.andi", "arith.xori", "arith.remsi", "arith.remui", "arith.shrui", "arith.mulsi_extended",
                      "arith.mului_extended"})  # fmt: skip

_METHODS: dict[str, Callable[[Code, Operation], list[Value]]] = {
    "scf.for": Code._loop,
    "scf.if": Code._branch,
    "scf.while": Code._while,
    "tt.addptr": Code._pointer,
    "tt.load": Code._load,
    "tt.reduce": Code._reduce,
    "tt.scan": Code._scan,
    "tt.histogram": Code._histogram,
    "tt.atomic_rmw": Code._atomic,
    "tt.reshape": Code._reshape,
    **dict.fromkeys(("arith.cmpf", "arith.cmpi"), Code._compare),
    "tt.dot": Code._dot,
    **dict.fromkeys(("tt.get_program_id", "tt.get_num_programs"), Code._program),
    "tt.make_range": Code._arange,
    "arith.constant": Code._constant,
    "tt.expand_dims": Code._expand,
    "tt.trans": Code._transpose,
    **dict.fromkeys(("tt.splat", "tt.broadcast", "tt.int_to_ptr"), Code._same),
}
