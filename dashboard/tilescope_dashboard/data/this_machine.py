"""This machine's GPU, and the collectors that run here. Threads ask, because some ask the driver. The answer is cached."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import NamedTuple

from tilescope import collectors
from tilescope.hardware import device


class Machine(NamedTuple):
    """``target`` of the GPU, empty without one; ``unavailable`` has each collector's reason not to run, None if it can."""

    target: str
    unavailable: Mapping[str, str | None]


_last: list[Machine] = []


async def ask() -> Machine:
    """Find out what can run."""
    found = await asyncio.gather(*(asyncio.to_thread(_unavailable, name) for name in collectors.COLLECTORS))
    here = await asyncio.to_thread(device.detect)
    _last[:] = [Machine(here.target if here else "", dict(zip(collectors.COLLECTORS, found, strict=True)))]
    return _last[0]


def known() -> Machine | None:
    """The last answer; None before the first."""
    return _last[0] if _last else None


def _unavailable(name: str) -> str | None:
    try:
        reason: str | None = collectors.load(name).unavailable()
        return reason
    except ImportError as error:
        return f"does not import: {error}"
