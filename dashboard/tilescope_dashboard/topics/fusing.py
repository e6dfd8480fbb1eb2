"""Fusing: what the kernel would save with the next operation in it, and what it saves over its operations one by one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pandas as pd
from tilescope.hardware import roofs
from tilescope.models import function_names
from tilescope.table.case_table import CaseValues
from tilescope.table.run import Device

from tilescope_dashboard.data.units import times, write
from tilescope_dashboard.topics.sentence import Sentence

#: Where nothing can be predicted.
UNKNOWN = "This run does not say how many bytes its result has."


def sentence(
    kernel: str, case: CaseValues | None, device: Device | None, unfused: Sequence[Mapping[str, Any]]
) -> Sentence:
    """The bytes and the time that the next elementwise operation no longer takes, at the device's HBM roof; and the measured speedup
    over the kernel's operations one by one, ``unfused`` (rows of ``compare.against``).
    """
    said = function_names.said(kernel)
    told = [
        f"Measured: {said} takes {write(row['time'], 'second')}, its operations one by one {write(row['baseline_time'], 'second')} "
        f"({times(row['speedup'])})."
        for row in unfused
        if pd.notna(row["speedup"])
    ][:1]
    result, roof = _result(case), roofs.roof(device, "hbm") if device else None
    if not result or device is None or roof is None:
        return Sentence(f"Fusing {said}" if kernel else "Fusing", " ".join([UNKNOWN, *told]))
    small = result <= device.l2_bytes
    where = (
        f"Predicted for {device.name}: the result of {write(result, 'byte')} is then neither stored nor loaded, at the {roof.origin} "
        f"HBM bandwidth of {write(roof.value, roof.unit)}."
    )
    stays = [f"Less where the result stays in L2 ({write(device.l2_bytes, 'byte')})."] if small else []
    saved = f"{write(2 * result / roof.value, 'second')} ({write(2 * result, 'byte')} of HBM traffic)"
    title = f"Fusing the next elementwise operation into {said} would save {'up to ' if small else ''}{saved}"
    return Sentence(title, " ".join([where, *stays, *told]))


def _result(case: CaseValues | None) -> float:
    """Bytes of the case's result: what the algorithm must write, else the distinct bytes written; 0 if unknown."""
    if case is None:
        return 0
    known = (case.total("algorithm_bytes_written", "model"), case.total("unique_bytes_written", "interpreter"))
    return next((value.value for value in known if value), 0)
