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

#: Metrics that one pass counts, where the chip can (GH100).
FIRST = ("gpu_time", "dram_bytes_read", "dram_bytes_written", "l2_bytes", "l1_bytes", "tensor_ops_bf16", "sm_clock", "dram_clock",
         "dram_bytes_per_cycle", "dram_throughput")  # fmt: skip
#: All metrics but a throughput, which alone takes eight passes on a GH100; and those of kernels that are no matrix products.
PRODUCTS = tuple(dict.fromkeys((*FIRST, *(metric for metric in METRICS if metric != "sm_throughput"))))
OTHERS = tuple(metric for metric in PRODUCTS if metric in FIRST or not metric.startswith("tensor_ops_"))
#: The start of names of values that ncu computes from a launch's shape and resources.
_COMPUTED = ("launch__", "sm__maximum_warps_per_active_cycle")
_RANGE_PROFILER = 0


@dataclass(frozen=True)
class Plan:
    """Counters that are read together in ``passes`` calls. ``image`` is CUPTI's configuration."""

    counters: tuple[str, ...]
    passes: int
    image: bytes


#: Plans by the library's path and the other arguments.
_planned: dict[tuple[str, str, str, tuple[str, ...]], list[Plan]] = {}


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
    """The plan that reads the metrics, as far as the chip has them. Empty where it has none. Raises Refused for an unknown chip."""
    key = library.path, chip, capability, tuple(metrics)
    if key not in _planned:
        with host(library, chip):
            pass  # raises Refused once, before any metric is tried
        terms = dict.fromkeys(name for metric in metrics for name, _ in METRICS[metric].terms(capability))
        names = [name for name in terms if not name.startswith(_COMPUTED)]
        # All are tried at once, and one by one only where the chip lacks some.
        found = _possible(library, chip, names) or _possible(
            library, chip, [name for name in names if _possible(library, chip, [name])]
        )
        _planned[key] = [found] if found and found.passes else []
    return _planned[key]


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
