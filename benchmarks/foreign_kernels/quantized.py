"""torchao's kernels in Triton (``torchao``), and PyTorch's own for block-sparse matrices, which came from there."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import triton

from benchmarks.foreign_kernels import Entry, drawn, first, late

_FP8 = torch.float8_e4m3fn


def _function(path: str) -> Callable[..., Any]:
    return late(f"torchao.{path}")


def _bytes() -> torch.Tensor:
    return torch.randint(-128, 127, (64, 64), dtype=torch.int8, device="cuda")


def _codes(*shape: int) -> torch.Tensor:
    return drawn(*shape, gradient=False).to(_FP8)


def _scales(*shape: int) -> torch.Tensor:
    return torch.rand(*shape, device="cuda")


def _whole_numbers(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    return (a.cpu().int() @ b.cpu().int()).to(a.device)


def _int_product(a: torch.Tensor, b: torch.Tensor) -> Any:
    blocks = {"BLOCK_M": 64, "BLOCK_N": 64, "BLOCK_K": 32, "GROUP_M": 8}
    out = torch.empty(64, 64, dtype=torch.int32, device=a.device)
    config = triton.Config(blocks, num_warps=4, num_stages=3)
    return _function("kernel.intmm_triton:int_matmul_kernel")(a, b, out, config)


def _sparse() -> tuple[torch.Tensor, ...]:
    kept = (torch.rand(4, 4, device="cuda") > 0.5).half().repeat_interleave(16, 0).repeat_interleave(16, 1)
    blocks = (torch.randn(64, 64, device="cuda").half() * kept).to_sparse_bsr((16, 16))
    return blocks, torch.randn(64, 64, device="cuda").half()


def _bf16(*shape: int) -> torch.Tensor:
    return drawn(*shape, dtype=torch.bfloat16, gradient=False)


_BLOCKS = "kernel.blockwise_quantization"
_TENSORWISE = "prototype.float8nocompile.kernels.fp8_dynamic_tensorwise"

ENTRIES = [
    Entry("torchao", "int_matmul", lambda: (_bytes(), _bytes()), _int_product, _whole_numbers, allowed=0.0),
    Entry("torchao", "blockwise_fp8_gemm", lambda: (_codes(32, 128), _scales(32, 1), _codes(128, 128), _scales(1, 1)),
          _function(f"{_BLOCKS}:blockwise_fp8_gemm"),
          lambda a, s, b, t: (a.float() * s) @ (b.float() * t).T, allowed=4e-3),
    Entry("torchao", "fp8_blockwise_act_quant", lambda: (_bf16(32, 256),),
          lambda x: first(_function(f"{_BLOCKS}:fp8_blockwise_act_quant")(x, 128))),
    Entry("torchao", "fp8_blockwise_weight_quant", lambda: (_bf16(256, 256),),
          lambda x: first(_function(f"{_BLOCKS}:fp8_blockwise_weight_quant")(x, 128))),
    Entry("torchao", "fp8_blockwise_weight_dequant", lambda: (_codes(256, 256), _scales(2, 2)),
          lambda x, s: _function(f"{_BLOCKS}:fp8_blockwise_weight_dequant")(x, s, 128),
          lambda x, s: x.float() * s.repeat_interleave(128, 0).repeat_interleave(128, 1)),
    Entry("torchao", "bsr_dense_mm", _sparse, late("torch.sparse._triton_ops:bsr_dense_mm"),
          lambda a, b: a.to_dense().float() @ b.float(), allowed=1e-3),
    Entry("torchao", "scaled_int8_mm", lambda: (_bytes(), _bytes(), _scales(64), _scales(64)),
          _function("prototype.quantized_training.int8_mm:scaled_int8_mm_cuda"),
          lambda a, b, s, t: _whole_numbers(a, b).float() * s[:, None] * t),
    Entry("torchao", "hp_to_fp8_row_major", lambda: (_bf16(64, 64),),
          lambda x: first(_function(f"{_TENSORWISE}:hp_to_fp8_row_major")(
              x, _FP8, _function("float8.float8_training_tensor:LinearMMConfig")()))),
]  # fmt: skip
