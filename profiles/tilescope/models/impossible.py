"""Impossible measurements: values that no GPU can reach or that contradict each other, with likely causes. Pure.

A lower bound on the work is compared with an upper bound on the device. The algorithm's bytes (``KernelSpec.cost``) count each
input and output once. Bytes that L2 may have held before or after are subtracted, except reads after collectors emptied it.

Every tolerance has room over the values of the recordings (2103 cases on an H200, 949 of them counted by ncu), none of which is
impossible.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Mapping
from typing import NamedTuple

import pandas as pd

from tilescope.hardware import ceilings
from tilescope.hardware.roofs import pipe_of
from tilescope.table import units
from tilescope.table.case_table import GPU_TIME_SOURCES, CaseValues, Known, gather
from tilescope.table.run import Device

#: The rules' names, the most important first.
RULES = tuple(f"impossible-{what}" for what in ("roof", "overlap", "bytes", "cached", "output", "clocks"))
ROOF, OVERLAP, BYTES, CACHED, OUTPUT, CLOCKS = RULES

#: Least accepted share of a cost's declared bytes: an implementation may know more of its input. Liger's RoPE, which reads half
#: of a table with equal halves, is at 97.5 %; no other recorded case is below 100 %.
_LEAST = 0.9
#: Counts below this many bytes are not judged: arguments of a launch are as large.
_FEW = 4096
#: Least accepted ratio of two clocks' times: series run at different SM clocks, which power and heat lower. Recordings differ by
#: up to 12 % (mlp_compile_modes: 4.19 ms traced, 3.71 ms counted).
_LESS = 0.75
#: Largest accepted ratio of ncu's time, with cold caches and its own clock, and seconds added to it.
_MORE, _LONGER = 2.0, 3e-6
#: Chips may run a little above the datasheet's clock. A rate above the datasheet's by more has a wrong cost or time.
_ABOVE_SHEET = 1.05
_MISSING = (
    "Part of the {}, the cost declares too much, or launches are missing among those "
    "counted: compare the result with the reference ('tilescope check') and list the launches."
)
#: The clocks of a call and their sources, all with a cold L2.
_TIMES = (*(("gpu_time", source) for source in GPU_TIME_SOURCES), ("graph_time", "events"), ("interval", "events"))


class Impossible(NamedTuple):
    """One reason why a measurement is impossible: the rule, a sentence, a remedy, and the values that prove it.

    ``proof`` pairs names of METRICS (or ``roof_hbm`` for a roof, whose source is its origin) with their values.
    """

    rule: str
    said: str
    remedy: str
    proof: tuple[tuple[str, Known], ...]


def reasons(case: CaseValues, device: Device, pipe: str) -> list[Impossible]:
    """The reasons why the case's measurements are impossible, at most one a rule.

    ``pipe`` is the one that bounds its arithmetic (``roofs.pipe_of``).
    """
    found: dict[str, Impossible] = {}
    for rule in (
        _counted_rate, _overlaps, _bytes_in_time, _operations_in_time, _reads, _writes, _call_shorter, _counter_apart,
    ):  # fmt: skip
        for reason in rule(case, device, pipe):
            found.setdefault(reason.rule, reason)
    return list(found.values())


def of_table(
    table: pd.DataFrame, device: Device, kernels: Mapping[str, Mapping[str, object]] | None = None
) -> Iterator[tuple[CaseValues, Impossible]]:
    """The cases of the table with impossible measurements, with each reason. ``kernels`` is ``Run.kernels``."""
    for case in gather(table):
        for reason in reasons(case, device, pipe_of(case, kernels)):
            yield case, reason


def _bytes_in_time(case: CaseValues, device: Device, pipe: str) -> Iterator[Impossible]:
    """The algorithm's bytes over each clock's time, against HBM's datasheet.

    L2 may hold inputs before the call and outputs after it. A rate above the roof without these bytes is a wrong time or a
    wrong cost. A rate above it only with the inputs, which a cold L2 cannot hold, shows that a cache held them.
    """
    read, written = _needed(case)
    roof = device.ceiling("hbm", ceilings.DATASHEET)
    if not (read and written and roof and device.l2_bytes):
        return
    out = max(0.0, written.value - device.l2_bytes)
    least, cold = max(0.0, read.value - device.l2_bytes) + out, read.value + out
    for clock, time in _times(case):
        most = _ABOVE_SHEET * roof.value * time.value
        if cold <= most:
            continue
        rate = units.text((least if least > most else cold) / time.value, roof.unit)
        said = f"{rate} from HBM by {_clock(clock, time)}, which gives {units.text(roof.value, roof.unit)} at most"
        rule, why, remedy = (
            ROOF, "whatever L2 holds",
            "The work was not done, not waited for, or is not what the cost declares: compare the result with the "
            "reference ('tilescope check'), synchronize before the clock is read, and check the cost's bytes.",
        ) if least > most else (
            CACHED, "with a cold L2: inputs were in a cache",
            "Empty L2 before each call and take several sets of inputs in turn, as events and torch_profiler do; "
            "or the cost declares more bytes than the algorithm must read.",
        )  # fmt: skip
        needed = (("algorithm_bytes_read", read), ("algorithm_bytes_written", written))
        yield Impossible(
            rule, f"{said}, {why}", remedy, ((clock, time), *needed, ("roof_hbm", Known(roof.value, roof.origin)))
        )


def _counted_rate(case: CaseValues, device: Device, pipe: str) -> Iterator[Impossible]:
    """HBM bytes counted by ncu or CUPTI over its own time, against the datasheet's rate or the chip's, whichever is greater."""
    time, roof = _time(case, "gpu_time", case.counted_by), device.ceiling("hbm", ceilings.DATASHEET)
    ways = [(f"dram_bytes_{way}", case.total(f"dram_bytes_{way}", case.counted_by)) for way in ("read", "written")]
    if not (time and time.value > 0 and roof):
        return
    moved = sum(known.value for _, known in ways if known)
    launch = case.main_launch(case.counted_by)
    cycle, clock = (case.at(name, launch, case.counted_by) for name in ("dram_bytes_per_cycle", "dram_clock"))
    peak = max(roof.value, cycle.value * clock.value if cycle and clock else 0.0)
    if moved > _ABOVE_SHEET * peak * time.value:
        yield Impossible(
            ROOF,
            f"{units.text(moved / time.value, roof.unit)} counted at HBM, which gives {units.text(peak, roof.unit)} at most",
            "Bytes and time are not of the same launch, or other processes used the GPU meanwhile: count it "
            "again on a GPU that nothing else uses.",
            (("gpu_time", time), *((n, k) for n, k in ways if k), ("roof_hbm", Known(roof.value, roof.origin))),
        )


def _overlaps(case: CaseValues, device: Device, pipe: str) -> Iterator[Impossible]:
    """Launches of a trace that end after a later launch of their stream, which runs its launches in order."""
    for (metric, source), found in case.values.items():
        if metric == "stream_overlap":
            longest = Known(max(found.values()), source)
            many = f"{len(found)} launches end" if len(found) > 1 else "one launch ends"
            yield Impossible(
                OVERLAP,
                f"{many} after a later launch of the same stream has ended, by up to {units.text(longest.value, 'second')}",
                "A stream runs its launches in order, so the trace has a wrong time: record it again.",
                ((metric, longest),),
            )


def _operations_in_time(case: CaseValues, device: Device, pipe: str) -> Iterator[Impossible]:
    """The algorithm's operations over each clock's time, against the pipe's datasheet."""
    flops, roof = case.total("algorithm_flops", "model"), device.ceiling(pipe, ceilings.DATASHEET)
    if not (flops and roof):
        return
    for clock, time in _times(case):
        rate = flops.value / time.value
        if rate > _ABOVE_SHEET * roof.value:
            yield Impossible(
                ROOF,
                f"{units.text(rate, roof.unit)} by {_clock(clock, time)}, where {pipe} gives "
                f"{units.text(roof.value, roof.unit)} at most",
                "The work was not done, not waited for, or done on another pipe than the cost declares: compare the "
                "result with the reference ('tilescope check'), and check the cost's operations and its pipe.",
                ((clock, time), ("algorithm_flops", flops), (f"roof_{pipe}", Known(roof.value, roof.origin))),
            )


