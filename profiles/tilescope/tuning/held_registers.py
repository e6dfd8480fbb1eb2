"""Registers in which a thread holds loaded values until their reduction is done, read from Triton's TTGIR. Pure.

A softmax, for example, loads a row once, reduces it, and uses it again with the result.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable

from tilescope.execution import compiled_lines
from tilescope.hardware import occupancy

_LOADED = re.compile(r"tt\.load .*: tensor<([\dx]+)x!tt\.ptr<[a-z]+(\d+)")
_TENSOR = re.compile(r"tensor<([\dx]+)x[a-z]+(\d+)")
#: Operations that compute each element from the same element of their operands, in registers.
_ELEMENTWISE = ("arith.", "math.", "tt.fp_to_fp", "tt.bitcast", "tt.clampf", "tt.precise_")
_REGISTER_BITS = 32

#: Loads by name, with the bits an element in which their values can be held: a conversion may have made them narrower.
Kept = dict[str, int]


def held(ttgir: str, warps: int) -> int:
    """The most 32-bit registers a thread that one load's values fill until a reduction is done; 0 where none are held."""
    extents: dict[str, str] = {}
    kept: dict[str, Kept] = {}
    #: Value to the loads whose reduction it depends on.
    after: dict[str, set[str]] = {}
    most = 0
    for line in compiled_lines.read(ttgir):
        late = set[str]().union(*(after.get(value, ()) for value in line.values))
        known = {value: kept[value] for value in line.values if value in kept}
        for value, loads in known.items():
            for load in late.intersection(loads) - after.get(value, set()):
                most = max(most, math.prod(map(int, extents[load].split("x"))) * loads[load])
        for name in line.results:  # blocks beside each other use the same names
            kept.pop(name, None)
            after.pop(name, None)
            for loads in kept.values():
                loads.pop(name, None)
            for waiting in after.values():
                waiting.discard(name)
            if loaded := _LOADED.search(line.text):
                extents[name], kept[name] = loaded[1], {name: int(loaded[2])}
            elif line.text.startswith('"tt.reduce"'):
                after[name] = late.union(*known.values())
            else:
                if line.text.startswith(_ELEMENTWISE):
                    kept[name] = _through(known.values(), extents, line.text)
                if late:
                    after[name] = late
    return most // (_REGISTER_BITS * warps * occupancy.WARP_THREADS)


def _through(known: Iterable[Kept], extents: dict[str, str], text: str) -> Kept:
    """The ``Kept`` of an elementwise operation's result, from those of its operands: it may be held instead of a wider one.

    Only loads of the result's shape count.
    """
    types, found = _TENSOR.findall(text), Kept()
    if types:
        # The type at the end of a comparison is that of its operands; a conversion ends in both types.
        bits = 1 if text.startswith("arith.cmp") else min(int(one) for _, one in types[-1 - (" to " in text) :])
        for one in known:
            for load, before in one.items():
                if extents[load] == types[-1][0]:
                    found[load] = min(found.get(load, before), before, bits)
    return found
