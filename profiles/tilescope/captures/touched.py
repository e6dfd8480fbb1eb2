"""Through which of its parameters a compiled kernel reads and writes, and whether it multiplies, from the compiler's own intermediate text. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping

from tilescope.execution import compiled_lines

_PARAMETER = re.compile(r'(%[\w$-]+): !tt\.(?:ptr|tensordesc)<.*?loc\("([^"]+)"')
_READS = re.compile(r"\btt\.(load|descriptor_load|descriptor_gather)\b|global_to_local\b")
_WRITES = re.compile(r"\btt\.(store|descriptor_store|descriptor_scatter)\b|local_to_global\b")
_BOTH = re.compile(r"\btt\.(atomic_rmw|atomic_cas|descriptor_reduce)\b")


def touched(stages: Mapping[str, object]) -> dict[str, list[str]] | None:
    """Names of parameters by ``read`` and ``written``. ``stages`` are a compiled kernel's texts by name (``ttir``, ``ttgir``).

    None where that cannot be told: an address that comes from memory, or from where it is not followed.
    """
    head, operations = compiled_lines.read(str(stages.get("ttir") or stages.get("ttgir") or ""))
    # A part of a tuple is named after it.
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
    """Whether the kernel holds a product of tiles, which tensor cores may compute; also where that cannot be told."""
    text = str(stages.get("ttir") or "")
    return not text or "tt.dot" in text