def _reads(case: CaseValues, device: Device, pipe: str) -> Iterator[Impossible]:
    """HBM bytes read, against the algorithm's: ncu empties all caches before each launch, CUPTI's collector L2 before a case."""
    read, counted = _needed(case)[0], case.total("dram_bytes_read", case.counted_by)
    if not (read and counted and device.l2_bytes) or read.value < _FEW or counted.value >= _LEAST * read.value:
        return
    said = f"{_bytes(counted)} read from HBM, where the algorithm needs {_bytes(read)}"
    rule, why, remedy = (BYTES, ", more than L2 holds", _MISSING.format("input was never read")) if read.value > device.l2_bytes else (
        CACHED, ": inputs were in a cache",
        "The caches were kept, or part of the input is never read: count it again with "
        "empty ones (ncu: --cache-control all), and compare the result with the reference ('tilescope check').",
    )  # fmt: skip
    yield Impossible(rule, said + why, remedy, (("dram_bytes_read", counted), ("algorithm_bytes_read", read)))


def _writes(case: CaseValues, device: Device, pipe: str) -> Iterator[Impossible]:
    """Bytes stored, by counters and interpreter, and bytes that reached HBM, against the algorithm's less what L2 may keep."""
    written = _needed(case)[1]
    if not written or written.value < _FEW:
        return
    for metric, source in (("l1_to_l2_bytes", case.counted_by), ("unique_bytes_written", "interpreter")):
        stored = case.total(metric, source)
        if stored and stored.value < _LEAST * written.value:
            yield Impossible(
                OUTPUT,
                f"{_bytes(stored)} stored of an output of {_bytes(written)}: "
                + ("it was never written" if stored.value == 0 else "part of it was never written"),
                "A mask or a grid leaves results out, or the cost declares too much: compare the result with the "
                "reference ('tilescope check', where memory that is not written shows as NaN).",
                ((metric, stored), ("algorithm_bytes_written", written)),
            )
    reached = case.total("dram_bytes_written", case.counted_by)
    if reached and device.l2_bytes and written.value - reached.value > device.l2_bytes:
        yield Impossible(
            BYTES,
            f"{_bytes(reached)} written to HBM, where the algorithm needs {_bytes(written)} and L2 holds "
            f"{units.text(device.l2_bytes, 'byte')}",
            _MISSING.format("output was never written"),
            (("dram_bytes_written", reached), ("algorithm_bytes_written", written)),
        )


