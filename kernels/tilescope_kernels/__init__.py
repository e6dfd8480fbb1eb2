"""Triton kernels that are callable as ordinary functions, each with the facts that explain its speed.

``CATALOG`` lists every kernel's ``KernelSpec``. ``TILESCOPE_USE_TRITON=0`` routes every function to plain PyTorch.
"""

from tilescope_kernels import add_relu_mul as _add_relu_mul
from tilescope_kernels import add_rms_norm as _add_rms_norm
from tilescope_kernels import layer_norm as _layer_norm
from tilescope_kernels import matmul as _matmul
from tilescope_kernels import softmax as _softmax
from tilescope_kernels import vector_add as _vector_add
from tilescope_kernels.spec import KernelSpec

CATALOG: tuple[KernelSpec, ...] = (
    _vector_add.SPEC,
    _add_relu_mul.SPEC,
    _softmax.SPEC,
    _layer_norm.SPEC,
    _add_rms_norm.SPEC,
    _matmul.SPEC,
)

# After the modules of the same names: from here on, tilescope_kernels.softmax is the function.
vector_add = _vector_add.vector_add
add_relu_mul = _add_relu_mul.add_relu_mul
softmax = _softmax.softmax
layer_norm = _layer_norm.layer_norm
LayerNorm = _layer_norm.LayerNorm
add_rms_norm = _add_rms_norm.add_rms_norm
AddRMSNorm = _add_rms_norm.AddRMSNorm
matmul = _matmul.matmul

__all__ = [
    "CATALOG",
    "AddRMSNorm",
    "LayerNorm",
    "add_relu_mul",
    "add_rms_norm",
    "layer_norm",
    "matmul",
    "softmax",
    "vector_add",
]
