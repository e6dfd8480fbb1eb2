"""Datasheet roofs: the peak rates that NVIDIA states. ``execution.measured_rates`` measures what a GPU reaches.

Rates are dense (without structured sparsity); those of tensor cores are with fp32 accumulation (int32 for int8). A rate that
the document does not state is absent. Imports neither torch nor triton.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from tilescope.table.run import Ceiling

MEASURED, DATASHEET = "measured", "datasheet"

#: Memory levels, outermost first; every other name of a ceiling is a pipe. ``hbm_read`` is the read-only roof.
MEMORY_LEVELS = ("hbm", "hbm_read", "l2", "l1")
#: Pipes that no plain program comes near, so that the datasheet's rate is their roof: Triton's int8 product is 1.4 times as fast as
#: ``torch._int_mm``.
UNREACHED = ("int8",)


@dataclass(frozen=True)
class Product:
    """A GPU product. ``name`` is the one that the driver reports.

    ``bandwidth`` maps a memory level to byte/second and ``peaks`` a pipe to operations a second, both from ``document``.
    ``notes`` qualify a rate by its name.
    """

    name: str
    target: str
    multiprocessors: int
    l2_bytes: int
    memory_bytes: int
    bandwidth: Mapping[str, float]
    peaks: Mapping[str, float]
    document: str
    notes: Mapping[str, str] = field(default_factory=dict)

    @property
    def ceilings(self) -> tuple[Ceiling, ...]:
        """The product's roofs. Each notes the document."""
        return tuple(
            Ceiling(
                name, value, unit(name), DATASHEET, "; ".join(filter(None, [self.document, self.notes.get(name, "")]))
            )
            for name, value in (*self.bandwidth.items(), *self.peaks.items())
        )


def unit(name: str) -> str:
    """The unit of a roof: byte/second of a memory level, op/second of an integer pipe, flop/second of any other."""
    if name in MEMORY_LEVELS:
        return "byte/second"
    return "op/second" if name.startswith("int") else "flop/second"


def _tera(**values: float) -> dict[str, float]:
    return {name: value * 1e12 for name, value in values.items()}


_HOPPER_PEAKS = _tera(fp64=67, fp32=67, tf32=494.7, bf16=989.4, fp16=989.4, fp8=1978.9, int8=1978.9)
_HALF_OF_SPARSE = "the sheet's sparse rate, halved"
_HOPPER_NOTES = {
    "fp64": "tensor cores; CUDA cores reach 34 Tflop/s",
    **dict.fromkeys(("tf32", "bf16", "fp16", "fp8", "int8"), _HALF_OF_SPARSE),
}

#: Every known product. The first of a target stands for it where there is no GPU.
PRODUCTS = (
    Product(
        "NVIDIA A100-SXM4-80GB", "sm_80", 108, 40 * 2**20, 80 * 10**9,
        _tera(hbm=2.039, l2=7.219),
        _tera(fp64=19.5, fp32=19.5, tf32=156, bf16=312, fp16=312, int8=624),
        "NVIDIA A100 80GB datasheet (2021)",
        {"fp64": "tensor cores; CUDA cores reach 9.7 Tflop/s",
         "l2": "reads: 5120 bytes a clock at 1.41 GHz, NVIDIA A100 architecture whitepaper (2020)"},
    ),
    Product(
        "NVIDIA GeForce RTX 3090", "sm_86", 82, 6 * 2**20, 24 * 2**30,
        _tera(hbm=0.936),
        _tera(fp32=35.6, tf32=35.6, bf16=71, fp16=71, int8=284),
        "NVIDIA Ampere GA102 architecture whitepaper (2021)",
        {"fp16": "142 Tflop/s with fp16 accumulation"},
    ),
    Product(
        "NVIDIA L40S", "sm_89", 142, 96 * 2**20, 48 * 2**30,
        _tera(hbm=0.864),
        _tera(fp32=91.6, tf32=183, bf16=362.05, fp16=362.05, fp8=733, int8=733),
        "NVIDIA L40S datasheet (2023)",
    ),
    Product(
        "NVIDIA H200", "sm_90", 132, 60 * 2**20, 141 * 10**9,
        _tera(hbm=4.8), _HOPPER_PEAKS, "NVIDIA H200 datasheet (2024)", _HOPPER_NOTES,
    ),
    Product(
        "NVIDIA H100 80GB HBM3", "sm_90", 132, 50 * 2**20, 80 * 10**9,
        _tera(hbm=3.35), _HOPPER_PEAKS, "NVIDIA H100 datasheet, SXM (2023)", _HOPPER_NOTES,
    ),
    Product(
        "NVIDIA B200", "sm_100", 148, 126 * 2**20, 180 * 10**9,
        _tera(hbm=8.0),
        _tera(fp64=40, fp32=80, tf32=1100, bf16=2250, fp16=2250, fp8=4500, int8=4500),
        "NVIDIA Blackwell architecture technical brief, HGX B200 (2024)",
        dict.fromkeys(("tf32", "bf16", "fp16", "fp8", "int8"), _HALF_OF_SPARSE),
    ),
    Product(
        "NVIDIA GeForce RTX 5090", "sm_120", 170, 96 * 2**20, 32 * 2**30,
        _tera(hbm=1.792),
        _tera(fp32=104.8, tf32=104.8, bf16=209.5, fp16=209.5, fp8=419, int8=838),
        "NVIDIA RTX Blackwell GPU architecture whitepaper (2025)",
        {"fp8": "838 Tflop/s with fp16 accumulation", "fp16": "419 Tflop/s with fp16 accumulation"},
    ),
)  # fmt: skip


def product(name: str) -> Product | None:
    """The product whose driver reports ``name``, or None. A ``RTX 3090 Ti`` is not a ``RTX 3090``."""
    return next((p for p in PRODUCTS if p.name == name), None)


def product_for(target: str) -> Product:
    """The product that stands for a target such as ``sm_90``. Raises ValueError naming the known targets."""
    for known in PRODUCTS:
        if known.target == target:
            return known
    raise ValueError(f"unknown target {target!r}: use one of {', '.join(targets())}")


def targets() -> tuple[str, ...]:
    """Every target with a known product, in order."""
    return tuple(dict.fromkeys(p.target for p in PRODUCTS))


def datasheet(name: str) -> tuple[Ceiling, ...]:
    """Roofs of the device that reports ``name``; empty for an unlisted product."""
    known = product(name)
    return known.ceilings if known else ()
