"""Finds the parameters that a compiled kernel reads and writes through, and matrix products, in its TTIR or TTGIR. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping

from tilescope.execution import compiled_lines

_PARAMETER = re.compile(r'(%[\w$-]+): !tt\.(?:ptr|tensordesc)<.*?loc\("([^"]+)"')
_READS = re.compile(r"\btt\.(load|descriptor_load|descriptor_gather)\b|global_to_local\b")
_WRITES = re.compile(r"\btt\.(store|descriptor_store|descriptor_scatter)\b|local_to_global\b")
_BOTH = re.compile(r"\btt\.(atomic_rmw|atomic_cas|descriptor_reduce)\b")


def touched(stages: Mapping[str, object]) -> dict[str, list[str]] | None:
    """Names of the parameters that are ``read`` and ``written``. ``stages`` are a compiled kernel's texts by name.

    None where an address cannot be traced to a parameter, as one that is loaded from memory.
    """
    head, operations = compiled_lines.read(str(stages.get("ttir") or stages.get("ttgir") or ""))
    # The name of a tuple's item begins with the tuple's.
    leads: dict[str, set[str]] = {value: {name.partition(".")[0]} for value, name in _PARAMETER.findall(head)}
    found: dict[str, set[str]] = {"read": set(), "written": set()}

    def led(*values: str) -> set[str]:
        return set().union(*(leads.get(compiled_lines.base(value), set()) for value in values))

    for one in operations:
        ways = [way for way, pattern in (("read", _READS), ("written", _WRITES)) if pattern.search(one.text)]
        ways = ["read", "written"] if _BOTH.search(one.text) else ways
        if ways:
            through = led(*one.values[:1])
            if not through:
                return None
            for way in ways:
                found[way] |= through
            continue
        for inner, outer in one.carried:
            leads[inner] = led(inner, outer)
        through = led(*one.values, *one.given)
        for value in map(compiled_lines.base, one.results):
            leads[value] = led(value) | through
    return {way: sorted(names) for way, names in found.items()} if head else None


def multiplies(stages: Mapping[str, object]) -> bool:
    """Whether the kernel has a matrix product, which tensor cores may compute. True without a TTIR."""
    text = str(stages.get("ttir") or "")
    return not text or "tt.dot" in text
