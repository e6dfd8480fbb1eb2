"""Names of GPU functions as people say them: the library, what it computes, and its kernel. Pure: text -> text."""

from __future__ import annotations

import re
from collections.abc import Iterable

#: Libraries by what their functions' names hold, the most telling first.
_LIBRARIES = (
    ("cuDNN", re.compile(r"cudnn")),
    ("FlashAttention", re.compile(r"flash_(?:fwd|bwd)|Flash_(?:fwd|bwd)")),
    ("cuBLAS", re.compile(r"\bnvjet_|cublas|^sm\d+_xmma|cutlass_\d+_\w*gemm")),
    ("Inductor", re.compile(r"^triton_(?:poi|red|per|tem|for|mm|bmm)_")),
    ("bitsandbytes", re.compile(r"^(?:void )?k(?:Dequantize|Quantize|gemm)\w*Blockwise|\bkgemm_4bit")),
    ("CUB", re.compile(r"\bcub::")),
    ("PyTorch", re.compile(r"\bat::|\bc10::|^(?:void )?\(anonymous namespace\)::")),
    ("CUDA", re.compile(r"^Mem(?:cpy|set)\b")),
)
#: What one of PyTorch's general kernels computes stands in its template's arguments, the innermost last.
_GENERAL = {"vectorized_elementwise_kernel", "elementwise_kernel", "unrolled_elementwise_kernel", "reduce_kernel",
            "elementwise_kernel_with_index"}  # fmt: skip
_COMPUTES = re.compile(
    r"\b(?:CUDAFunctor_(\w+)|(\w+?)_kernel_cuda\b|(\w+?)_kernel_impl\b|(\w+?)_cuda_out\b|(\w+?)(?:Functor|Ops)\b|(\w+?)_functor\b)"
)
_WRAPPERS = {"Binary", "AUnary", "BUnary", "gpu", "Reduce", "gpu_kernel_impl"}


def library(function: str) -> str:
    """The library that a function is of: ``cuBLAS``, ``PyTorch``, …; empty for a kernel of one's own."""
    return next((name for name, marks in _LIBRARIES if marks.search(function)), "")


def computes(function: str) -> str:
    """What a general kernel of PyTorch's is used for, as ``add`` or ``rsqrt``; empty where its name says it itself, or not."""
    if plain_name(function) not in _GENERAL:
        return ""
    found = (next(filter(None, match.groups())) for match in _COMPUTES.finditer(function))
    name = next((name for name in found if name not in _WRAPPERS), "")
    name = re.sub(r"^float8_|^bfloat16_|^direct_", "", name)
    return name[:1].lower() + name[1:]


def said(function: str) -> str:
    """``PyTorch add``, ``cuBLAS nvjet_…``, or the plain name of one's own."""
    return " ".join(filter(None, [library(function), computes(function) or plain_name(function)]))


def plain_name(function: str) -> str:
    """A kernel function's own name: ``at::native::reduce_kernel<512, …>(…)`` is ``reduce_kernel``."""
    bare = re.sub(r"\(anonymous namespace\)::|^void ", "", function)
    return re.split(r"[<(]", bare, maxsplit=1)[0].rpartition("::")[2].strip() or function


def labels(functions: Iterable[str]) -> dict[str, str]:
    """What each function is called (``said``), numbered where several are called alike, in the order given."""
    seen: dict[str, int] = {}
    found = {}
    for function in dict.fromkeys(functions):
        name = said(function)
        seen[name] = seen.get(name, 0) + 1
        found[function] = name if seen[name] == 1 else f"{name} ({seen[name]})"
    return found
