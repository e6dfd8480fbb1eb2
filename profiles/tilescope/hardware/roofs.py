"""The roofs of a device: which of them a case is compared with, and what they are called. Pure."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import pandas as pd

from tilescope.hardware.ceilings import DATASHEET, MEASURED, MEMORY_LEVELS
from tilescope.table.case_table import CaseValues, declared_pipe
from tilescope.table.run import Ceiling, Device

#: Hardware work counters and the pipe that does the work. Half-precision work on CUDA cores is set against their
#: fp32 roof: no pipe of its own is declared for it.
WORK = {
    "tensor_ops_bf16": "bf16",
    "tensor_ops_fp16": "fp16",
    "tensor_ops_tf32": "tf32",
    "tensor_ops_fp8": "fp8",
    "tensor_ops_int8": "int8",
    "tensor_ops_fp64": "fp64",
    "flops_fp64": "fp64",
    "flops_fp32": "fp32",
    "flops_fp16": "fp32",
}

#: Share of writes in the bytes that must move, up to which a case only reads.
_READS = 0.02

#: Arithmetic intensity (flop/byte) from which work without evidence is taken for tensor-core work.
_TENSOR_INTENSITY = 64

#: What gives the roof of a name (see ``roof``).
Roofs = Callable[[str], Ceiling | None]


def roof(device: Device, name: str) -> Ceiling | None:
    """The measured roof of that name, else the datasheet's, else None."""
    return device.ceiling(name, MEASURED) or device.ceiling(name, DATASHEET)


def hbm_roof(case: CaseValues, known: Roofs) -> Ceiling | None:
    """The roof of HBM that a case is compared with: read bandwidth for a case that does little but read, else copy
    bandwidth.

    Read bandwidth is measured or absent: datasheets give one figure for both.
    """
    read, written = case.algorithm_bytes() or (None, None)
    reads = read and written and written.value <= _READS * (read.value + written.value)
    return (known("hbm_read") if reads else None) or known("hbm")


class OfRoof(NamedTuple):
    """How near a case comes to its roof. ``fraction`` of the roof called ``name`` (``measured copy bandwidth``).

    ``pipe`` names the pipe whose rate the roof is; it is empty where the roof is a bandwidth of HBM.
    """

    fraction: float
    name: str
    pipe: str


def of_roof(row: Mapping[str, Any], device: Device) -> OfRoof:
    """The share of its roof that a row of ``summary.summarise`` reaches, and the roof's name, as every view and table
    gives them.

    The share is NaN where nothing was timed, the name empty where no cost is known.
    """
    fraction = float(row["floor_fraction"])
    rate = roof(device, str(row["pipe"])) if row["performance_fraction"] == fraction else None
    if rate:
        return OfRoof(fraction, f"{rate.origin} {rate.name} rate", rate.name)
    return OfRoof(fraction, bandwidth(device, str(row["memory_roof"])) if row["memory_roof"] else "", "")


def bandwidth(device: Device, name: str) -> str:
    """Name of a roof of HBM with its origin: ``measured copy bandwidth``."""
    found = roof(device, name)
    origin = found.origin if found else ""
    kind = {"hbm": "copy ", "hbm_read": "read "}[name] if origin == MEASURED else ""
    return f"{origin} {kind}bandwidth"


def all_roofs(device: Device) -> pd.DataFrame:
    """Every roof: name, kind (``memory`` or ``compute``), value (byte/second or flop/second), unit, origin, note."""
    rows = [
        (c.name, "memory" if c.name in MEMORY_LEVELS else "compute", c.value, c.unit, c.origin, c.note)
        for c in device.ceilings
    ]
    return pd.DataFrame(rows, columns=["name", "kind", "value", "unit", "origin", "note"])


def pipe_of(case: CaseValues, kernels: Mapping[str, Mapping[str, object]] | None = None) -> str:
    """The pipe that bounds the case's arithmetic.

    It is the one that the kernel declares. Else it is the tensor pipe of the dtype where counters or the compiler saw tensor
    work, or where the algorithm's intensity leaves little else. Else it is the CUDA cores.
    """
    declared = declared_pipe(case, kernels)
    if declared:
        return declared
    dtype = case.key["dtype"]
    tensor = {"fp32": "tf32", "bf16": "bf16", "fp16": "fp16", "fp8": "fp8", "int8": "int8", "fp64": "fp64"}.get(dtype)
    counted = [k.value for metric in WORK if metric.startswith("tensor") and (k := case.total(metric, case.counted_by))]
    compiled = case.total("tensor_instructions", "compiler")
    if counted or compiled:
        evident = any(counted) or bool(compiled and compiled.value)
    else:
        flops = case.total("algorithm_flops", "model")
        needed = case.needed_bytes()
        evident = bool(flops and needed and flops.value > _TENSOR_INTENSITY * needed.value)
    if tensor and evident:
        return tensor
    return "fp64" if dtype == "fp64" else "fp32"
