"""Joules of a call by NVML's counter, over at least a second of calls one after the other: caches are as the calls leave them."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Generator, Mapping
from pathlib import Path
from typing import Any

import pandas as pd

from tilescope.files import bounded_reading
from tilescope.hardware import device
from tilescope.table import schema
from tilescope.table.case import Case

SUFFIX = ".json"
#: Sets of inputs taken in turn, calls that warm up, and seconds of calls between two looks at the counter.
_ROTATE, _WARMUP, _BATCH = 3, 10, 0.01
#: Seconds of repetitions over which energy is counted, and between two looks at the counter, each of which takes milliseconds.
LONG, _LOOK = 1.0, 0.04


def unavailable() -> str | None:
    """Why energy cannot be counted here; None where it can."""
    return device.unavailable() or (None if device.power() else "this GPU has no counter of energy (NVML)")


def capture(case: Case, spec: Any, out: Path, settings: Mapping[str, Any]) -> None:
    """Repeats the case and writes the energy of a call as JSON."""
    import torch  # noqa: PLC0415 - only the worker may import torch

    from tilescope.execution import execute, observe  # noqa: PLC0415

    run = execute.prepare(spec, case, "cuda", rotate=_ROTATE)
    for _ in range(_WARMUP):
        run()
    observe.once(run, out, case)
    torch.cuda.synchronize()
    begun = time.perf_counter()
    for _ in range(_WARMUP):
        run()
    torch.cuda.synchronize()
    calls = max(1, round(_BATCH * _WARMUP / (time.perf_counter() - begun)))

    def batch() -> None:
        for _ in range(calls):
            run()

    if found := of(batch):
        found["energy"] /= calls
    out.write_text(json.dumps(found))


@bounded_reading.parser
def parse(artefact: Path, case: Case) -> pd.DataFrame:
    """Rows of ``energy`` (joules of a call), ``power`` and ``power_limit`` (watts), and ``sm_clock`` (hertz)."""
    data = bounded_reading.data_of(artefact)
    return schema.frame([case.row(metric, value, "energy") for metric, value in data.items()])


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
