"""A disk cache of a device's measured peak rates, which depend on the device, its versions and the measuring code.

Imports neither torch nor triton.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from pathlib import Path

from tilescope.files import json_shape, user_cache
from tilescope.hardware.ceilings import MEASURED, unit
from tilescope.table.run import Ceiling

_KIND = "ceilings"
#: Versions that a rate depends on.
_VERSIONS = ("driver", "torch", "triton", "cublas", "ptxas")
#: Files that measure rates.
_MAKERS = ("measured_rates.py", "intervals.py")


def known(device: str, versions: Mapping[str, str]) -> tuple[Ceiling, ...]:
    """The cached rates of the device (its UUID) with these versions; empty where there are none."""
    kept = user_cache.read(_KIND, key(device, versions)) if device else None
    try:
        found: tuple[Ceiling, ...] = json_shape.fit(kept, tuple[Ceiling, ...], "")
        return tuple(one for one in found if one.origin == MEASURED and one.unit == unit(one.name) and one.value > 0)
    except json_shape.Misfit:
        return ()


def keep(device: str, versions: Mapping[str, str], found: Iterable[Ceiling]) -> tuple[Ceiling, ...]:
    """Caches rates that were just measured. Returns them with their driver and date."""
    now = datetime.now(UTC).isoformat(timespec="seconds")
    dated = tuple(dataclasses.replace(roof, driver=versions.get("driver", ""), date=now) for roof in found)
    if device and dated:
        user_cache.write(_KIND, key(device, versions), [dataclasses.asdict(ceiling) for ceiling in dated])
    return dated


def key(device: str, versions: Mapping[str, str]) -> str:
    execution = Path(__file__).resolve().parents[1] / "execution"
    code = [user_cache.digest_of_code(execution / name) for name in _MAKERS]
    return user_cache.digest([device, {name: versions.get(name, "") for name in _VERSIONS}, code])
