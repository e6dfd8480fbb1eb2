"""Raises measured roofs to the rates that cases of the run reached.

A measured roof is the rate of one program, cuBLAS or a copy. Others may be faster: Triton's int8 product is faster than
``torch._int_mm``, and a kernel that reads twice as much as it writes is faster than a copy. A run's roof is therefore the
larger of the measured rate and the best case's, but never above the datasheet's. Pure.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Iterator, Mapping
from typing import NamedTuple

import pandas as pd

from tilescope.hardware import ceilings, roofs
from tilescope.hardware.ceilings import DATASHEET, MEASURED
from tilescope.table import units
from tilescope.table.case_table import gather
from tilescope.table.run import Ceiling, Device, Run

#: First words of the note of a raised roof.
BEST = "best case of this run"
#: Metrics for the rates and their pipes: most rows of a run are not needed.
_NEEDED = {
    "gpu_time", "relative_error", "tolerance", "tensor_instructions", "algorithm_flops", "algorithm_bytes_read",
    "algorithm_bytes_written", "tensor_bytes", *roofs.WORK,
}  # fmt: skip
#: A shorter time, in seconds, is mostly launch overhead and the clock's error.
_SHORT = 5e-6
#: A case must move more than this many times the L2's size: less may have stayed in L2, and shows nothing of HBM.
_PAST_L2 = 2
#: Chips may run a little above the datasheet's clock. A rate above the datasheet's by more has a wrong cost or time.
ABOVE_SHEET = 1.05


class Rate(NamedTuple):
    """The rate ``value`` that a case reached, in the unit of its roof; the roof's name, and the case in words."""

    roof: str
    value: float
    case: str


def raised(run: Run, table: pd.DataFrame) -> Run:
    """The run with its device's roofs raised to its cases' rates, and a note on each impossible rate.

    Datasheet figures are replaced by today's.
    """
    device = _published(run.device)
    if not device.measured:
        return dataclasses.replace(run, device=device)
    best: dict[str, Rate] = {}
    remarks = []
    for rate in rates(table, device, run.kernels):
        sheet = device.ceiling(rate.roof.removesuffix("_read"), DATASHEET)
        if sheet and rate.value > ABOVE_SHEET * sheet.value:
            said = (
                f"{units.text(rate.value, sheet.unit)} is above the datasheet's {units.text(sheet.value, sheet.unit)}"
            )
            remarks.append(f"{remark(rate.case)}{said}; its cost or its time is wrong")
        elif rate.value > best.get(rate.roof, rate).value or rate.roof not in best:
            best[rate.roof] = rate
    lifted = tuple(_lifted(ceiling, best.get(ceiling.name), device) for ceiling in device.ceilings)
    device = _ordered(dataclasses.replace(device, ceilings=lifted))
    return dataclasses.replace(run, device=device, notes=(*run.notes, *remarks))


def remark(case: str) -> str:
    """First words of the note that the rate of ``case`` (``Rate.case``) is impossible."""
    return f"impossible: {case}: "


def rates(
    table: pd.DataFrame, device: Device, kernels: Mapping[str, Mapping[str, object]] | None = None
) -> Iterator[Rate]:
    """Yields the rates of each case. Cases with wrong results are left out: their work was another."""
    known: roofs.Roofs = functools.partial(roofs.roof, device)
    for case in gather(table[table["metric"].isin(_NEEDED)]):
        time, needed = case.gpu_time(), case.needed_bytes()
        if time is None or time.value < _SHORT or case.wrong():
            continue
        flops, memory = case.total("algorithm_flops", "model"), roofs.hbm_roof(case, known)
        name = " ".join(filter(None, (case.key[part] for part in ("kernel", "impl", "pass", "workload", "config"))))
        if flops:
            yield Rate(roofs.pipe_of(case, kernels), flops.value / time.value, name)
        if case.total("tensor_bytes", "model"):
            continue  # it may have moved fewer bytes than whole tensors have
        if memory and needed and needed.value > _PAST_L2 * device.l2_bytes:
            yield Rate(memory.name, needed.value / time.value, name)


def _lifted(ceiling: Ceiling, best: Rate | None, device: Device) -> Ceiling:
    if ceiling.origin != MEASURED or best is None or best.value <= ceiling.value:
        return ceiling
    sheet = device.ceiling(ceiling.name.removesuffix("_read"), DATASHEET)
    value = min(best.value, sheet.value if sheet else math.inf)
    was = f"{units.text(ceiling.value, ceiling.unit)} by {ceiling.note}" if ceiling.note else "less otherwise"
    return dataclasses.replace(ceiling, value=value, note=f"{BEST}: {best.case}; {was}")


def _ordered(device: Device) -> Device:
    """Raises read bandwidth to copy bandwidth: a slower measurement of it was disturbed."""
    copy, read = device.ceiling("hbm", MEASURED), device.ceiling("hbm_read", MEASURED)
    if copy is None or read is None or read.value >= copy.value:
        return device
    higher = dataclasses.replace(read, value=copy.value, note=f"no less than a copy: {copy.note}")
    return dataclasses.replace(device, ceilings=tuple(higher if c is read else c for c in device.ceilings))


def _published(device: Device) -> Device:
    """The device with today's datasheet, if its product is listed, and today's units."""
    sheet = ceilings.datasheet(device.name)
    kept = tuple(c for c in device.ceilings if c.origin != DATASHEET or not sheet)
    known = tuple(dataclasses.replace(c, unit=ceilings.unit(c.name)) for c in kept)
    return dataclasses.replace(device, ceilings=(*sheet, *known))
