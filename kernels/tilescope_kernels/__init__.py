"""Triton kernels that are callable as ordinary functions, each with the facts that explain its speed.

``CATALOG`` lists every kernel's ``KernelSpec``, ``FAMILIES`` the same in groups. ``TILESCOPE_USE_TRITON=0`` routes every function to plain PyTorch.
"""

from tilescope_kernels import studies as _studies
from tilescope_kernels.attention import attention as _attention
from tilescope_kernels.convolution import conv2d as _conv2d
from tilescope_kernels.elementwise import add_relu_mul as _add_relu_mul
from tilescope_kernels.elementwise import gated as _gated
from tilescope_kernels.elementwise import gelu as _gelu
from tilescope_kernels.elementwise import rope as _rope
from tilescope_kernels.elementwise import vector_add as _vector_add
from tilescope_kernels.losses import cross_entropy as _cross_entropy
from tilescope_kernels.losses import linear_cross_entropy as _linear_cross_entropy
from tilescope_kernels.matrix_products import fp8_matmul as _fp8_matmul
from tilescope_kernels.matrix_products import int8_matmul as _int8_matmul
from tilescope_kernels.matrix_products import lora as _lora
from tilescope_kernels.matrix_products import matmul as _matmul
from tilescope_kernels.matrix_products import w8a16_matmul as _w8a16_matmul
from tilescope_kernels.norms import add_rms_norm as _add_rms_norm
from tilescope_kernels.norms import layer_norm as _layer_norm
from tilescope_kernels.norms import norm_linear as _norm_linear
from tilescope_kernels.norms import rms_norm as _rms_norm
from tilescope_kernels.quantization import dequantize as _dequantize
from tilescope_kernels.quantization import nf4 as _nf4
from tilescope_kernels.quantization import quantize as _quantize
from tilescope_kernels.reductions import histogram as _histogram
from tilescope_kernels.reductions import online_max as _online_max
from tilescope_kernels.reductions import row_sum as _row_sum
from tilescope_kernels.reductions import softmax as _softmax
from tilescope_kernels.spec import KernelSpec

#: The library by families, which are recorded together and shown together.
FAMILIES: dict[str, tuple[KernelSpec, ...]] = {
    "elementwise": (
        _vector_add.SPEC, _add_relu_mul.SPEC, _gelu.SPEC, _gated.SWIGLU, _gated.GEGLU, _rope.SPEC,
    ),
    "reductions": (_row_sum.SPEC, _online_max.SPEC, _softmax.SPEC, _histogram.SPEC),
    "norms": (_layer_norm.SPEC, _rms_norm.SPEC, _add_rms_norm.SPEC),
    "norms and linear layers": (_norm_linear.LAYER_NORM_LINEAR, _norm_linear.RMS_NORM_GELU_LINEAR),
    "losses": (_cross_entropy.SPEC, _linear_cross_entropy.SPEC),
    "matrix products": (
        _matmul.SPEC, _fp8_matmul.SPEC, _fp8_matmul.ROWS_SPEC, _fp8_matmul.BLOCKS_SPEC, _int8_matmul.SPEC,
        _int8_matmul.ROWS_SPEC, _w8a16_matmul.SPEC, _lora.SPEC,
    ),
    "quantization": (
        _quantize.INT8_TENSOR, _quantize.FP8_TENSOR, _quantize.INT8_ROWS, _quantize.FP8_ROWS, _quantize.FP8_BLOCKS,
        _quantize.FP8_TILES, _dequantize.INT8, _dequantize.FP8, _nf4.SPEC,
    ),
    "attention": (_attention.SPEC, _attention.CAUSAL_SPEC),
    "convolution": (_conv2d.SPEC,),
    "studies": _studies.SPECS,
}  # fmt: skip
CATALOG: tuple[KernelSpec, ...] = tuple(spec for family in FAMILIES.values() for spec in family)

# After the modules of the same names: from here on, tilescope_kernels.softmax is the function.
vector_add = _vector_add.vector_add
add_relu_mul = _add_relu_mul.add_relu_mul
gelu = _gelu.gelu
swiglu = _gated.swiglu
geglu = _gated.geglu
SwiGLUMLP = _gated.SwiGLUMLP
rope = _rope.rope
RoPE = _rope.RoPE
row_sum = _row_sum.row_sum
online_max = _online_max.online_max
histogram = _histogram.histogram
histogram_naive = _histogram.histogram_naive
softmax = _softmax.softmax
layer_norm = _layer_norm.layer_norm
LayerNorm = _layer_norm.LayerNorm
rms_norm = _rms_norm.rms_norm
RMSNorm = _rms_norm.RMSNorm
add_rms_norm = _add_rms_norm.add_rms_norm
AddRMSNorm = _add_rms_norm.AddRMSNorm
cross_entropy = _cross_entropy.cross_entropy
CrossEntropyLoss = _cross_entropy.CrossEntropyLoss
linear_cross_entropy = _linear_cross_entropy.linear_cross_entropy
LinearCrossEntropy = _linear_cross_entropy.LinearCrossEntropy
matmul = _matmul.matmul
conv2d = _conv2d.conv2d
layer_norm_linear = _norm_linear.layer_norm_linear
rms_norm_gelu_linear = _norm_linear.rms_norm_gelu_linear
quantize = _quantize.quantize
dequantize = _dequantize.dequantize
fp8_matmul = _fp8_matmul.fp8_matmul
w8a16_matmul = _w8a16_matmul.w8a16_matmul
lora_linear = _lora.lora_linear
int8_matmul = _int8_matmul.int8_matmul
nf4_dequantize = _nf4.nf4_dequantize
nf4_quantize = _nf4.nf4_quantize
scaled_dot_product_attention = _attention.scaled_dot_product_attention

__all__ = [
    "CATALOG",
    "FAMILIES",
    "AddRMSNorm",
    "CrossEntropyLoss",
    "LayerNorm",
    "LinearCrossEntropy",
    "RMSNorm",
    "RoPE",
    "SwiGLUMLP",
    "add_relu_mul",
    "add_rms_norm",
    "conv2d",
    "cross_entropy",
    "dequantize",
    "fp8_matmul",
    "geglu",
    "gelu",
    "histogram",
    "histogram_naive",
    "int8_matmul",
    "layer_norm",
    "layer_norm_linear",
    "linear_cross_entropy",
    "lora_linear",
    "matmul",
    "nf4_dequantize",
    "nf4_quantize",
    "online_max",
    "quantize",
    "rms_norm",
    "rms_norm_gelu_linear",
    "rope",
    "row_sum",
    "scaled_dot_product_attention",
    "softmax",
    "swiglu",
    "vector_add",
    "w8a16_matmul",
]
