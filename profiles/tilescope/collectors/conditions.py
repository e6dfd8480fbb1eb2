"""Measuring conditions of each collector, which a run records so that runs can be compared. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from tilescope import collectors
from tilescope.collectors.ncu import counters
from tilescope.table.sources import COUNTERS, KNOWN

_CLOCKS = "left as they are"


def conditions(names: Iterable[str], settings: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """Conditions of each measuring collector: ``cache_control``, ``clock_control``, and from the settings or the collector's
    defaults ``warmup``, ``repetitions`` (a long call has fewer) and ``rotate`` (sets of inputs taken in turn).
    """
    found: dict[str, dict[str, Any]] = {}
    for name in names:
        if name not in KNOWN or not KNOWN[name].caches:
            continue
        if name in COUNTERS:
            numbers = {"warmup": counters.warmup(settings)}
        else:
            module = collectors.load(name)
            numbers = {
                key: int(settings.get(key, getattr(module, key.upper())))
                for key in ("warmup", "repetitions", "rotate")
                if hasattr(module, key.upper())
            }
        found[name] = {"cache_control": KNOWN[name].caches, "clock_control": _CLOCKS, **numbers}
    return found
