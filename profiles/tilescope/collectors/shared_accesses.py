"""Predicts bank conflicts of shared memory from a kernel's PTX. Pure text.

The address of an access is computed for every thread of a block, from the instructions that lead to it. Values that all threads
share, such as arguments, loop counters and the block's number, are taken as zero: they move all addresses of a warp alike. Shared
memory has 32 banks of 4 bytes. A request of a warp takes one wavefront for each 128 bytes of its width, and more where lanes ask
one bank for different words (CUDA C++ Programming Guide, "Shared Memory").
"""

from __future__ import annotations

import dataclasses
import math
import operator
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from tilescope.collectors.compiled_text import Text

_WARP, _BANKS, _WORD = 32, 32, 4
_INSTRUCTION = re.compile(r"^\s*(?:@(!?)(%\w+)\s+)?([a-z]\w*)((?:\.[\w:]+)*)\s+(.*?);?\s*$")
_ACCESS = re.compile(
    r"^(?:(?P<copy>cp\.async\.c[ag])|(?P<matrix>[ls][dt]matrix).*\.x(?P<count>\d)|ld|st|atom|red)\b.*\.shared"
)
_ADDRESS = re.compile(r"\[\s*(%\w+|[A-Za-z_]\w*)\s*(?:\+\s*(-?\d+)\s*)?\]")
_OPERAND = re.compile(r"\{[^}]*\}|\[[^\]]*\]|[^\s,]+")
_ARGUMENT = re.compile(r"\[\s*\w+(_param_\d+)\s*\]$")
_LABEL = re.compile(r"^(\$\w+):")
#: Rounds of a loop that are followed.
_MOST_TRIPS = 4096
_WIDTH = re.compile(r"(?:\.v(\d))?\.[bfus](\d+)$")

_COMPARISONS = {
    "eq": operator.eq, "ne": operator.ne, "lt": operator.lt, "le": operator.le, "gt": operator.gt, "ge": operator.ge,
    "lo": operator.lt, "ls": operator.le, "hi": operator.gt, "hs": operator.ge,
}  # fmt: skip
_ARITHMETIC: dict[str, Callable[..., np.ndarray]] = {
    "mov": lambda a: a, "cvt": lambda a: a, "cvta": lambda a: a, "not": np.invert, "neg": np.negative,
    "add": np.add, "sub": np.subtract, "mul": np.multiply, "mad": lambda a, b, c: a * b + c,
    "and": np.bitwise_and, "or": np.bitwise_or, "xor": np.bitwise_xor,
    "shl": lambda a, b: a << np.minimum(b, 63), "shr": lambda a, b: a >> np.minimum(b, 63),
    "min": np.minimum, "max": np.maximum, "div": lambda a, b: a // np.where(b, b, 1), "rem": lambda a, b: a % np.where(b, b, 1),
    "bfe": lambda a, b, c: (a >> b) & ((1 << c) - 1),
    "bfi": lambda a, b, c, d: (b & ~(((1 << d) - 1) << c)) | ((a & ((1 << d) - 1)) << c),
}  # fmt: skip


@dataclass(frozen=True)
class _Value:
    """A register in every thread. ``known``: it does not depend on arguments, memory, blocks or loops."""

    threads: np.ndarray
    known: bool = True


#: A register that nothing wrote yet.
_UNSEEN = _Value(np.zeros(0))


