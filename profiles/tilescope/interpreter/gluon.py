"""Triton's language in place of Gluon's, for kernels whose layouts do not change what they compute. Imports triton.

Gluon's functions on blocks take layouts, which say where elements are. Here they are left out. Shared memory, barriers, asynchronous
copies and warp specialization are not interpreted.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import triton.language as tl
from triton.experimental.gluon.language import _layouts

from tilescope.interpreter.blocks import NotServed

#: Functions that are Triton's but for their layout, and those that only change a layout.
_ALIKE = frozenset({
    "arange", "full", "zeros", "zeros_like", "full_like", "load", "store", "program_id", "num_programs", "where", "maximum", "minimum",
    "sum", "max", "min", "xor_sum", "reduce", "associative_scan", "expand_dims", "broadcast", "reshape", "permute", "join", "split", "cast",
    "atomic_add", "atomic_and", "atomic_cas", "atomic_max", "atomic_min", "atomic_or", "atomic_xchg", "atomic_xor", "cdiv",
    "exp", "exp2", "fma", "log", "log2", "cos", "rsqrt", "sin", "sqrt", "sqrt_rn", "abs", "fdiv", "div_rn", "erf", "floor", "ceil", "umulhi",
    "assume", "multiple_of", "max_contiguous", "static_assert", "static_range", "constexpr", "tensor", "dtype", "tuple", "to_tensor",
    "device_assert",
})  # fmt: skip
_SAME = frozenset({"convert_layout", "set_auto_layout"})


class Language:
    """Stands for ``triton.experimental.gluon.language`` in a kernel that is interpreted. Raises NotServed for other functions."""

    def __getattr__(self, name: str) -> Any:
        if name in _SAME:
            return lambda block, *_, **__: block
        if hasattr(_layouts, name):
            return getattr(_layouts, name)
        theirs = getattr(tl, name, None)
        if isinstance(theirs, tl.dtype):
            return theirs
        if name not in _ALIKE or theirs is None:
            raise NotServed(f"{name} of Gluon is not interpreted: time it on a GPU")
        return _without_layout(theirs) if callable(theirs) and not isinstance(theirs, type) else theirs


def _without_layout(function: Callable[..., Any]) -> Callable[..., Any]:
    def called(*args: Any, layout: Any = None, **kwargs: Any) -> Any:
        kept = [one for one in args if type(one).__module__ != _layouts.__name__]
        return function(*kept, **kwargs)

    return called
