"""GemLite's products with weights of four bits (``gemlite``)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from benchmarks.foreign_kernels import Entry, attribute

_IN, _OUT, _GROUP = 1024, 64, 64


def _given(rows: int) -> Callable[[], tuple[Any, ...]]:
    def given() -> tuple[Any, ...]:
        types = attribute("gemlite.core:DType")
        weights = torch.randint(0, 15, (_OUT, _IN), dtype=torch.uint8, device="cuda")
        scales = torch.rand(_OUT * _IN // _GROUP, 1, dtype=torch.float16, device="cuda") * 0.1
        zeros = torch.full_like(scales, 7)
        layer = attribute("gemlite.core:GemLiteLinearTriton")(
            4, group_size=_GROUP, in_features=_IN, out_features=_OUT, input_dtype=types.FP16, output_dtype=types.FP16
        )
        layer.pack(weights, scales, zeros, bias=None, fma_mode=False)
        return layer, torch.randn(rows, _IN, dtype=torch.float16, device="cuda"), weights, scales, zeros

    return given


def _product(
    _layer: Any, x: torch.Tensor, weights: torch.Tensor, scales: torch.Tensor, zeros: torch.Tensor
) -> torch.Tensor:
    groups = weights.float().view(-1, _GROUP)
    return x.float() @ ((groups - zeros.float()) * scales.float()).view(_OUT, _IN).T


def _called(kind: str) -> Callable[..., Any]:
    return lambda layer, x, *_: layer.forward_manual(x, matmul_type=kind)


ENTRIES = [
    Entry("gemlite", kind, _given(rows), _called(kind), _product, allowed=4e-3)
    for kind, rows in (("GEMM", 32), ("GEMM_SPLITK", 16), ("GEMV", 1), ("GEMV_SPLITK", 1), ("GEMV_REVSPLITK", 1))
]
