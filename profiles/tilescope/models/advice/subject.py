"""The subject of a rule: one case with its summary and its launches, matched over several collectors. Pure."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tilescope.hardware import ceilings, roofs
from tilescope.models import bound
from tilescope.models.advice.finding import Bound, Evidence, Finding
from tilescope.table import units
from tilescope.table.case_table import CaseValues, Known, value_of
from tilescope.table.metrics import METRICS
from tilescope.table.run import Device
from tilescope.table.schema import NAMED
from tilescope.table.sources import COUNTERS, SOURCES

#: Collectors that see launches, the most detailed one first.
_SEERS = ("ncu", "torch_profiler", "cupti", "lanes", "compiler", "interpreter")
#: The implementation in Triton, and the start of the names of torch.compile's kernels.
_TRITON, _INDUCTOR = "triton", "triton_"
#: The share of the algorithm's input from which a launch counts as reading all of it: the rest may be another operand.
_ALL = 0.9
#: The most bytes of a single value, on which every later launch that uses it depends.
_VALUE = 16
#: The largest ratio of partial results to their input.
_PARTIAL = 1 / 256


@dataclass(frozen=True)
class LaunchValues:
    """One launch of a case. ``places`` maps a source to its number of the launch.

    ``share`` is the launch's share of the case's GPU time, None where a time is not known.
    """

    case: CaseValues
    function: str
    places: Mapping[str, int]
    share: float | None

    @property
    def uses_tensor_cores(self) -> bool:
        """Whether the compiler put tensor-core instructions into it."""
        known = self.get("tensor_instructions", "compiler")
        return known is not None and known.value > 0

    @property
    def triton(self) -> bool:
        """Whether it is Triton code, from a person or torch.compile, which can be changed, unlike a library's own kernels."""
        compiled = self.places.keys() & {"compiler", "lanes"}
        return self.case.key["impl"] == _TRITON or bool(compiled) or self.function.startswith(_INDUCTOR)

    @property
    def number(self) -> int:
        return next(self.places[source] for source in _SEERS if source in self.places)

    def get(self, metric: str, *sources: str) -> Evidence | None:
        """The metric of this launch from the first of ``sources`` (by default all, the most direct first) that has it."""
        for source in sources or SOURCES:
            known = self.case.at(metric, self.places[source], source) if source in self.places else None
            if known:
                return evidence(metric, known)
        return None


@dataclass(frozen=True)
class Subject:
    """One case with the data that rules need. ``row`` is its row of ``summary.summarise``.

    ``launches`` are those of Triton code that matter for its time. ``configs`` are the same implementation's cases of a
    sweep over the same problem. ``two_passes``: the computation needs all of its input before it can use any of it
    (``passes.two_passes``).
    """

    case: CaseValues
    row: Mapping[str, Any]
    device: Device
    launches: tuple[LaunchValues, ...]
    configs: tuple[CaseValues, ...] = ()
    two_passes: bool = False

    @property
    def measured(self) -> bool:
        return bool(self.row["measured"])

    @property
    def headroom(self) -> float | None:
        """GPU time over the floor, the largest possible speedup. None where either is not known."""
        fraction = self.row["floor_fraction"]
        return 1 / fraction if fraction > 0 else None

    @property
    def saturation(self) -> float:
        """The used share of the busier roof (HBM or arithmetic); NaN where nothing was timed."""
        moved = self.row["bandwidth_fraction"]
        if self.row["bytes_source"] in COUNTERS and not self.row["bytes_cold"]:
            moved = max(moved, moved * self.row["bytes_ratio"])
        shares = [x for x in (moved, self.row["performance_fraction"]) if not math.isnan(x)]
        return max(shares, default=math.nan)

    @property
    def launch_bound(self) -> bool:
        return bound.launch_bound(self.row)

    @property
    def needed(self) -> float:
        """The algorithm's bytes, as its cost declares them; NaN where it does not."""
        return value_of(self.case.needed_bytes())

    @property
    def passes(self) -> float:
        """The algorithm's bytes, with a second read of the input where two passes are needed and L2 cannot hold it."""
        read = self.total("algorithm_bytes_read", "model")
        again = self.two_passes and read and self.needed > self.device.l2_bytes
        return self.needed + (read.value if again and read else 0.0)

    @property
    def excess(self) -> float:
        """HBM bytes moved over ``passes``; NaN where either is not known."""
        return float(self.row["bytes_ratio"]) * self.needed / self.passes if self.needed else math.nan

    def total(self, metric: str, *sources: str) -> Evidence | None:
        known = self.case.total(metric, *sources)
        return evidence(metric, known) if known else None

    def of_row(self, metric: str, source: str) -> Evidence | None:
        """A metric that the summary has for the whole case (``gpu_time``, ``interval``, ``graph_time``)."""
        value = float(self.row[metric])
        return None if math.isnan(value) else evidence(metric, Known(value, source))

    def roof(self, name: str) -> Evidence | None:
        ceiling = roofs.roof(self.device, name)
        return Evidence(f"roof_{name}", ceiling.value, ceiling.unit, ceiling.origin) if ceiling else None

    def bound(self, ratio: float, formula: str, launch: LaunchValues | None = None, *, hides: bool = False) -> Bound:
        """The case's speedup if the launch (None: all) becomes ``ratio`` times faster.

        It follows from Amdahl's law (1967) with the launch's share of GPU time, ``1 / (1 - s + s / ratio)``. Without a known share
        the launch counts as the whole case, which may be too optimistic. The floor limits the speedup. A change that only
        ``hides`` latency moves no fewer bytes, so it gains at most the time in which the roof is idle.
        """
        if launch is not None and launch.share is not None and launch.share < 1:
            ratio = 1 / (1 - launch.share + launch.share / ratio)
            formula += f", over its {launch.share * 100:.0f} % of the time"
        busy = self.saturation if hides else math.nan
        if busy > 0 and 1 / busy < min(ratio, self.headroom or math.inf):
            return Bound(1 / busy, f"1 / share of the roof in use; {formula} would be {units.times(ratio)}")
        if self.headroom is not None and self.headroom < ratio:
            return Bound(self.headroom, f"GPU time / floor; {formula} would be {units.times(ratio)}")
        return Bound(ratio, formula)

    def fused(self) -> Bound | None:
        """The most that one launch in place of all can win: GPU time / least time. None where either is not known.

        Fusing removes the launches with their own delays and not only their bytes. Where the computation needs two passes, the
        bytes are those of two.
        """
        # The second of two passes need not move what L2 holds.
        again = max(1.0, (self.passes - self.device.l2_bytes) / self.needed) if self.needed else 1.0
        least = self.row["least_time"] * again
        formula = "GPU time / time of the bytes and operations needed, at the datasheet's rates"
        return Bound(self.row["gpu_time"] / least, formula, most=True) if self.measured and least > 0 else None

    def finding(
        self,
        rule: str,
        title: str,
        remedy: str,
        values: Sequence[Evidence | None],
        bound: Bound | None = None,
        *,
        launch: LaunchValues | None = None,
    ) -> Finding:
        """A finding about this case; absent values are left out of its evidence."""
        kernel, impl, direction, workload, config = (self.case.key[name] for name in NAMED)
        known = tuple(value for value in values if value is not None)
        number, function = (launch.number, launch.function) if launch else (None, "")
        return Finding(rule, title, remedy, kernel, impl, direction, workload, config, known, bound, number, function)


