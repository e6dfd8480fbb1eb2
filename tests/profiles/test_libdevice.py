"""Functions of libdevice against Python's own, and every name that Triton has for them."""

import math

import numpy as np
import pytest
from tilescope.execution import pytorch_traffic
from tilescope.interpreter import libdevice

POINTS = np.array([0.1, 0.5, 0.75, 0.9])
MEANINGS = {
    **{name: getattr(math, name) for name in ("sin", "cos", "tan", "asin", "acos", "atan", "sinh", "cosh", "tanh")},
    **{name: getattr(math, name) for name in ("asinh", "atanh", "exp", "expm1", "log", "log2", "log10", "log1p")},
    **{name: getattr(math, name) for name in ("erf", "erfc", "sqrt", "lgamma", "floor", "ceil", "trunc", "fabs")},
    **{name: getattr(math, name) for name in ("exp2", "cbrt")}, "exp10": lambda x: 10**x, "rsqrt": lambda x: x**-0.5,
    "rcbrt": lambda x: x ** (-1 / 3), "drcp_rn": lambda x: 1 / x,
    "normcdf": lambda x: (1 + math.erf(x / math.sqrt(2))) / 2, "erfcx": lambda x: math.exp(x * x) * math.erfc(x),
    "sinpi": lambda x: math.sin(math.pi * x), "cospi": lambda x: math.cos(math.pi * x),
    "round": lambda x: math.floor(x + 0.5),
}  # fmt: skip


@pytest.mark.parametrize("name", MEANINGS)
def test_function_computes_its_name(name):
    compute = libdevice.function(f"__nv_{name}")
    assert compute is not None
    np.testing.assert_allclose(compute(POINTS), [MEANINGS[name](x) for x in POINTS], rtol=1e-12)


@pytest.mark.parametrize(("symbol", "arguments", "expected"), [
    ("__nv_powf", (2.0, 3.0), 8.0), ("__nv_atan2f", (1.0, -1.0), 0.75 * math.pi), ("__nv_fmaf", (2.0, 3.0, 4.0), 10.0),
    ("__nv_fmodf", (-7.0, 3.0), -1.0), ("__nv_remainderf", (-7.0, 4.0), 1.0), ("__nv_fsub_rn", (5.0, 3.0), 2.0),
    ("__nv_ddiv_rn", (6.0, 3.0), 2.0), ("__nv_frsqrt_rn", (4.0,), 0.5), ("__nv_fast_fdividef", (6.0, 3.0), 2.0),
    ("__nv_fdimf", (2.0, 5.0), 0.0), ("__nv_roundf", (-2.5,), -3.0), ("__nv_rintf", (2.5,), 2.0),
    ("__nv_saturatef", (1.5,), 1.0), ("__nv_isnanf", (math.nan,), 1.0), ("__nv_finitef", (math.inf,), 0.0),
    ("__nv_fmaf_rn", (2.0, 3.0, 4.0), 10.0), ("__nv_float2int_rd", (-1.5,), -2.0), ("__nv_float2int_rn", (2.5,), 2.0),
    ("__nv_float2uint_ru", (1.5,), 2.0), ("__nv_float_as_int", (1.0,), 0x3F800000),
])  # fmt: skip
def test_function_of_a_typed_symbol(symbol, arguments, expected):
    compute = libdevice.function(symbol)
    assert compute is not None
    assert compute(*(np.array([x], dtype=np.float32) for x in arguments))[0] == pytest.approx(expected, rel=1e-6)


@pytest.mark.parametrize(
    "symbol", ["__nv_fsub_rz", "__nv_tgammaf", "__nv_double2float_rd", "__nv_byte_perm", "__nv_hadd"]
)
def test_function_with_another_rounding_is_unknown(symbol):
    assert libdevice.function(symbol) is None


def test_functions_are_no_operators():
    seen: list[pytorch_traffic.Operation] = []
    with pytorch_traffic.CountOperators(seen.append):
        libdevice.erf(POINTS)
    assert not seen
    assert libdevice.selects("__nv_floorf")
    assert libdevice.selects("__nv_copysign")
    assert not libdevice.selects("__nv_tanhf")
