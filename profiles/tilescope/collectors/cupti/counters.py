"""Hardware counters of every launch of a case, by CUPTI's Range Profiler in the worker itself.

The case is called with a cold L2 once for each pass of the counters, so that a launch finds in the caches what the one before left,
as in a program. It needs neither ncu's process nor copies of the memory between passes. CUPTI serves
one profiler in a process, so it cannot run beside torch.profiler.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd

from tilescope.collectors.cupti import launch_names, library, planning, ranges
from tilescope.collectors.ncu import counters as ncu
from tilescope.execution.not_applicable import NotApplicable
from tilescope.files import bounded_reading, json_shape
from tilescope.hardware import device
from tilescope.table import schema
from tilescope.table.case import Case

SUFFIX = ".json"

#: Operations for each byte below which a kernel that declares no tensor pipe is no matrix product.
_INTENSITY = 16
_NAN = (
    "CUPTI {version} gives no number for any counter on this chip: install another nvidia-cuda-cupti, or count with ncu"
)


@dataclass(frozen=True)
class Launch:
    """Counters of one launch by CUPTI's names, in its base units. A counter without a number is absent."""

    function: str
    counters: dict[str, float]


@dataclass(frozen=True)
class Artefact:
    """Counters of one case. ``passes`` is the number of calls, ``flush_bytes`` the size of the read that flushed the L2."""

    chip: str
    capability: str
    cupti: str
    passes: int
    flush_bytes: int
    launches: list[Launch]


def unavailable() -> str | None:
    """Why counters cannot be read here; None where no obstacle is visible without trying."""
    return device.unavailable() or (None if library.find() else library.ABSENT)


def capture(case: Case, spec: Any, out: Path, settings: Mapping[str, Any]) -> None:
    """Counts the case's launches and writes the artefact. Compiling and tuning happen before.

    ``settings["one_pass"]`` counts the bytes and what else one pass counts.

    Raises NotApplicable for an empty workload and, with the cure, where CUPTI gives no counters here.
    """
    from tilescope.execution import observe  # noqa: PLC0415 - only the worker may import torch

    run, cost = ncu.warmed_up(case, spec, settings), spec.cost(spec.workload(case.workload), case.direction)
    out.write_text(json.dumps(of_call(run, lambda call: observe.once(call, out, case), wanted(cost, settings))))


def wanted(cost: Any, settings: Mapping[str, Any]) -> Sequence[str]:
    """The metrics to count of a case with that declared cost, which may be None."""
    if settings.get("one_pass"):
        return planning.FIRST
    few = cost and cost.pipe == "fp32" and 0 < cost.flops < _INTENSITY * (cost.bytes_read + cost.bytes_written)
    return planning.OTHERS if few else planning.PRODUCTS


def of_call(
    run: Callable[[], Any],
    look: Callable[[Callable[[], Any]], Any] = lambda call: call(),
    metrics: Sequence[str] = planning.PRODUCTS,
) -> dict[str, Any]:
    """Counts the metrics of each launch of ``run``. Returns an ``Artefact``'s data.

    ``look`` makes the call that finds the launches. Raises NotApplicable, with the cure, where CUPTI gives no counters here.
    """
    import torch  # noqa: PLC0415 - only the worker may import torch

    from tilescope.execution import cold  # noqa: PLC0415

    flush = cold.Flush()

    def call() -> None:
        run()
        torch.cuda.synchronize()

    def empty() -> None:
        flush()
        torch.cuda.synchronize()

    torch.cuda.synchronize()
    capability = "{}.{}".format(*torch.cuda.get_device_capability())
    try:
        cupti = library.load()
        cupti.initialize()
        chip = cupti.chip(torch.cuda.current_device())
        plans = planning.plans(cupti, chip, capability, metrics)
        with launch_names.seen(cupti) as functions:
            look(call)
        if not functions:
            raise NotApplicable("it launches nothing that could be counted")
        if launch_names.GRAPH in functions:
            raise NotApplicable("its launches are a CUDA graph, which CUPTI counts as one: count it with ncu")
        found, passes = counted(cupti, chip, plans, launches=len(functions), call=call, empty=empty)
        version = cupti.version
    except library.Refused as refusal:
        raise NotApplicable(str(refusal)) from refusal
    launches = [{"function": function, "counters": known} for function, known in zip(functions, found, strict=True)]
    return {
        "chip": chip,
        "capability": capability,
        "cupti": version,
        "passes": passes,
        "flush_bytes": flush.nbytes,
        "launches": launches,
    }


def counted(
    cupti: library.Library,
    chip: str,
    plans: Sequence[planning.Plan],
    *,
    launches: int,
    call: Callable[[], Any],
    empty: Callable[[], Any],
) -> tuple[list[dict[str, float]], int]:
    """Counters of each launch of ``call``, of all plans, and the number of passes. ``empty`` flushes the L2.

    A counter without a number is left out. Raises Refused where no counter has one.
    """
    found: list[dict[str, float]] = [{} for _ in range(launches)]
    for plan in plans:
        more = ranges.count(cupti, chip, plan, launches=launches, call=call, before=empty)
        for known, values in zip(found, more, strict=True):
            known.update({name: value for name, value in values.items() if math.isfinite(value)})
    if not any(found):
        raise library.Refused(_NAN.format(version=cupti.version))
    return found, sum(plan.passes for plan in plans)


@bounded_reading.parser
def parse(artefact: Path, case: Case) -> pd.DataFrame:
    """Rows of METRICS for every launch, in order. An absent counter gives no row."""
    return schema.frame(rows(bounded_reading.data_of(artefact), case))


def rows(data: Any, case: Case) -> list[Any]:
    """Rows from the data of ``of_call``. Raises Misfit for invalid data."""
    known: Artefact = json_shape.fit(data, Artefact, "it")
    return [
        case.row(metric, value, "cupti", launch=number, function=launch.function)
        for number, launch in enumerate(known.launches)
        for metric, value in ncu.metrics(launch.counters, known.capability).items()
    ]
