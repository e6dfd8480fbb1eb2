"""Quantization with one scale a tensor, ``quantize(x, dtype, "tensor")``, declared beside what it is compared with.

No code is known before every element has been read: what the caches cannot keep until then is read twice.
"""

from __future__ import annotations

import dataclasses

import torch

from tilescope_kernels.quantize import BLOCK_CONFIGS, _spec
from tilescope_kernels.spec import Cost, KernelSpec, Workload


def cost(workload: Workload, direction: str) -> Cost:
    """x read, codes and an fp32 scale written; one multiplication an element, two divisions.

    That x is read again is no part of the floor, for a cache can hold it: 16-bit elements that none holds take 5 bytes
    instead of 3, so at most 60 % of the roof. Nor are the magnitudes that programs hand on, 8 bytes each.
    """
    return Cost(
        flops=workload.elements + 2,
        bytes_read=workload.elements * workload.itemsize,
        bytes_written=workload.elements + 4,
    )


def _declared(name: str, dtype: torch.dtype, summary: str) -> KernelSpec:
    """As the other granularities, but for what it costs and how it is done."""
    spec = _spec(name, dtype, "tensor", summary, BLOCK_CONFIGS)
    ours = dataclasses.replace(
        spec.implementations["triton"], summary="the magnitude, then the codes: two reads, one write"
    )
    return dataclasses.replace(spec, cost=cost, implementations={**spec.implementations, "triton": ours})


INT8_TENSOR = _declared("int8_tensor", torch.int8, "INT8 codes and one scale")
FP8_TENSOR = _declared("fp8_tensor", torch.float8_e4m3fn, "FP8 codes and one scale")
