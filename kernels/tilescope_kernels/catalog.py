"""Every kernel by family, with the names that the package exports.

A new kernel is one file and one line of ``ENTRIES``. Importing this module imports neither torch nor triton: specs are
imported when ``FAMILIES`` or ``CATALOG`` is first read.
"""

from __future__ import annotations

import importlib
from typing import Any, NamedTuple, cast

from tilescope_kernels.spec import KernelSpec


class Entry(NamedTuple):
    """A module of the library. ``specs`` and ``exports`` are names in it, separated by spaces."""

    family: str
    module: str
    specs: str
    exports: str = ""


ENTRIES = (
    Entry("elementwise", "elementwise.vector_add", "SPEC", "vector_add"),
    Entry("elementwise", "elementwise.add_relu_mul", "SPEC", "add_relu_mul"),
    Entry("elementwise", "elementwise.gelu", "SPEC", "gelu"),
    Entry("elementwise", "elementwise.gated", "SWIGLU GEGLU", "swiglu geglu SwiGLUMLP"),
    Entry("elementwise", "elementwise.dropout", "SPEC", "dropout Dropout"),
    Entry("elementwise", "elementwise.rope", "SPEC", "rope RoPE"),
    Entry("reductions", "reductions.row_sum", "SPEC", "row_sum"),
    Entry("reductions", "reductions.online_max", "SPEC", "online_max"),
    Entry("reductions", "reductions.softmax", "SPEC", "softmax"),
    Entry("reductions", "reductions.histogram", "SPEC", "histogram histogram_naive"),
    Entry("norms", "norms.layer_norm", "SPEC", "layer_norm LayerNorm"),
    Entry("norms", "norms.rms_norm", "SPEC", "rms_norm RMSNorm"),
    Entry("norms", "norms.add_rms_norm", "SPEC", "add_rms_norm AddRMSNorm"),
    Entry("norms", "norms.group_norm", "SPEC", "group_norm GroupNorm"),
    Entry(
        "norms and linear layers",
        "norms.norm_linear",
        "LAYER_NORM_LINEAR RMS_NORM_GELU_LINEAR",
        "layer_norm_linear rms_norm_gelu_linear",
    ),
    Entry("losses", "losses.cross_entropy", "SPEC", "cross_entropy CrossEntropyLoss"),
    Entry("losses", "losses.linear_cross_entropy", "SPEC", "linear_cross_entropy LinearCrossEntropy"),
    Entry("matrix products", "matrix_products.matmul", "SPEC", "matmul"),
    Entry("matrix products", "matrix_products.fp8_matmul", "SPEC ROWS_SPEC BLOCKS_SPEC", "fp8_matmul"),
    Entry("matrix products", "matrix_products.int8_matmul", "SPEC ROWS_SPEC", "int8_matmul"),
    Entry("matrix products", "matrix_products.w8a16_matmul", "SPEC", "w8a16_matmul"),
    Entry("matrix products", "matrix_products.lora", "SPEC", "lora_linear"),
    Entry(
        "quantization",
        "quantization.quantize",
        "INT8_TENSOR FP8_TENSOR INT8_ROWS FP8_ROWS FP8_BLOCKS FP8_TILES",
        "quantize",
    ),
    Entry("quantization", "quantization.dequantize", "INT8 FP8", "dequantize"),
    Entry("quantization", "quantization.nf4", "SPEC", "nf4_dequantize nf4_quantize"),
    Entry("attention", "attention.attention", "SPEC CAUSAL_SPEC", "scaled_dot_product_attention"),
    Entry("attention", "attention.ragged", "SPEC", "ragged_attention"),
    Entry("attention", "attention.paged", "SPEC", "paged_attention"),
    Entry("convolution", "convolution.conv2d", "SPEC", "conv2d"),
    Entry("convolution", "convolution.depthwise_conv2d", "SPEC"),
    Entry("studies", "studies.tma_copy", "SPEC"),
    Entry("studies", "studies.strided_copy", "SPEC"),
    Entry("studies", "studies.block_reduction", "SPEC"),
    Entry("studies", "studies.compile_modes", "MODES REGIONS"),
)

#: The module of every exported name.
EXPORTS = {name: entry.module for entry in ENTRIES for name in entry.exports.split()}

#: The specs by family. Kernels of a family are recorded together and shown together.
FAMILIES: dict[str, tuple[KernelSpec, ...]]
#: Every spec, in the order of ``ENTRIES``.
CATALOG: tuple[KernelSpec, ...]


def find(name: str) -> KernelSpec | None:
    """The spec called ``name``, or None. Imports only as many modules as it takes to find it."""

    def likely(entry: Entry) -> bool:
        return name in (entry.module.rpartition(".")[2], *entry.exports.split())

    for entry in sorted(ENTRIES, key=likely, reverse=True):
        module = importlib.import_module(f"tilescope_kernels.{entry.module}")
        for spec in (getattr(module, variable) for variable in entry.specs.split()):
            if spec.name == name:
                return cast("KernelSpec", spec)
    return None


def __getattr__(name: str) -> Any:
    if name not in ("CATALOG", "FAMILIES"):
        raise AttributeError(f"module 'tilescope_kernels.catalog' has no attribute {name!r}")
    families: dict[str, tuple[KernelSpec, ...]] = {}
    for entry in ENTRIES:
        module = importlib.import_module(f"tilescope_kernels.{entry.module}")
        specs = tuple(getattr(module, spec) for spec in entry.specs.split())
        families[entry.family] = families.get(entry.family, ()) + specs
    globals().update(FAMILIES=families, CATALOG=tuple(spec for family in families.values() for spec in family))
    return globals()[name]
