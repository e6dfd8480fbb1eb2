"""Chooses the roofs of a device that a case is compared with, and names them. Pure."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import pandas as pd

from tilescope.hardware.ceilings import DATASHEET, MEASURED, MEMORY_LEVELS
from tilescope.table.case_table import CaseValues, declared_pipe
from tilescope.table.run import Ceiling, Device

#: Metrics of work and the pipe that does it. Half-precision work on CUDA cores counts against fp32: it has no roof of its own.
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

#: A case whose share of written bytes is not above this counts as one that only reads.
_READS = 0.02

#: Arithmetic intensity (flop/byte) above which work is taken for tensor-core work without other evidence.
_TENSOR_INTENSITY = 64

#: A function from the name of a roof to the roof, as ``roof`` of one device.
Roofs = Callable[[str], Ceiling | None]


def roof(device: Device, name: str) -> Ceiling | None:
    """The measured roof of that name, or else the datasheet's, or None."""
    return device.ceiling(name, MEASURED) or device.ceiling(name, DATASHEET)


def hbm_roof(case: CaseValues, known: Roofs) -> Ceiling | None:
    """The HBM roof that a case is compared with: read bandwidth for a case that hardly writes, otherwise copy bandwidth.

    Read bandwidth is measured or absent: datasheets give one figure for both.
    """
    read, written = case.algorithm_bytes() or (None, None)
    reads = read and written and written.value <= _READS * (read.value + written.value)
    copy, alone = known("hbm"), known("hbm_read") if reads else None
    # A measurement of reading below that of copying was disturbed.
    return alone if alone and (copy is None or alone.value > copy.value) else copy


class OfRoof(NamedTuple):
    """The share ``fraction`` of a roof that a case reaches, and the roof's ``name`` (``measured copy bandwidth``).

    ``pipe`` is the pipe of the roof, empty for a bandwidth of HBM.
    """

    fraction: float
    name: str
    pipe: str


def of_roof(row: Mapping[str, Any], device: Device) -> OfRoof:
    """The share of its roof that a row of ``summary.summarise`` reaches, and the roof's name.

    The share is NaN where nothing was timed, the name empty where no cost is known.
    """
    fraction = float(row["floor_fraction"])
    rate = roof(device, str(row["pipe"])) if row["performance_fraction"] == fraction else None
    if rate:
        return OfRoof(fraction, f"{rate.origin} {rate.name} rate", rate.name)
    return OfRoof(fraction, bandwidth(device, str(row["memory_roof"])) if row["memory_roof"] else "", "")


def bandwidth(device: Device, name: str) -> str:
    """Name of an HBM roof with its origin: ``measured copy bandwidth``."""
    found = roof(device, name)
    origin = found.origin if found else ""
    kind = {"hbm": "copy ", "hbm_read": "read "}[name] if origin == MEASURED else ""
    return f"{origin} {kind}bandwidth"


def all_roofs(device: Device) -> pd.DataFrame:
    """A row for each roof: name, kind (``memory`` or ``compute``), value, unit, origin, note."""
    rows = [
        (c.name, "memory" if c.name in MEMORY_LEVELS else "compute", c.value, c.unit, c.origin, c.provenance)
        for c in device.ceilings
    ]
    return pd.DataFrame(rows, columns=["name", "kind", "value", "unit", "origin", "note"])


def pipe_of(case: CaseValues, kernels: Mapping[str, Mapping[str, object]] | None = None) -> str:
    """The pipe that bounds the case's arithmetic.

    A declared pipe comes first. Otherwise it is the tensor pipe of the dtype where counters or the compiler saw tensor work,
    or, without such evidence, where the arithmetic intensity is high. Otherwise it is the pipe of the CUDA cores.
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
