"""Plans which metrics are counted in which pass on a chip, and evaluates the counts. Needs CUPTI's library and no GPU."""

from __future__ import annotations

import contextlib
import ctypes
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tilescope.collectors.cupti import structures
from tilescope.collectors.cupti.library import CuptiError, Library, Refused
from tilescope.table.metrics import METRICS

#: Metrics of the first pass, as far as the chip can count them in one (GH100: all).
FIRST = ("gpu_time", "dram_bytes_read", "dram_bytes_written", "l2_bytes", "l1_bytes", "tensor_ops_bf16", "sm_clock", "dram_clock",
         "dram_bytes_per_cycle", "dram_throughput")  # fmt: skip
#: Most passes for one metric of ``plans``: on a GH100 fp16 and int8 operations take two, a throughput eight.
MOST_PASSES = 2
#: The start of names of values that ncu computes from a launch's shape and resources.
_COMPUTED = ("launch__", "sm__maximum_warps_per_active_cycle")
_RANGE_PROFILER = 0


@dataclass(frozen=True)
class Plan:
    """Counters that are read together in ``passes`` calls. ``image`` is CUPTI's configuration."""

    counters: tuple[str, ...]
    passes: int
    image: bytes


#: Plans of ``whole`` by the library's path and its other arguments.
_planned: dict[tuple[str, str, str, bool], list[Plan]] = {}


@contextlib.contextmanager
def host(library: Library, chip: str) -> Iterator[int]:
    """CUPTI's host object for a chip's metrics. Raises Refused for an unknown chip."""
    library.asked_chip = chip
    made = library.call(structures.HostInitialize(profilerType=_RANGE_PROFILER, chipName=chip.encode()))
    try:
        yield made.host
    finally:
        library.call(structures.HostDeinitialize(host=made.host))


def plan(library: Library, chip: str, counters: Sequence[str]) -> Plan:
    """The plan that reads those counters together. Raises CuptiError for a counter that the chip lacks."""
    with host(library, chip) as object_:
        library.call(
            structures.ConfigAddMetrics(host=object_, metricNames=structures.texts(counters), numMetrics=len(counters))
        )
        asked = library.call(structures.GetConfigImageSize(host=object_))
        image = ctypes.create_string_buffer(asked.configImageSize)
        place = ctypes.addressof(image)
        library.call(structures.GetConfigImage(host=object_, configImageSize=len(image), configImage=place))
        found = library.call(structures.GetNumOfPasses(configImageSize=len(image), configImage=place))
        return Plan(tuple(counters), found.numOfPasses, image.raw)


def plans(library: Library, chip: str, capability: str, metrics: Sequence[str] = FIRST) -> list[Plan]:
    """Plans for the metrics that the chip has. Each plan takes one pass with as many metrics as fit.

    A metric that needs more passes has a plan of its own; one that needs more than ``MOST_PASSES`` has none. Raises Refused for an
    unknown chip.
    """
    with host(library, chip):
        pass  # raises Refused once, before any metric is tried
    counted = {metric: [name for name, _ in METRICS[metric].terms(capability)] for metric in metrics}
    # All of FIRST is tried at once, since most chips count it in one pass: each trial takes milliseconds.
    whole = [name for metric in FIRST for name in counted.get(metric, ())]
    first = _possible(library, chip, whole)
    together, alone = ([first] if first and first.passes == 1 else []), list[Plan]()
    for metric, counters in counted.items():
        if together and metric in FIRST and together[0] is first:
            continue
        single = _possible(library, chip, counters) if counters else None
        if single is None or single.passes > MOST_PASSES:
            continue
        if single.passes > 1:
            alone.append(single)
            continue
        for place, known in enumerate(together):
            both = _possible(library, chip, [*known.counters, *counters])
            if both and both.passes == 1:
                together[place] = both
                break
        else:
            together.append(single)
    return [*together, *alone]


def whole(library: Library, chip: str, capability: str, *, products: bool = True) -> list[Plan]:
    """The plan for all counters. Empty where the chip has none. Raises Refused for an unknown chip.

    A throughput, which alone takes eight passes, is left to ncu. Without ``products`` operations of the tensor pipes are left out
    but for those of ``FIRST``: on a GH100 that makes 8 passes of 13.
    """
    key = library.path, chip, capability, products
    if key in _planned:
        return _planned[key]
    with host(library, chip):
        pass  # raises Refused once, before any metric is tried
    metrics = [
        metric
        for metric in METRICS
        if metric in FIRST or (metric != "sm_throughput" and (products or not metric.startswith("tensor_ops_")))
    ]
    terms = {name for metric in metrics for name, _ in METRICS[metric].terms(capability)}
    names = sorted(name for name in terms if not name.startswith(_COMPUTED))
    # All are tried at once, and one by one only where the chip lacks some.
    found = _possible(library, chip, names) or _possible(
        library, chip, [name for name in names if _possible(library, chip, [name])]
    )
    return _planned.setdefault(key, [found] if found and found.passes else [])


def _possible(library: Library, chip: str, counters: Sequence[str]) -> Plan | None:
    try:
        return plan(library, chip, counters)
    except Refused:
        raise
    except CuptiError:
        return None


def values(library: Library, object_: int, counters: Sequence[str], data: Any, index: int) -> Mapping[str, float]:
    """Values of the counters in the range of that index. ``object_`` is the host object, ``data`` the decoded counts."""
    found = (ctypes.c_double * len(counters))()
    library.call(
        structures.Evaluate(
            host=object_,
            counterData=ctypes.addressof(data),
            counterDataSize=len(data),
            rangeIndex=index,
            metricNames=structures.texts(counters),
            numMetrics=len(counters),
            values=found,
        )
    )
    return dict(zip(counters, found, strict=True))
