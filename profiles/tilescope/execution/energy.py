"""Counts the energy of what is repeated, by NVML's counter. Imports torch when it counts."""

from __future__ import annotations

import time
from collections.abc import Callable, Generator

from tilescope.hardware import device

#: Seconds of repetitions over which energy is counted, and between two looks at the counter, each of which takes milliseconds.
LONG, _LOOK = 1.0, 0.04


def counting() -> Generator[None, None, dict[str, float]]:
    """Counts what the caller does at each ``yield``, from one move of the counter to another.

    Returns ``energy``, in joules of one time, and over all of them ``power`` and ``power_limit`` in watts and ``sm_clock`` in hertz;
    nothing where NVML has no counter.
    """
    import torch  # noqa: PLC0415 - the caller has imported it

    known = first = device.power()
    begun, times, counts = time.perf_counter(), 0, False
    looked = begun
    while known:
        yield
        times += 1
        if time.perf_counter() - looked < _LOOK:
            continue
        torch.cuda.synchronize()
        looked = time.perf_counter()
        known, before = device.power(), known
        passed = looked - begun
        if known == before:
            continue
        if counts and passed >= LONG:
            used = known["energy"] - first["energy"]
            return {**known, "energy": used / times, "power": used / passed, **device.clocks()}
        if not counts:
            first, begun, times, counts = known, looked, 0, True
    return {}


def of(call: Callable[[], object]) -> dict[str, float]:
    """Counts the call, which is repeated. Returns what ``counting`` does."""
    repeated = counting()
    while True:
        try:
            next(repeated)
        except StopIteration as ended:
            found: dict[str, float] = ended.value
            return found
        call()
