"""Hardware counters of every launch of a case, by CUPTI's Range Profiler in the worker itself.

The case is called with a cold L2 once for each pass of the counters, so that a launch finds in the caches what the one before left,
as in a program. It needs neither ncu's process nor copies of the memory between passes. CUPTI serves
one profiler in a process, so it cannot run beside torch.profiler.
"""

from __future__ import annotations

import contextlib
import json
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import pandas as pd

from tilescope.collectors.cupti import library, planning, ranges
from tilescope.collectors.ncu import counters as ncu
from tilescope.execution.not_applicable import NotApplicable
from tilescope.files import bounded_reading, json_shape
from tilescope.hardware import device, gpu_lock
from tilescope.table import schema
from tilescope.table.case import Case

SUFFIX = ".json"

#: Operations for each byte below which a kernel that declares no tensor pipe is no matrix product.
_INTENSITY = 16
#: Launches above which no further case is counted together with others.
_MOST = 500
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
    """Counts the case by itself. Raises NotApplicable for an empty workload and, with the cure, where CUPTI gives no counters here."""
    for _, error in capture_all([case], lambda kernel: spec, out.parent, settings, lambda case, doing: None):
        if error:
            raise error


class _Ready(NamedTuple):
    """A case that is to be counted: its call, the functions that this launches, and where its artefact goes."""

    case: Case
    run: Callable[[], Any]
    functions: list[str]
    out: Path


def capture_all(
    cases: Sequence[Case],
    load: Callable[[str], Any],
    folder: Path,
    settings: Mapping[str, Any],
    begin: Callable[[Case, str], None],
) -> Iterator[tuple[Case, BaseException | None]]:
    """Counts the cases of the same metrics together, as many as leave half of the GPU's memory free, and writes their artefacts.

    Compiling and tuning happen before. ``settings["one_pass"]`` counts the bytes and what else one pass counts.
    """
    ready: dict[Sequence[str], list[_Ready]] = {}
    for case in cases:
        begin(case, "counting")
        try:
            metrics, one = _prepared(case, load(case.kernel), folder / f"{case.slug}{SUFFIX}", settings)
        except (Exception, SystemExit) as error:
            yield case, error
            continue
        ready.setdefault(metrics, []).append(one)
        if not roomy() or sum(len(one.functions) for one in ready[metrics]) > _MOST:
            for metrics in [*ready]:
                yield from _count(ready.pop(metrics), metrics, begin)
    for metrics, together in ready.items():
        yield from _count(together, metrics, begin)


def _prepared(case: Case, spec: Any, out: Path, settings: Mapping[str, Any]) -> tuple[Sequence[str], _Ready]:
    """The metrics to count, and the case after its warm-up. Raises as ``capture``."""
    from tilescope.execution import observe  # noqa: PLC0415 - only the worker may import torch

    run = ncu.warmed_up(case, spec, settings)
    functions = launched(run, lambda call: observe.once(call, out, case))
    cost = spec.cost(spec.workload(case.workload), case.direction)
    return wanted(cost, settings), _Ready(case, run, functions, out)


def _count(
    together: Sequence[_Ready], metrics: Sequence[str], begin: Callable[[Case, str], None]
) -> Iterator[tuple[Case, BaseException | None]]:
    """Counts cases together; by themselves where that fails."""
    try:
        counted = of_calls([one.run for one in together], [one.functions for one in together], metrics)
    except Exception as error:
        if len(together) == 1:
            yield together[0].case, error
            return
        for one in together:
            begin(one.case, "counting")
            yield from _count([one], metrics, begin)
        return
    for one, data in zip(together, counted, strict=True):
        one.out.write_text(json.dumps(data))
        yield one.case, None


def roomy() -> bool:
    """Whether half of the GPU's memory is free, or held by PyTorch for new tensors."""
    import torch  # noqa: PLC0415 - only the worker may import torch

    free, total = torch.cuda.mem_get_info()
    return free + torch.cuda.memory_reserved() - torch.cuda.memory_allocated() > total / 2


def wanted(cost: Any, settings: Mapping[str, Any]) -> Sequence[str]:
    """The metrics to count of a case with that declared cost, which may be None."""
    if settings.get("one_pass"):
        return planning.FIRST
    few = cost and cost.pipe == "fp32" and 0 < cost.flops < _INTENSITY * (cost.bytes_read + cost.bytes_written)
    return planning.OTHERS if few else planning.PRODUCTS


