"""Quantization with one scale a tensor, ``quantize(x, dtype, "tensor")``, declared beside what it is compared with.

No code is known before every element has been read: what the caches cannot keep until then is read twice.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch

from tilescope_kernels._declare import compiled
from tilescope_kernels.quantize import BLOCK_CONFIGS, TARGETS, inputs, quantize, reference, unfused, workloads
from tilescope_kernels.spec import Cost, Implementation, KernelSpec, Workload


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


def _spec(name: str, dtype: torch.dtype, summary: str) -> KernelSpec:
    def fused(x: torch.Tensor, config: Mapping[str, int] | None = None) -> tuple[torch.Tensor, torch.Tensor]:
        return quantize(x, dtype, "tensor", config=config)

    def eager(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return unfused(x, dtype, "tensor")

    def precise(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """``reference``; beside fp64 inputs, codes as numbers, because PyTorch compares no FP8 with fp64."""
        q, scale = reference(x, dtype, "tensor")
        return q.to(x.dtype) if x.dtype == torch.float64 else q, scale

    return KernelSpec(
        name=name,
        summary=summary,
        dims=("rows", "columns"),
        implementations={
            "triton": Implementation(fused, "the magnitude, then the codes: two reads, one write", BLOCK_CONFIGS),
            "eager": Implementation(eager, "magnitude, maximum, scaling and rounding, one after the other"),
            "compile": Implementation(compiled(eager), "torch.compile of eager"),
        },
        reference=precise,
        inputs=inputs,
        workloads=workloads("fp32"),
        cost=cost,
        # As of the other granularities: a few numbers lie so near to the middle of two codes that another precision
        # picks the other one.
        tolerance=dict.fromkeys(("fp32", "fp16", "bf16"), 2e-3 if dtype == torch.int8 else 1e-2),
        targets=TARGETS[dtype],
    )


INT8_TENSOR = _spec("int8_tensor", torch.int8, "INT8 codes and one scale")
FP8_TENSOR = _spec("fp8_tensor", torch.float8_e4m3fn, "FP8 codes and one scale")
