"""Through which of its parameters a compiled kernel reads and writes, and whether it multiplies, from the compiler's own intermediate text. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping

_PARAMETER = re.compile(r'(%[\w$-]+): !tt\.(?:ptr|tensordesc)<.*?loc\("([^"]+)"')
_VALUE = re.compile(r"%[\w$-]+")
_ASSIGNED = re.compile(r"^\s*((?:%[\w$-]+(?::\d+)?(?:, )?)+) = (.*)$")
_CARRIED = re.compile(r"(%[\w$-]+) = (%[\w$-]+)")
_READS = re.compile(r"\btt\.(load|descriptor_load|descriptor_gather)\b|global_to_local\b")
_WRITES = re.compile(r"\btt\.(store|descriptor_store|descriptor_scatter)\b|local_to_global\b")
_BOTH = re.compile(r"\btt\.(atomic_rmw|atomic_cas|descriptor_reduce)\b")


def touched(stages: Mapping[str, object]) -> dict[str, list[str]] | None:
    """Names of parameters by ``read`` and ``written``. ``stages`` are a compiled kernel's texts by name (``ttir``, ``ttgir``).

    None where that cannot be told: an address that comes from memory, or from where it is not followed.
    """
    lines = str(stages.get("ttir") or stages.get("ttgir") or "").splitlines()
    head = next((line for line in lines if "tt.func public" in line), "")
    # A part of a tuple is named after it.
    leads: dict[str, set[str]] = {value: {name.partition(".")[0]} for value, name in _PARAMETER.findall(head)}
    found: dict[str, set[str]] = {"read": set(), "written": set()}
    for line in lines[lines.index(head) + 1 :] if head else ():
        code = line.partition(" loc(")[0]
        assigned = _ASSIGNED.match(code)
        body = assigned[2] if assigned else code
        ways = [way for way, pattern in (("read", _READS), ("written", _WRITES)) if pattern.search(body)]
        ways = ["read", "written"] if _BOTH.search(body) else ways
        values = _VALUE.findall(body)
        if ways:
            through = leads.get(values[0], set()) if values else set()
            if not through:
                return None
            for way in ways:
                found[way] |= through
            continue
        for inner, outer in _CARRIED.findall(body):
            leads[inner] = leads.get(inner, set()) | leads.get(outer, set())
        if assigned:
            led = set().union(*(leads.get(value, set()) for value in values))
            for value in _VALUE.findall(assigned[1]):
                leads[value] = leads.get(value, set()) | led
    return {way: sorted(names) for way, names in found.items()} if head else None


def multiplies(stages: Mapping[str, object]) -> bool:
    """Whether the kernel holds a product of tiles, which tensor cores may compute; also where that cannot be told."""
    text = str(stages.get("ttir") or "")
    return not text or "tt.dot" in text