def evidence(metric: str, known: Known) -> Evidence:
    """A known value as evidence. ``metric`` may be a roof, as ``roof_hbm``, whose source is its origin."""
    unit = METRICS[metric].unit if metric in METRICS else ceilings.unit(metric.removeprefix("roof_"))
    return Evidence(metric, known.value, unit, known.source)


def launches(case: CaseValues) -> Iterator[LaunchValues]:
    """The case's launches, each with its number in every source.

    Sources with equally many launches are matched by position. Others are matched by function name and its repetition, because
    the compiler sees Triton's kernels only, while ncu also sees fills.
    """
    primary = next((source for source in _SEERS if case.launches(source)), None)
    if primary is None:
        return
    numbers = case.launches(primary)
    names = _named(case, primary)
    by_name = {source: {name: n for n, name in _named(case, source).items()} for source in _SEERS}
    alike = {source for source in _SEERS if len(case.functions.get(source, {})) == len(numbers)}
    times = {n: known.value for n in numbers if (known := case.launch_time(n, primary))}
    whole = sum(times.values())
    for number in numbers:
        places = {primary: number}
        for source in _SEERS:
            place = number if source in alike else by_name[source].get(names[number])
            if source != primary and place is not None:
                places[source] = place
        share = times[number] / whole if len(times) == len(numbers) and whole > 0 else None
        yield LaunchValues(case, case.functions[primary][number], places, share)


def _named(case: CaseValues, source: str) -> dict[int, tuple[str, int]]:
    """The function of each launch, with the number of earlier launches of that function."""
    before: Counter[str] = Counter()
    named = {}
    for number in case.launches(source):
        function = case.functions[source][number]
        named[number] = (function, before[function])
        before[function] += 1
    return named


def two_passes(cases: Iterable[CaseValues]) -> frozenset[tuple[str, str]]:
    """Kernels and passes that need all of the input before they can use any of it, such as a scale of the whole tensor.

    Every implementation and workload has to show the dependence. One case without it disproves the need: a loss is also one value of all logits, but no gradient waits for it.
    """
    shown: dict[tuple[str, str], bool] = {}
    for case in cases:
        problem = case.key["kernel"], case.key["pass"]
        needed = case.total("algorithm_bytes_read", "model")
        if needed and needed.value and case.launches("interpreter"):
            shown[problem] = shown.get(problem, True) and _depends(case)
    return frozenset(problem for problem, depends in shown.items() if depends)


def _depends(case: CaseValues) -> bool:
    """Whether one launch reduces the whole input to a value, and a later one reads the whole input again.

    The interpreter's distinct bytes are exact. Instead of one value there may be partial results, if each program of
    the later launch reads all of them, so that they are requested once for each program.
    """
    needed = case.total("algorithm_bytes_read", "model")
    launches = case.launches("interpreter")
    if needed is None or len(launches) < 2:
        return False
    everything = [n for n in launches if _bytes(case, "unique_bytes_read", n) >= _ALL * needed.value]
    for place in everything:
        made, read = _bytes(case, "unique_bytes_written", place), _bytes(case, "unique_bytes_read", place)
        if not 0 < made <= _PARTIAL * read:
            continue
        if any(later > place and (made <= _VALUE or _by_each(case, later, made)) for later in everything):
            return True
    return False


def _by_each(case: CaseValues, launch: int, nbytes: float) -> bool:
    """Whether each program of the launch reads most of these bytes; a mask may leave some out."""
    blocks = case.at("grid_blocks", launch)
    again = _bytes(case, "requested_bytes_read", launch) - _bytes(case, "unique_bytes_read", launch)
    return blocks is not None and blocks.value > 1 and again >= _ALL * (blocks.value - 1) * nbytes


def _bytes(case: CaseValues, metric: str, launch: int) -> float:
    known = case.at(metric, launch, "interpreter")
    return known.value if known else 0.0
