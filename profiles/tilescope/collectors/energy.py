"""Joules of a call by NVML's counter, over at least a second of calls one after the other: caches are as the calls leave them."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
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


def unavailable() -> str | None:
    """Why energy cannot be counted here; None where it can."""
    return device.unavailable() or (None if device.power() else "this GPU has no counter of energy (NVML)")


def capture(case: Case, spec: Any, out: Path, settings: Mapping[str, Any]) -> None:
    """Repeats the case and writes the energy of a call as JSON."""
    import torch  # noqa: PLC0415 - only the worker may import torch

    from tilescope.execution import energy, execute, observe  # noqa: PLC0415

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

    if found := energy.of(batch):
        found["energy"] /= calls
    out.write_text(json.dumps(found))


@bounded_reading.parser
def parse(artefact: Path, case: Case) -> pd.DataFrame:
    """Rows of ``energy`` (joules of a call), ``power`` and ``power_limit`` (watts), and ``sm_clock`` (hertz)."""
    data = bounded_reading.data_of(artefact)
    return schema.frame([case.row(metric, value, "energy") for metric, value in data.items()])
