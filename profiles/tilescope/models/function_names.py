"""Readable names of GPU functions: the library, and the operation or the kernel's own name. Pure: text -> text."""

from __future__ import annotations

import re
from collections.abc import Iterable

#: An unnamed namespace as CUPTI's demangler writes it, and as Nsight Compute does.
_UNNAMED = r"(?:\(anonymous namespace\)|<unnamed>)::"
#: Libraries by patterns of their functions' names, the most specific first. Nsight Compute omits outer namespaces.
_LIBRARIES = (
    ("Inductor", re.compile(r"^triton_(?:poi|red|per|tem|for|mm|bmm)_")),
    ("cuDNN", re.compile(r"cudnn")),
    ("FlashAttention", re.compile(r"flash_(?:fwd|bwd)|Flash_(?:fwd|bwd)")),
    ("cuBLAS", re.compile(r"\bnvjet_|cublas|^sm\d+_xmma|cutlass_\d+_\w*gemm")),
    ("bitsandbytes", re.compile(r"^(?:void )?k(?:Dequantize|Quantize|gemm)\w*Blockwise|\bkgemm_4bit")),
    ("CUB", re.compile(r"\b(?:cub|at_cuda_detail)::|\b(?:radix_sort|reduce|scan|select)::Device\w+Kernel")),
    ("PyTorch", re.compile(rf"\bat::|\bc10::|\bnative::|^(?:void )?{_UNNAMED}")),
    ("CUDA", re.compile(r"^Mem(?:cpy|set)\b")),
)
#: PyTorch's general kernels. Their operation is among the template's arguments, the innermost last.
_REDUCES = "reduce_kernel"
GENERAL = {"vectorized_elementwise_kernel", "elementwise_kernel", "unrolled_elementwise_kernel", _REDUCES,
           "elementwise_kernel_with_index"}  # fmt: skip
_COMPUTES = re.compile(
    r"\b(?:CUDAFunctor(?:OnSelf)?_(\w+)|launch_(\w+)|(\w+?)_cuda_out\b|(\w+?)(?:_kernel(?:_cuda|_impl)?|_functor|Functor|Ops|CUDAKernelImpl|KernelImplInternal)\b)"
)
_WRAPPERS = {"Binary", "AUnary", "BUnary", "gpu", "Reduce", "gpu_kernel_impl"}
#: Parts of an operation's name that describe types, scalar arguments or the handling of NaN.
_INCIDENTAL = re.compile(r"^(?:b?float\d+|direct)_|(?:_tensor)?_scalar$|_nan$")
#: Functors that serve several operations: equal and not equal; less, greater and the like.
_SEVERAL = {"compare_eq": "equality comparison", "compare": "comparison"}
#: CUTLASS's kernels are all called ``Kernel`` or ``Kernel2``; the template's argument tells them apart.
_CUTLASS = re.compile(r"\bcutlass\w*::Kernel2?<(\w+)")


def library(function: str) -> str:
    """The library of a function: ``cuBLAS``, ``PyTorch``, …; empty for a person's own kernel."""
    return next((name for name, marks in _LIBRARIES if marks.search(function)), "")


def computes(function: str) -> str:
    """The operation of one of PyTorch's general kernels, as ``add`` or ``max reduction``; empty for other functions."""
    general = plain_name(function)
    if general not in GENERAL:
        return ""
    found = (next(filter(None, match.groups())) for match in _COMPUTES.finditer(function.partition("<")[2]))
    name = next((name for name in found if name not in _WRAPPERS and name not in GENERAL), "")
    name = _INCIDENTAL.sub("", re.sub(r"(?<=[a-z])(?=[A-Z])", "_", name).lower())
    return " ".join(filter(None, [_SEVERAL.get(name, name), "reduction" if name and general == _REDUCES else ""]))


def said(function: str) -> str:
    """The readable name: ``PyTorch add``, ``cuBLAS nvjet_…``, or the plain name of a person's own kernel."""
    made = _CUTLASS.search(function)
    return " ".join(
        filter(None, [library(function), computes(function) or (made[1] if made else plain_name(function))])
    )


def plain_name(function: str) -> str:
    """A kernel function's own name: ``at::native::reduce_kernel<512, …>(…)`` is ``reduce_kernel``."""
    bare = re.sub(rf"{_UNNAMED}|^void ", "", function)
    return re.split(r"[<(]", bare, maxsplit=1)[0].rpartition("::")[2].strip() or function


def labels(functions: Iterable[str]) -> dict[str, str]:
    """The readable name of each function, in the order given; equal names are numbered."""
    seen: dict[str, int] = {}
    found = {}
    for function in dict.fromkeys(functions):
        name = said(function)
        seen[name] = seen.get(name, 0) + 1
        found[function] = name if seen[name] == 1 else f"{name} ({seen[name]})"
    return found
