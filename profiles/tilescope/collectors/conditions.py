"""Measuring conditions of each collector, which a run records so that another can be compared with it. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from tilescope import collectors

#: What is done to the caches before a case, or a launch of it.
_CACHES = {
    "events": "L2 flushed by reading before each call",
    "torch_profiler": "L2 flushed by reading before each call",
    "ncu": "all caches emptied before each launch and replay pass",
}
_CLOCKS = "left as they are"


def conditions(names: Iterable[str], settings: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """Conditions by collector, of those that measure.

    Each has ``cache_control``, ``clock_control`` and, from the settings or the collector's defaults, ``warmup``,
    ``repetitions`` and ``rotate`` (sets of inputs taken in turn).
    """
    found: dict[str, dict[str, Any]] = {}
    for name in names:
        if name not in _CACHES:
            continue
        module = collectors.load(name)
        numbers = {
            key: int(settings.get(key, getattr(module, key.upper())))
            for key in ("warmup", "repetitions", "rotate")
            if hasattr(module, key.upper())
        }
        if name == "ncu":
            numbers["warmup"] = max(1, min(numbers["warmup"], module.WARMUP))
        found[name] = {"cache_control": _CACHES[name], "clock_control": _CLOCKS, **numbers}
    return found
