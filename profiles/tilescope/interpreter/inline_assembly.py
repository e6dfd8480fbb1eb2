"""Computes inline PTX: arithmetic on registers of 16 and 32 bits, which kernels use where Triton's language lacks it.

Approximate instructions are computed as exactly as NumPy does. Pure NumPy.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]
#: Modifiers of precision, which change at most the last bits.
_EXACTNESS = frozenset({"approx", "ftz", "rn", "full"})
_STATEMENT = re.compile(r"([a-z][\w.]*)\s+(.+)", re.DOTALL)


class NotKnown(Exception):
    """An unknown instruction. The message is its text."""


def compute(text: str, results: int, operands: Sequence[Array]) -> list[Array]:
    """The bits of each of ``results`` results. ``operands`` are uint16 or uint32 arrays of one shape. Raises NotKnown."""
    registers = {f"${results + number}": operand for number, operand in enumerate(operands)}
    for statement in _statements(text):
        if statement.startswith(".reg"):
            continue
        found = _STATEMENT.fullmatch(statement)
        if found is None:
            raise NotKnown(statement)
        target, *sources = _split(found[2])
        if found[1] == "mov.b32" and sources and (target.startswith("{") or sources[0].startswith("{")):
            _move_halves(registers, target, sources[0])
            continue
        operation = _OPERATIONS.get(".".join(part for part in found[1].split(".") if part not in _EXACTNESS))
        if operation is None:
            raise NotKnown(found[1])
        try:
            registers[target] = operation(*(_value(registers, source) for source in sources))
        except (TypeError, ValueError):  # operands of other kinds or numbers
            raise NotKnown(found[1]) from None
    shape = np.broadcast_shapes(*(operand.shape for operand in operands)) if operands else (1,)
    return [np.broadcast_to(_value(registers, f"${number}"), shape) for number in range(results)]


def _statements(text: str) -> list[str]:
    plain = re.sub(r"//[^\n]*|/\*.*?\*/", " ", text, flags=re.DOTALL).strip()
    if plain.startswith("{") and plain.endswith("}"):
        plain = plain[1:-1]
    return [part.strip() for part in plain.split(";") if part.strip()]


def _split(operands: str) -> list[str]:
    """The operands of an instruction. ``{a, b}`` is one operand."""
    return [part.strip() for part in re.findall(r"\{[^}]*\}|[^,{]+", operands) if part.strip()]


def _value(registers: dict[str, Array], name: str) -> Array:
    if name in registers:
        return registers[name]
    if re.fullmatch(r"0[fF][0-9a-fA-F]{8}", name):
        return np.array([int(name[2:], 16)], dtype=np.uint32)
    if re.fullmatch(r"-?(0[xX][0-9a-fA-F]+|\d+)U?", name):
        return np.array([int(name.rstrip("U"), 0) & 0xFFFFFFFF], dtype=np.uint32)
    raise NotKnown(name)


def _move_halves(registers: dict[str, Array], target: str, source: str) -> None:
    """``mov.b32 {low, high}, whole`` and ``mov.b32 whole, {low, high}``."""
    if target.startswith("{"):
        whole = _value(registers, source)
        low, high = _split(target[1:-1])
        registers[low], registers[high] = (whole & 0xFFFF).astype(np.uint16), (whole >> 16).astype(np.uint16)
    else:
        halves = [_value(registers, half).astype(np.uint32) for half in _split(source[1:-1])]
        registers[target] = halves[0] & 0xFFFF | halves[1] << 16


def _of(kind: Any, compute: Callable[..., Any], bits: Any = np.uint32) -> Callable[..., Array]:
    """Turns an operation on numbers of type ``kind`` into one on their bits."""

    def on_bits(*operands: Array) -> Array:
        numbers = [np.ascontiguousarray(operand.astype(bits)).view(kind) for operand in operands]
        return np.ascontiguousarray(compute(*numbers).astype(kind)).view(bits)

    return on_bits


def _halves(compute: Callable[..., Any]) -> Callable[..., Array]:
    """Turns an operation on fp16 numbers into one on pairs of them in 32 bits."""
    one = _of(np.float16, compute, np.uint16)

    def both(*operands: Array) -> Array:
        low = one(*(operand & 0xFFFF for operand in operands)).astype(np.uint32)
        return low | one(*(operand >> 16 for operand in operands)).astype(np.uint32) << 16

    return both


def _shift(a: Array, by: Array, *, left: bool) -> Array:
    # Shifts by 32 or more give 0.
    wide = a.astype(np.uint64)
    by = np.minimum(by, 32).astype(np.uint64)
    return ((wide << by if left else wide >> by) & np.uint64(0xFFFFFFFF)).astype(np.uint32)


def _lop3(a: Array, b: Array, c: Array, table: Array) -> Array:
    """Applies a function of three bits. ``table`` has its value for each of the eight combinations."""
    found = np.zeros(np.broadcast_shapes(a.shape, b.shape, c.shape), dtype=np.uint32)
    for number in range(8):
        if int(table.flat[0]) >> number & 1:
            parts = [operand if number >> place & 1 else ~operand for operand, place in ((a, 2), (b, 1), (c, 0))]
            found |= parts[0] & parts[1] & parts[2]
    return found


def _prmt(a: Array, b: Array, choice: Array) -> Array:
    """Selects four of eight bytes, each by four bits. If the highest of those is set, the byte's sign is replicated instead."""
    both = a.astype(np.uint64) | b.astype(np.uint64) << np.uint64(32)
    found = np.zeros(np.broadcast_shapes(both.shape, choice.shape), dtype=np.uint32)
    for place in range(4):
        chosen = choice >> np.uint32(4 * place)
        byte = (both >> ((chosen & 7) * 8).astype(np.uint64) & np.uint64(0xFF)).astype(np.uint32)
        byte = np.where(chosen & 8, np.where(byte & 0x80, np.uint32(0xFF), np.uint32(0)), byte)
        found |= byte << np.uint32(8 * place)
    return found


