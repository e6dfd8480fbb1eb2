"""What can run on this machine: its GPU, and the collectors. Some ask the driver, so they are asked in threads; the answer is kept."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import NamedTuple

from tilescope import collectors
from tilescope.hardware import device


class Machine(NamedTuple):
    """``target`` of its GPU, empty without one; ``unavailable`` says of each collector why it cannot run, None where it can."""

    target: str
    unavailable: Mapping[str, str | None]


_last: list[Machine] = []


async def ask() -> Machine:
    """What can run now."""
    found = await asyncio.gather(*(asyncio.to_thread(_unavailable, name) for name in collectors.COLLECTORS))
    here = await asyncio.to_thread(device.detect)
    _last[:] = [Machine(here.target if here else "", dict(zip(collectors.COLLECTORS, found, strict=True)))]
    return _last[0]


def known() -> Machine | None:
    """What was answered last; None before that."""
    return _last[0] if _last else None


def _unavailable(name: str) -> str | None:
    try:
        return collectors.load(name).unavailable()
    except ImportError as error:
        return f"does not import: {error}"
