"""Hardware counters of every launch of a case, by CUPTI's Range Profiler in the worker itself.

Nothing is replayed where the counters fit one pass: the case is called with a cold L2, and what a launch leaves in the caches the
next one finds, as in a program. Counters that do not fit are read in a further call. Beside ncu it is quick, and has fewer
counters. CUPTI serves one profiler a process, so not beside torch.profiler.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd

from tilescope.collectors.cupti import launch_names, library, planning, ranges
from tilescope.collectors.ncu import counters as ncu
from tilescope.files import bounded_reading, json_shape
from tilescope.hardware import device
from tilescope.table import schema
from tilescope.table.case import Case

SUFFIX = ".json"

WARMUP = 3
_NAN = (
    "CUPTI {version} gives no number for any counter on this chip: install another nvidia-cuda-cupti, or count with ncu"
)


@dataclass(frozen=True)
class Launch:
    """Counters of one launch in CUPTI's base units, by CUPTI's names. One that had no number is absent."""

    function: str
    counters: dict[str, float]


@dataclass(frozen=True)
class Artefact:
    """What was counted of one case. ``passes`` is how often it was called for it, ``flush_bytes`` what emptied the L2 before."""

    chip: str
    capability: str
    cupti: str
    passes: int
    flush_bytes: int
    launches: list[Launch]


def unavailable() -> str | None:
    """Why counters cannot be read here; None when nothing stands in the way that can be seen without trying."""
    return device.unavailable() or (None if library.find() else library.ABSENT)


def capture(case: Case, spec: Any, out: Path, settings: Mapping[str, Any]) -> None:
    """Counts the case's launches and writes the artefact. Compiling and tuning happen before.

    Raises NotApplicable where CUPTI gives no counters here, with the cure.
    """
    import torch  # noqa: PLC0415 - only the worker may import torch

    from tilescope.execution import cold, execute, observe  # noqa: PLC0415

    if spec.workload(case.workload).elements == 0:
        raise execute.NotApplicable("an empty workload launches nothing to count")
    run = execute.prepare(spec, case, "cuda")
    flush = cold.Flush()

    def call() -> None:
        run()
        torch.cuda.synchronize()

    def empty() -> None:
        flush()
        torch.cuda.synchronize()

    for _ in range(min(int(settings.get("warmup", WARMUP)), WARMUP) - 1):
        run()
    torch.cuda.synchronize()
    capability = "{}.{}".format(*torch.cuda.get_device_capability())
    try:
        cupti = library.load()
        cupti.initialize()
        chip = cupti.chip(torch.cuda.current_device())
        with launch_names.seen(cupti) as functions:
            observe.once(call, out, case)
        if not functions:
            raise execute.NotApplicable("it launches nothing that could be counted")
        found: list[dict[str, float]] = [{} for _ in functions]
        plans = planning.plans(cupti, chip, capability)
        for plan in plans:
            for known, more in zip(
                found, ranges.count(cupti, chip, plan, launches=len(functions), call=call, before=empty), strict=True
            ):
                known.update({name: value for name, value in more.items() if math.isfinite(value)})
        if not any(found):
            raise library.Refused(_NAN.format(version=cupti.version))
        version = cupti.version
    except library.Refused as refusal:
        raise execute.NotApplicable(str(refusal)) from refusal
    launches = [{"function": function, "counters": known} for function, known in zip(functions, found, strict=True)]
    artefact = {
        "chip": chip,
        "capability": capability,
        "cupti": version,
        "passes": sum(plan.passes for plan in plans),
        "flush_bytes": flush.nbytes,
        "launches": launches,
    }
    out.write_text(json.dumps(artefact))


@bounded_reading.parser
def parse(artefact: Path, case: Case) -> pd.DataFrame:
    """Rows of METRICS for every launch, in order. A counter that is absent gives no row."""
    data: Artefact = json_shape.fit(bounded_reading.data_of(artefact), Artefact, "it")
    rows = [
        case.row(metric, value, "cupti", launch=number, function=launch.function)
        for number, launch in enumerate(data.launches)
        for metric, value in ncu.metrics(launch.counters, data.capability).items()
    ]
    return schema.frame(rows)
