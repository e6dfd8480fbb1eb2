"""Registers in which a thread must hold what it loaded until a reduction of it is done, by the compiler's own text. Pure.

A row that is loaded once, reduced, and used again with the result, as a softmax does, is held whole meanwhile: nothing loads it again.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable

from tilescope.hardware import occupancy

_VALUE = re.compile(r"%[\w$-]+")
_ASSIGNED = re.compile(r"^\s*(%[\w$-]+) = (.*)$")
_LOADED = re.compile(r"tt\.load .*: tensor<([\dx]+)x!tt\.ptr<[a-z]+(\d+)")
_TENSOR = re.compile(r"tensor<([\dx]+)x[a-z]+(\d+)")
#: What computes each element from the same element of its operands, in registers.
_ELEMENTWISE = ("arith.", "math.", "tt.fp_to_fp", "tt.bitcast", "tt.clampf", "tt.precise_")
_REGISTER_BITS = 32

#: The bits of an element in which what a load gave may be kept, by the load.
Kept = dict[str, int]


def held(ttgir: str, warps: int) -> int:
    """The most 32-bit registers of each thread that one load fills until a reduction is done; 0 where none has to."""
    extents: dict[str, str] = {}
    kept: dict[str, Kept] = {}
    #: Of which loads a value waits for a reduction.
    after: dict[str, set[str]] = {}
    most = 0
    for line in ttgir.splitlines():
        assigned = _ASSIGNED.match(line.partition(" loc(")[0])
        if not assigned:
            continue
        name, body = assigned.groups()
        operands = _VALUE.findall(body)
        late = set[str]().union(*(after.get(value, ()) for value in operands))
        known = {value: kept[value] for value in operands if value in kept}
        if loaded := _LOADED.search(body):
            extents[name], kept[name] = loaded[1], {name: int(loaded[2])}
        elif body.startswith('"tt.reduce"'):
            after[name] = late.union(*known.values())
        else:
            for value, loads in known.items():
                for load in late.intersection(loads) - after.get(value, set()):
                    most = max(most, math.prod(map(int, extents[load].split("x"))) * loads[load])
            types = _TENSOR.findall(body)
            if known and types and body.startswith(_ELEMENTWISE):
                # A comparison tells the type of its operands, a conversion both.
                bits = 1 if body.startswith("arith.cmp") else min(int(b) for _, b in types[-1 - (" to " in body) :])
                kept[name] = _through(known.values(), extents, types[-1][0], bits)
            if late:
                after[name] = late
    return most // (_REGISTER_BITS * warps * occupancy.WARP_THREADS)


def _through(known: Iterable[Kept], extents: dict[str, str], shape: str, bits: int) -> Kept:
    """What is known of a result's operands, of the loads of its shape: it may be kept in the place of a wider one."""
    found: Kept = {}
    for one in known:
        for load, before in one.items():
            if extents[load] == shape:
                found[load] = min(found.get(load, before), before, bits)
    return found