def _call_shorter(case: CaseValues, device: Device, pipe: str) -> Iterator[Impossible]:
    """A call's time, against torch.profiler's time of its launches."""
    busy = _busy(case)
    if not busy:
        return
    for clock in ("interval", "graph_time"):
        time = _time(case, clock, "events")
        if time and 0 < time.value < _LESS * busy.value:
            yield Impossible(
                CLOCKS,
                f"{_seconds(time)} by {_clock(clock, time)}, {_seconds(busy)} in its launches",
                "Events were recorded on another stream than the launches, the two measured different work, or the GPU's "
                "clock changed between them: measure both again.",
                (("gpu_time", busy), (clock, time)),
            )


def _counter_apart(case: CaseValues, device: Device, pipe: str) -> Iterator[Impossible]:
    """GPU time by ncu or CUPTI, against torch.profiler's: less is impossible, and far more if the call is one launch.

    ncu empties the caches between launches, so a chain of them may take longer. It sees no copies and fills.
    """
    both = ("torch_profiler", case.counted_by)
    traced, counted = (_time(case, "gpu_time", source) for source in both)
    launches = [case.launch_count(source) for source in both]
    if not (traced and counted) or launches[0] != launches[1]:
        return
    less = counted.value < _LESS * traced.value - _LONGER
    more = launches[0] == 1 and counted.value > _MORE * traced.value + _LONGER
    if less or more:
        yield Impossible(
            CLOCKS,
            f"{_seconds(traced)} by torch_profiler, {_seconds(counted)} by {counted.source}",
            "The two measured different work, or the GPU's clock changed between them: measure both again, on a GPU that "
            "nothing else uses.",
            (("gpu_time", traced), ("gpu_time", counted)),
        )


def _busy(case: CaseValues) -> Known | None:
    """Seconds in which at least one of the case's launches ran, by torch.profiler; launches may overlap."""
    times = {n: t for n, t in case.values.get(("gpu_time", "torch_profiler"), {}).items() if n is not None}
    starts = case.values.get(("launch_start", "torch_profiler"), {})
    if not times:
        return None
    if len(times) > 1 and not starts.keys() >= times.keys():
        return Known(max(times.values()), "torch_profiler")
    busy = end = 0.0
    for start, time in sorted((starts.get(number, 0.0), time) for number, time in times.items()):
        busy += max(0.0, start + time - max(start, end))
        end = max(end, start + time)
    return Known(busy, "torch_profiler")


def _needed(case: CaseValues) -> list[Known | None]:
    """Bytes that must be read and written; None of each where the cost counts whole tensors, not all of which may be needed."""
    if case.total("tensor_bytes", "model"):
        return [None, None]
    return [case.total(f"algorithm_bytes_{way}", "model") for way in ("read", "written")]


def _time(case: CaseValues, clock: str, source: str) -> Known | None:
    """The median over repetitions. ``CaseValues.spread`` would also compute quantiles, which takes longer."""
    found = case.totals.get((clock, source))
    return Known(statistics.median(found), source) if found else None


def _times(case: CaseValues) -> Iterator[tuple[str, Known]]:
    """Every time of the case above 0, by its clock."""
    for clock, source in _TIMES:
        time = _time(case, clock, source)
        if time and time.value > 0:
            yield clock, time


def _clock(clock: str, time: Known) -> str:
    """``GPU time (torch_profiler)``."""
    said = {"gpu_time": "GPU time", "graph_time": "graph replay", "interval": "the interval"}[clock]
    return f"{said} ({time.source})"


def _seconds(time: Known) -> str:
    return units.text(time.value, "second")


def _bytes(known: Known) -> str:
    return units.text(known.value, "byte")
