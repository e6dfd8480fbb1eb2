"""Codes of floats that NumPy lacks, against PyTorch's."""

import numpy as np
import pytest
import torch
from tilescope.interpreter import narrow
from tilescope.table.case import Case
from torch.utils._python_dispatch import TorchDispatchMode

from .capturing import capture, figures

TORCH = {"bf16": torch.bfloat16, "fp8e4nv": torch.float8_e4m3fn, "fp8e5": torch.float8_e5m2}


@pytest.mark.parametrize("kind", sorted(narrow.FORMATS))
def test_decode_gives_pytorchs_values(kind):
    codes = np.arange(2**16 if kind == "bf16" else 2**8, dtype=np.uint16 if kind == "bf16" else np.uint8)
    expected = torch.from_numpy(codes).view(TORCH[kind]).float().numpy()
    np.testing.assert_array_equal(narrow.decode(codes, kind), expected)


@pytest.mark.parametrize("kind", sorted(narrow.FORMATS))
def test_encode_rounds_ties_to_even(kind):
    largest = {"bf16": 1e30, "fp8e4nv": 448.0, "fp8e5": 57344.0}[kind]
    drawn = np.random.default_rng(0).standard_normal(4096).astype(np.float32)
    known = narrow.decode(np.arange(120, dtype=np.uint8), kind) if kind != "bf16" else drawn
    middles = (known[1:] + known[:-1]) / 2
    parts = [drawn, drawn * 1e-3, middles, -middles, np.nextafter(middles, 0), [0.0, -0.0, largest, -largest]]
    numbers = np.concatenate(parts).astype(np.float32)
    expected = torch.from_numpy(numbers).to(TORCH[kind]).float().numpy()
    found = narrow.encode(numbers, kind)
    np.testing.assert_array_equal(narrow.decode(found, kind), expected)
    np.testing.assert_array_equal(narrow.encode(expected, kind), found)


@pytest.mark.parametrize(("kind", "most"), [("fp8e4nv", 448.0), ("fp8e5", 57344.0), ("bf16", np.inf)])
def test_encode_saturates_eight_bits_and_keeps_nan(kind, most):
    """As ``cvt.rn.satfinite`` does."""
    numbers = np.array([3.4e38, -np.inf, np.nan], dtype=np.float32)
    np.testing.assert_array_equal(narrow.decode(narrow.encode(numbers, kind), kind), [most, -most, np.nan])


def test_product_of_codes_is_checked():
    # As fp32, to which a check without a GPU brings what it draws, they would be no operands of this kernel.
    cases = [Case("fp8_matmul", impl, "forward", "48x32x160-fp8") for impl in ("triton", "eager")]
    found = capture("check", cases)
    for case in cases:
        assert figures(found[case.id], None)["relative_error"] <= figures(found[case.id], None)["tolerance"] == 6e-3


def test_decode_is_no_operation_of_the_program():
    class Seen(TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            raise AssertionError(func)

    with Seen():
        assert narrow.decode(np.array([0x38], np.uint8), "fp8e4nv")[0] == 1
