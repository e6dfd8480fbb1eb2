"""The functions of NVIDIA's libdevice in NumPy, or in PyTorch where NumPy lacks them.

``triton.language.extra.libdevice`` calls them by symbol, as ``__nv_tanhf``. They are defined by the CUDA Math API.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch.utils._python_dispatch import _disable_current_modes

Array = npt.NDArray[Any]


def function(symbol: str) -> Callable[..., Array] | None:
    """The function of a symbol, on arrays; None for an unknown symbol."""
    return _FUNCTIONS.get(_stem(symbol))


def selects(symbol: str) -> bool:
    """Whether a function only selects, rounds or reinterprets, which does not count as a floating-point operation."""
    return _stem(symbol) in _SELECTS


def _stem(symbol: str) -> str:
    """The name in the table, without type (``tanhf``, ``dadd``), ``fast_`` or rounding to nearest."""
    name = symbol.removeprefix("__nv_")
    whole = re.fullmatch(r"(?:float|double)2u?(?:int|ll)_(r[nzdu])", name)
    if whole is not None:
        return _ROUNDINGS[whole[1]]
    rounded = re.fullmatch(r"(fma)f?_rn|[fd](\w+)_rn", name)
    if rounded is not None:
        return rounded[1] or rounded[2]
    short = name.removeprefix("fast_")
    return next((stem for stem in (name, short, short.removesuffix("f")) if stem in _FUNCTIONS), name)


def _torch(compute: Callable[..., torch.Tensor]) -> Callable[..., Array]:
    def computed(*arrays: Array) -> Array:
        # Asked for amid a launch, it is no operation of the program's: whoever counts those is not to see it.
        with _disable_current_modes():
            result: Array = compute(*(torch.from_numpy(np.array(array)) for array in arrays)).numpy()
        return result

    return computed


def _rounded_away(x: Array) -> Array:
    """``round``: ties away from zero. It does not add 0.5, which could change large integers."""
    whole = np.trunc(x)
    rounded: Array = whole + np.copysign(np.abs(x - whole) >= 0.5, x)
    return rounded


erf = _torch(torch.special.erf)
_FUNCTIONS: dict[str, Callable[..., Array]] = {
    **{name: getattr(np, name) for name in ("sin", "cos", "tan", "sinh", "cosh", "tanh", "hypot", "exp", "exp2")},
    **{name: getattr(np, name) for name in ("expm1", "log", "log2", "log10", "log1p", "sqrt", "cbrt", "floor", "ceil")},
    **{name: getattr(np, name) for name in ("trunc", "rint", "copysign", "fmod", "nextafter", "ldexp", "signbit")},
    **{f"a{name}": getattr(np, f"arc{name}") for name in ("sin", "cos", "tan", "sinh", "cosh", "tanh")},
    **{name: _torch(getattr(torch.special, name)) for name in ("erfc", "erfinv", "erfcx")},
    "erf": erf,
    **{name: _torch(getattr(torch.special, f"bessel_{name}")) for name in ("j0", "j1", "y0", "y1")},
    "cyl_bessel_i0": _torch(torch.special.i0),
    "cyl_bessel_i1": _torch(torch.special.i1),
    "lgamma": _torch(torch.lgamma),
    "normcdf": _torch(torch.special.ndtr),
    "normcdfinv": _torch(torch.special.ndtri),
    "atan2": np.arctan2,
    "exp10": lambda x: np.power(x.dtype.type(10), x),
    **dict.fromkeys(("pow", "powi"), np.power),
    "rsqrt": lambda x: 1 / np.sqrt(x),
    "rcbrt": lambda x: 1 / np.cbrt(x),
    "rhypot": lambda x, y: 1 / np.hypot(x, y),
    "rcp": lambda x: 1 / x,
    "add": np.add,
    "sub": np.subtract,
    "mul": np.multiply,
    **dict.fromkeys(("div", "fdivide"), np.divide),
    "fma": lambda x, y, z: x * y + z,
    "fdim": lambda x, y: np.maximum(x - y, 0),
    "remainder": lambda x, y: x - np.rint(x / y) * y,
    "saturatef": lambda x: np.fmin(np.fmax(x, 0), 1),
    "sinpi": lambda x: np.sin(np.pi * x),
    "cospi": lambda x: np.cos(np.pi * x),
    **dict.fromkeys(("abs", "llabs", "fabs"), np.abs),
    **dict.fromkeys(("nearbyint", "llrint"), np.rint),
    **dict.fromkeys(("round", "llround"), _rounded_away),
    **dict.fromkeys(("isnanf", "isnand"), np.isnan),
    **dict.fromkeys(("isinff", "isinfd"), np.isinf),
    **dict.fromkeys(("finitef", "isfinited"), np.isfinite),
    **dict.fromkeys(("signbitf", "signbitd"), np.signbit),
    **dict.fromkeys(("popc", "popcll"), np.bitwise_count),
    **dict.fromkeys(("float_as_int", "float_as_uint"), lambda x: x.view(np.int32)),
    **dict.fromkeys(("int_as_float", "uint_as_float"), lambda x: x.view(np.float32)),
    "double_as_longlong": lambda x: x.view(np.int64),
    "longlong_as_double": lambda x: x.view(np.float64),
}
_ROUNDINGS = {"rn": "rint", "rz": "trunc", "rd": "floor", "ru": "ceil"}
_SELECTS = frozenset(
    {"floor", "ceil", "trunc", "rint", "nearbyint", "round", "abs", "fabs", "copysign", "saturatef"}
    | {"int_as_float", "uint_as_float", "longlong_as_double"}
)
