"""The usual baseline of a kernel, which is what a user would otherwise call, and the names of implementations."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any

#: Implementations that may be PyTorch's own operator, then the composition of several, in order of preference.
_OPERATORS, _COMPOSED = ("aten", "cudnn", "fa2", "cublas"), ("eager", "compile")
#: The implementations' ``declarations`` by kernel.
Declared = Mapping[str, Mapping[str, str]]
#: Names of implementations whose declarations have none.
_NAMES = {"eager": "unfused", "compile": "torch.compile", "aten": "PyTorch"}
#: A declaration that names PyTorch's operator for the whole of the kernel, and one that calls such an operator.
_WHOLE, _CALLS = (
    re.compile(r"torch\.(?:nn\.functional\.)?(\w+)(?: \(\w+\))?"),
    re.compile(r"torch\.(?!compile)|PyTorch's"),
)


def usual(recorded: Iterable[str], declared: Mapping[str, str]) -> str:
    """PyTorch's own operator where it is ``recorded``, else the unfused composition, else ``compile``; empty without any.

    ``declared`` maps implementations to their declarations, as ``Run.kernels`` has them.
    """
    known = set(recorded)
    operators = (impl for impl in _OPERATORS if _CALLS.search(declared.get(impl, "")))
    return next((impl for impl in (*operators, "aten", *_COMPOSED) if impl in known), "")


def called(impl: str, declared: Mapping[str, str]) -> str:
    """``F.softmax``, ``unfused`` for a composition of operators, ``torch.compile``; other implementations by their own names.

    PyTorch's operator is ``PyTorch`` where its declaration names no operator for the whole of the kernel.
    """
    whole = _WHOLE.fullmatch(declared.get(impl, "")) if impl in (*_OPERATORS, "eager") else None
    if whole:
        return f"F.{whole[1]}" if "functional" in whole[0] else f"torch.{whole[1]}"
    return _NAMES.get(impl, impl)


def declarations(facts: Mapping[str, Any] | None) -> Mapping[str, str]:
    """The implementations' declarations in a kernel's ``Run.kernels`` entry."""
    return {name: said.get("summary", "") for name, said in (facts or {}).get("implementations", {}).items()}