def _fns(mask: Array, base: Array, offset: Array) -> Array:
    """The position of the n-th set bit from ``base`` on, upwards or downwards; all ones where there is none."""

    def one(mask: int, base: int, offset: int) -> int:
        if offset == 0:
            return base if base < 32 and mask >> base & 1 else 0xFFFFFFFF
        places = range(base, 32) if offset > 0 else range(base, -1, -1)
        found = [place for place in places if place < 32 and mask >> place & 1]
        return found[abs(offset) - 1] if abs(offset) <= len(found) else 0xFFFFFFFF

    mask, base, offset = np.broadcast_arrays(mask, base, offset)
    signed = np.ascontiguousarray(offset).view(np.int32)
    found: Array = np.vectorize(one, otypes=[np.uint32])(mask.astype(np.int64), base.astype(np.int64), signed)
    return found


def _reversed(a: Array) -> Array:
    bits = np.unpackbits(np.ascontiguousarray(a)[..., None].view(np.uint8), axis=-1, bitorder="little")
    found: Array = np.packbits(bits[..., ::-1], axis=-1, bitorder="little").view(np.uint32)
    return found[..., 0]


def _leading(a: Array) -> Array:
    used: Array = np.ceil(np.log2(a.astype(np.float64) + 1)).astype(np.uint32)
    return np.uint32(32) - used


_NUMBERS: dict[str, Callable[..., Any]] = {
    "add": np.add, "sub": np.subtract, "mul": np.multiply, "min": np.fmin, "max": np.fmax, "abs": np.abs, "neg": np.negative, "fma": lambda a, b, c: a.astype(np.float64) * b + c,
}  # fmt: skip
_SINGLE: dict[str, Callable[..., Any]] = {
    "div": np.divide, "tanh": np.tanh, "ex2": np.exp2, "lg2": np.log2, "sin": np.sin, "cos": np.cos, "sqrt": np.sqrt,
    "rcp": lambda x: 1 / x, "rsqrt": lambda x: 1 / np.sqrt(x),
}  # fmt: skip
_WHOLE: dict[str, Callable[..., Any]] = {
    "add": np.add, "sub": np.subtract, "mul.lo": np.multiply, "min": np.minimum, "max": np.maximum,
}  # fmt: skip
_OPERATIONS: dict[str, Callable[..., Array]] = {
    **{f"{name}.f32": _of(np.float32, compute) for name, compute in (_NUMBERS | _SINGLE).items()},
    **{f"{name}.f16x2": _halves(compute) for name, compute in _NUMBERS.items()},
    **{f"{name}.s32": _of(np.int32, compute) for name, compute in _WHOLE.items()},
    **{f"{name}.u32": _of(np.uint32, compute) for name, compute in _WHOLE.items()},
    **{f"mov.{kind}": lambda a: a for kind in ("b32", "u32", "s32", "f32", "b16")},
    "and.b32": np.bitwise_and, "or.b32": np.bitwise_or, "xor.b32": np.bitwise_xor, "not.b32": np.bitwise_not,
    "shl.b32": lambda a, by: _shift(a, by, left=True),
    "shr.b32": lambda a, by: _shift(a, by, left=False), "shr.u32": lambda a, by: _shift(a, by, left=False),
    "popc.b32": lambda a: np.bitwise_count(a).astype(np.uint32), "clz.b32": _leading, "brev.b32": _reversed,
    "lop3.b32": _lop3, "prmt.b32": _prmt, "fns.b32": _fns,
}  # fmt: skip