@dataclass(frozen=True)
class Access:
    """An instruction that accesses shared memory, at ``line`` of the source.

    ``addresses`` are bytes, one for each thread of a block, None where they depend on data; ``width`` is a thread's bytes.
    ``active`` marks the threads that take part. Each group of eight lanes of a matrix instruction names the rows of one matrix.
    A warp runs it so many ``times``, None where that is unknown. ``sources`` are the global addresses that a copy reads, as far as they
    are known: what comes from one line of 128 bytes is written together.
    """

    operation: str
    line: int | None
    width: int
    addresses: np.ndarray | None
    active: np.ndarray
    times: int | None = 1
    sources: np.ndarray | None = None

    def warps(self) -> int:
        """Warps of a block that take part."""
        return sum(1 for _ in self._warps())

    def wavefronts(self) -> float | None:
        """Wavefronts of one warp, on average over warps that take part; None where addresses are unknown."""
        if self.addresses is None:
            return None
        return _mean([sum(map(_wavefronts, phases)) for phases in self._warps(self.sources)])

    def least(self) -> float:
        """Wavefronts of one warp without conflicts."""
        return _mean([len(phases) for phases in self._warps()])

    def _warps(self, sources: np.ndarray | None = None) -> Iterator[list[np.ndarray]]:
        """Yields the words of each warp, by phase. A phase moves at most 128 bytes, which lie in one line of ``sources``."""
        addresses = np.zeros_like(self.active, dtype=np.int64) if self.addresses is None else self.addresses
        lanes = max(1, min(_WARP, _BANKS * _WORD // self.width))
        words = addresses[:, None] // _WORD + np.arange(max(1, self.width // _WORD))
        part = np.arange(len(addresses)) % _WARP // lanes if sources is None else sources // (_BANKS * _WORD)
        for start in range(0, len(addresses), _WARP):
            own = self.active[start : start + _WARP]
            held, parts = words[start : start + _WARP][own], part[start : start + _WARP][own]
            if phases := [held[parts == number] for number in np.unique(parts)]:
                yield phases


def accesses(code: Iterable[Text], threads: int, scalars: Mapping[str, int] | None = None) -> list[Access]:
    """The accesses to shared memory in PTX (``compiled_text.read``) of a kernel with so many ``threads`` a block.

    ``scalars`` are numbers that loops depend on: integer arguments by position (``_param_2``) and the grid (``%nctaid.x``). Without
    them loops are not followed. The list leaves out copies by the tensor memory accelerator and reads by tensor cores: they do not
    pass through the banks of a warp's requests.
    """
    texts = list(code)
    lines = [(at, found) for at, text in enumerate(texts) if (found := _INSTRUCTION.match(text.text))]
    written = Counter(name for _, found in lines for name in _results(found))
    values = _Values(threads, {name for name, count in written.items() if count > 1}, scalars or {})
    # Code of a loop may stand before the code that enters it.
    while sum(values.run(found) for _, found in lines):
        pass
    loops = [] if scalars is None else list(_loops(texts, lines, values))
    made, bases, blocks = list[Access](), list[tuple[int, str]](), 0
    for at, found in lines:
        blocks += found[3] in ("bar", "bra", "st", "cp")
        if access := _ACCESS.match(found[3] + found[4]):
            trips = [count for first, last, count in loops if first <= at <= last]
            times = None if scalars is None or None in trips else math.prod(filter(None, trips))
            made.append(_access(texts[at].line, found, access, values, times))
            bases.append((blocks, found[5].rpartition("[")[2].partition("+")[0].strip(" ]")))
    return _widened(made, bases)


def _widened(made: Sequence[Access], bases: Sequence[tuple[int, str]]) -> list[Access]:
    """The accesses, with loads of 16 bytes in place of those that make up 16 bytes: ptxas joins them."""
    parts: dict[tuple[object, ...], list[Access]] = {}
    for number, (access, base) in enumerate(zip(made, bases, strict=True)):
        whole = access.addresses is None or not access.operation.startswith("ld.")
        key = (number,) if whole or access.addresses is None else (base, access.line, int(access.addresses[0]) // 16)
        parts.setdefault(key, []).append(access)
    joined = []
    for those in parts.values():
        first = min(those, key=lambda one: 0 if one.addresses is None else int(one.addresses[0]))
        alike = len(those) > 1 and sum(one.width for one in those) == 16
        joined += [dataclasses.replace(first, width=16)] if alike else those
    return joined


@dataclass
class Traffic:
    """Wavefronts of shared memory, and bank conflicts: wavefronts beyond the least. None where they are unknown.

    ``by_line`` has the conflicts of each source line that has some.
    """

    wavefronts: float | None = 0.0
    conflicts: float | None = 0.0
    by_line: dict[int, float] = dataclasses.field(default_factory=dict)


def of_launch(code: Iterable[Text], threads: int, scalars: Mapping[str, int], blocks: int) -> Traffic:
    """The traffic of a launch of so many ``blocks``. Every block is taken to loop as often as the first.

    Wavefronts are unknown where an address, or how often a loop runs, is. So are conflicts, unless no access conflicts.
    """
    found = Traffic()
    for access in accesses(code, threads, scalars):
        taken, blind = access.wavefronts(), access.times is None
        if taken is None:
            return Traffic(None, None)
        beyond, warps = taken - access.least(), access.warps() * (access.times or 0) * blocks
        found.wavefronts = None if blind or found.wavefronts is None else found.wavefronts + taken * warps
        found.conflicts = None if (blind and beyond) or found.conflicts is None else found.conflicts + beyond * warps
        if beyond and access.line:
            found.by_line[access.line] = found.by_line.get(access.line, 0.0) + beyond * warps
    return found


def by_line(code: Iterable[Text], threads: int) -> dict[int, tuple[float, float]]:
    """The wavefronts of one warp at each source line, with conflicts and without. Each access counts once, also in a loop.

    Lines with an access whose addresses are unknown are left out.
    """
    found: dict[int, list[Access]] = {}
    for access in accesses(code, threads):
        if access.line:
            found.setdefault(access.line, []).append(access)
    counted = {line: [one.wavefronts() for one in those] for line, those in found.items()}
    return {
        line: (sum(filter(None, counts)), sum(one.least() for one in found[line]))
        for line, counts in counted.items()
        if None not in counts
    }


def _access(
    line: int | None, found: re.Match[str], access: re.Match[str], values: _Values, times: int | None
) -> Access:
    place = _ADDRESS.search(found[5])
    at = values.of(place[1]) if place else None
    active = values.active(found)
    if access["matrix"]:
        active &= np.arange(len(active)) % _WARP < 8 * int(access["count"])
        width = 16
    elif access["copy"]:
        width = int(_OPERAND.findall(found[5])[2], 0)
    else:
        size = _WIDTH.search(found[4])
        width = int(size[2]) // 8 * int(size[1] or 1) if size else _WORD
    addresses = at.threads + int(place[2] or 0) if at and place else None
    read = _ADDRESS.search(found[5], place.end()) if place and access["copy"] else None
    source = values.of(read[1]) if read else None
    return Access(found[3] + found[4], line, width, addresses, active, times, source.threads if source else None)


def _loops(
    texts: Sequence[Text], lines: Sequence[tuple[int, re.Match[str]]], values: _Values
) -> Iterator[tuple[int, int, int | None]]:
    """The first and the last line of each loop with an access, and how often it runs, None where that is unknown."""
    labels = {label[1]: at for at, text in enumerate(texts) if (label := _LABEL.match(text.text))}
    for last, found in lines:
        first = labels.get(found[5], last) if found[3] == "bra" else last
        if first >= last:
            continue
        body = [one for at, one in lines if first <= at <= last]
        if not any(_ACCESS.match(one[3] + one[4]) for one in body):
            continue
        # An unconditional jump back is a loop, or code in another order.
        yield first, last, values.trips(body, found[2], ends=bool(found[1])) if found[2] else None


class _Values:
    """Registers in every thread of a block, as far as they follow from the thread's number."""

    def __init__(self, threads: int, rewritten: set[str], scalars: Mapping[str, int]) -> None:
        self._number = np.arange(threads, dtype=np.int64)
        self._rewritten = rewritten
        thread = self._number
        specials = {"%tid.x": thread, "%laneid": thread % _WARP, "%warpid": thread // _WARP}
        specials |= {name: np.full_like(thread, value) for name, value in scalars.items()}
        self._held: dict[str, _Value | None] = {name: _Value(value) for name, value in specials.items()}

    def of(self, operand: str) -> _Value | None:
        """The value of a register, number or symbol; None where it depends on data."""
        if re.fullmatch(r"%[a-z]+\d+", operand) or operand in self._held:
            return self._held.get(operand)
        zero = np.zeros_like(self._number)
        if re.fullmatch(r"-?(?:0x[\da-fA-F]+|\d+)", operand):
            return _Value(zero + ((int(operand, 0) + (1 << 63)) % (1 << 64) - (1 << 63)))
        if operand.startswith("%"):  # another special register, which is the block's
            return _Value(zero, known=False)
        # The address of a symbol: shared memory begins with it.
        return _Value(zero) if re.fullmatch(r"[A-Za-z_]\w*", operand) else None

    def active(self, found: re.Match[str]) -> np.ndarray:
        """The threads that run an instruction, as far as its guard is known."""
        guard = self.of(found[2]) if found[2] else None
        if guard is None or not guard.known:
            return np.ones(len(self._number), bool)
        held: np.ndarray = guard.threads != bool(found[1])
        return held

    def run(self, found: re.Match[str]) -> bool:
        """Follows one instruction; whether that changed a register.

        A register that several write keeps the first value, and is unknown where one of them writes data.
        """
        results, operands = _results(found), _OPERAND.findall(found[5])[1:]
        before = self._held.get(results[0], _UNSEEN) if results else None
        if before is None or any(self._held.get(one, _UNSEEN) is _UNSEEN for one in _registers(operands)):
            return False
        value = self._result(found[3], found[4].split(".")[1:], operands)
        if value and before is not _UNSEEN:
            return False
        if value and (results[0] in self._rewritten or found[2]):
            value = _Value(value.threads, known=False)
        self._held |= dict.fromkeys(results, value)
        return True

    def trips(self, body: Sequence[re.Match[str]], guard: str, *, ends: bool) -> int | None:
        """How often thread 0 runs a loop that ends where ``guard`` is ``ends``; None where that is unknown."""
        needed, steps = {guard}, list[re.Match[str]]()
        for _ in range(len(body)):
            chosen = [one for one in body if not one[2] and needed.intersection(_results(one))]
            if len(chosen) == len(steps):
                break
            steps = chosen
            needed |= {name for one in steps for name in _registers(_OPERAND.findall(one[5])[1:])}
        first = _Values(1, set(), {})
        first._held = {name: value and _Value(value.threads[:1]) for name, value in self._held.items()}
        for count in range(1, _MOST_TRIPS):
            for one in steps:
                value = first._result(one[3], one[4].split(".")[1:], _OPERAND.findall(one[5])[1:])
                first._held |= dict.fromkeys(_results(one), value and _Value(value.threads))
            held = first._held.get(guard)
            if held is None:
                return None
            if bool(held.threads[0]) == ends:
                return count
        return None

    def _result(self, name: str, kinds: list[str], operands: list[str]) -> _Value | None:
        if name in ("ld", "ldmatrix", "atom"):
            return self._loaded(kinds, operands)
        if name == "elect":
            return _Value((self._number % _WARP == 0).astype(np.int64))
        if name not in _ARITHMETIC and name not in ("setp", "selp", "shfl", "lop3"):
            return None
        given = [self.of(operand) for operand in operands]
        if name == "selp" and given[2] and not given[2].known:
            return given[0] and _Value(given[0].threads, known=False)
        if any(value is None for value in given):
            # An unknown condition may hold.
            return _Value(np.ones_like(self._number), known=False) if "pred" in kinds or name == "setp" else None
        known = all(value.known for value in given if value)
        return self._computed(name, kinds, [value.threads for value in given if value], known)

    def _computed(self, name: str, kinds: list[str], given: list[np.ndarray], known: bool) -> _Value | None:
        widths = [int(kind.lstrip("busf")) for kind in kinds if re.fullmatch(r"(?:b|u|s|f|bf)\d+", kind)]
        bits, signed = (widths[-1] if widths else 64), bool(kinds) and kinds[-1].startswith("s")
        given = [_signed(one, bits) if signed else one for one in given]
        if "pred" in kinds or name == "setp":
            return self._condition(name, kinds, given, known)
        if any(re.match(r"b?f\d", kind) for kind in kinds) or ("hi" in kinds and bits == 64):
            return None
        if name == "selp":
            return _Value(np.where(given[2], given[0], given[1]), known)
        if name == "shfl":
            return _Value(given[0][self._number // _WARP * _WARP + given[1] % _WARP], known) if "idx" in kinds else None
        result = _by_table(*given) if name == "lop3" else _ARITHMETIC[name](*given)
        if "hi" in kinds:
            result = result >> bits
        bits = 64 if "wide" in kinds else widths[0] if widths else 64
        return _Value(result if bits == 64 else result & ((1 << bits) - 1), known)

    def _condition(self, name: str, kinds: list[str], given: list[np.ndarray], known: bool) -> _Value:
        """A predicate. One that is not known may hold."""
        if name == "setp" and known and kinds[0] in _COMPARISONS and len(given) == 2:
            return _Value(_COMPARISONS[kinds[0]](*given).astype(np.int64))
        if name != "setp" and known:
            return _Value(given[0] == 0 if name == "not" else _ARITHMETIC[name](*given))
        return _Value(np.ones_like(self._number), known=False)

    def _loaded(self, kinds: list[str], operands: list[str]) -> _Value | None:
        """What all threads load from one address is alike."""
        if operands and (argument := _ARGUMENT.match(operands[0])) and argument[1] in self._held:
            return self._held[argument[1]]
        place = _ADDRESS.search(operands[0]) if operands else None
        at = self.of(place[1]) if place else None
        alike = "param" in kinds or (at is not None and np.ptp(at.threads) == 0)
        return _Value(np.zeros_like(self._number), known=False) if alike else None


def _results(found: re.Match[str]) -> list[str]:
    """The registers that an instruction writes."""
    if found[3] in ("st", "stmatrix", "red", "bra", "cp"):
        return []
    return re.findall(r"%\w+", next(iter(_OPERAND.findall(found[5])), ""))


def _registers(operands: Iterable[str]) -> list[str]:
    """The registers that an instruction reads."""
    return [name for operand in operands for name in re.findall(r"%[a-z]+\d+", operand)]


def _signed(value: np.ndarray, bits: int) -> np.ndarray:
    half = 1 << (bits - 1)
    return value if bits == 64 else ((value + half) & (2 * half - 1)) - half


def _by_table(a: np.ndarray, b: np.ndarray, c: np.ndarray, table: np.ndarray) -> np.ndarray:
    """A bitwise function of three inputs, by its truth table (PTX, ``lop3``)."""
    terms = [(a if n & 4 else ~a) & (b if n & 2 else ~b) & (c if n & 1 else ~c) for n in range(8) if table[0] >> n & 1]
    return np.bitwise_or.reduce(terms) if terms else np.zeros_like(a)


def _wavefronts(words: np.ndarray) -> int:
    """The largest number of different words that a phase asks of one bank."""
    return int(np.bincount(np.unique(words) % _BANKS, minlength=1).max())


def _mean(counts: list[int]) -> float:
    return sum(counts) / len(counts) if counts else 0.0
