"""Triton kernels as ordinary PyTorch functions, each declared by a ``KernelSpec``: reference, cost, sizes, tolerances.

``CATALOG`` has every spec, ``FAMILIES`` the same specs by family. Names are imported on first use: importing the package
imports neither torch nor triton. With ``TILESCOPE_USE_TRITON=0`` every function runs its PyTorch reference.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from tilescope_kernels import catalog

if TYPE_CHECKING:
    # For editors and type checkers, which cannot evaluate the catalog. A test compares the two.
    from tilescope_kernels.attention.attention import scaled_dot_product_attention as scaled_dot_product_attention
    from tilescope_kernels.attention.paged import paged_attention as paged_attention
    from tilescope_kernels.attention.ragged import ragged_attention as ragged_attention
    from tilescope_kernels.catalog import CATALOG as CATALOG
    from tilescope_kernels.catalog import FAMILIES as FAMILIES
    from tilescope_kernels.convolution.conv2d import conv2d as conv2d
    from tilescope_kernels.elementwise.add_relu_mul import add_relu_mul as add_relu_mul
    from tilescope_kernels.elementwise.dropout import Dropout as Dropout
    from tilescope_kernels.elementwise.dropout import dropout as dropout
    from tilescope_kernels.elementwise.gated import SwiGLUMLP as SwiGLUMLP
    from tilescope_kernels.elementwise.gated import geglu as geglu
    from tilescope_kernels.elementwise.gated import swiglu as swiglu
    from tilescope_kernels.elementwise.gelu import gelu as gelu
    from tilescope_kernels.elementwise.rope import RoPE as RoPE
    from tilescope_kernels.elementwise.rope import rope as rope
    from tilescope_kernels.elementwise.vector_add import vector_add as vector_add
    from tilescope_kernels.losses.cross_entropy import CrossEntropyLoss as CrossEntropyLoss
    from tilescope_kernels.losses.cross_entropy import cross_entropy as cross_entropy
    from tilescope_kernels.losses.linear_cross_entropy import LinearCrossEntropy as LinearCrossEntropy
    from tilescope_kernels.losses.linear_cross_entropy import linear_cross_entropy as linear_cross_entropy
    from tilescope_kernels.matrix_products.fp8_matmul import fp8_matmul as fp8_matmul
    from tilescope_kernels.matrix_products.int8_matmul import int8_matmul as int8_matmul
    from tilescope_kernels.matrix_products.lora import lora_linear as lora_linear
    from tilescope_kernels.matrix_products.matmul import matmul as matmul
    from tilescope_kernels.matrix_products.w8a16_matmul import w8a16_matmul as w8a16_matmul
    from tilescope_kernels.norms.add_rms_norm import AddRMSNorm as AddRMSNorm
    from tilescope_kernels.norms.add_rms_norm import add_rms_norm as add_rms_norm
    from tilescope_kernels.norms.group_norm import GroupNorm as GroupNorm
    from tilescope_kernels.norms.group_norm import group_norm as group_norm
    from tilescope_kernels.norms.layer_norm import LayerNorm as LayerNorm
    from tilescope_kernels.norms.layer_norm import layer_norm as layer_norm
    from tilescope_kernels.norms.norm_linear import layer_norm_linear as layer_norm_linear
    from tilescope_kernels.norms.norm_linear import rms_norm_gelu_linear as rms_norm_gelu_linear
    from tilescope_kernels.norms.rms_norm import RMSNorm as RMSNorm
    from tilescope_kernels.norms.rms_norm import rms_norm as rms_norm
    from tilescope_kernels.quantization.dequantize import dequantize as dequantize
    from tilescope_kernels.quantization.nf4 import nf4_dequantize as nf4_dequantize
    from tilescope_kernels.quantization.nf4 import nf4_quantize as nf4_quantize
    from tilescope_kernels.quantization.quantize import quantize as quantize
    from tilescope_kernels.reductions.histogram import histogram as histogram
    from tilescope_kernels.reductions.histogram import histogram_naive as histogram_naive
    from tilescope_kernels.reductions.online_max import online_max as online_max
    from tilescope_kernels.reductions.row_sum import row_sum as row_sum
    from tilescope_kernels.reductions.softmax import softmax as softmax
    from tilescope_kernels.warming import warm as warm

_MODULES = {"CATALOG": "catalog", "FAMILIES": "catalog", "warm": "warming", **catalog.EXPORTS}
__all__ = list(_MODULES)


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module 'tilescope_kernels' has no attribute {name!r}")
    value = getattr(importlib.import_module(f"tilescope_kernels.{_MODULES[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