def launched(run: Callable[[], Any], look: Callable[[Callable[[], Any]], Any] = lambda call: call()) -> list[str]:
    """The functions that ``run`` launches; ``look`` makes the call.

    Raises NotApplicable, with the cure, where CUPTI gives no counters here.
    """
    import torch  # noqa: PLC0415 - only the worker may import torch

    def call() -> None:
        run()
        torch.cuda.synchronize()

    torch.cuda.synchronize()
    with _refusing():
        cupti = library.load()
        cupti.initialize()
        cupti.chip(torch.cuda.current_device())
        with ranges.seen(cupti) as functions:
            look(call)
    if not functions:
        raise NotApplicable("it launches nothing that could be counted")
    if ranges.GRAPH in functions:
        raise NotApplicable("its launches are a CUDA graph, which CUPTI counts as one: count it with ncu")
    return functions


def of_calls(
    runs: Sequence[Callable[[], Any]],
    functions: Sequence[Sequence[str]],
    metrics: Sequence[str] = planning.PRODUCTS,
) -> list[dict[str, Any]]:
    """Counts the metrics of each launch of the calls, which make launches of these ``functions``. Returns an ``Artefact``'s data of each.

    The first start of a profiler takes 0.15 s, so several calls are counted together. The flush before each is counted with them. Raises as
    ``launched``.
    """
    import torch  # noqa: PLC0415 - only the worker may import torch

    from tilescope.execution import cold  # noqa: PLC0415

    flush, several = cold.Flush(), len(runs) > 1

    def empty() -> None:
        flush()
        torch.cuda.synchronize()

    def call() -> None:
        for run in runs:
            if several:
                flush()
            run()
            torch.cuda.synchronize()

    capability = "{}.{}".format(*torch.cuda.get_device_capability())
    with _refusing():
        cupti = library.load()
        cupti.initialize()
        chip = cupti.chip(torch.cuda.current_device())
        plans = planning.plans(cupti, chip, capability, metrics)
        launches = sum(map(len, functions)) + several * len(runs)
        found, passes = counted(cupti, chip, plans, launches=launches, call=call, empty=empty)
        about = {"chip": chip, "capability": capability, "cupti": cupti.version, "passes": passes}
    return [{**about, "flush_bytes": flush.nbytes, "launches": own} for own in by_call(found, functions)]


def start_ahead() -> bool:
    """Makes the first GPU's context and starts CUPTI in it, which takes a second in a process. Does not, and returns False, where there is
    none, another job uses it, or only one process may have a context.
    """
    here = device.detect()
    with gpu_lock.held(gpu_lock.path(device.lock_name()), wait=False) as free:
        if not (free and here and device.shareable() and device.make_context()):
            return False
        cupti = library.load()
        cupti.initialize()
        chip = cupti.chip(0)
        for plan in planning.plans(cupti, chip, ncu.capability(here.target), planning.FIRST):
            # It has nothing to count, which is an error.
            with contextlib.suppress(library.CuptiError), ranges.Counting(cupti, chip, plan, 1) as counting:
                counting.begin()
                counting.end()
    return True


def by_call(found: Sequence[dict[str, float]], functions: Sequence[Sequence[str]]) -> list[list[dict[str, Any]]]:
    """The launches of each call with their counters, of which ``found`` has those of several calls after those of a flush."""
    left = iter(found)
    calls = []
    for names in functions:
        if len(functions) > 1:
            next(left)
        calls.append([{"function": name, "counters": next(left)} for name in names])
    return calls


@contextlib.contextmanager
def _refusing() -> Iterator[None]:
    """Makes a refusal of CUPTI's the case's reason to be left out."""
    try:
        yield
    except library.Refused as refusal:
        raise NotApplicable(str(refusal)) from refusal


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
    """Rows from the data of ``of_calls``. Raises Misfit for invalid data."""
    known = json_shape.fit(data, Artefact, "it")
    return [
        case.row(metric, value, "cupti", launch=number, function=launch.function)
        for number, launch in enumerate(known.launches)
        for metric, value in ncu.metrics(launch.counters, known.capability).items()
    ]
