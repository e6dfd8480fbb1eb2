"""Codes of floats that numpy has not, against PyTorch's."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from tilescope.interpreter import narrow

TORCH = {"bf16": torch.bfloat16, "fp8e4nv": torch.float8_e4m3fn, "fp8e5": torch.float8_e5m2}


@pytest.mark.parametrize("kind", sorted(narrow.FORMATS))
def test_every_code_stands_for_what_it_does_in_pytorch(kind: str) -> None:
    codes = np.arange(2**16 if kind == "bf16" else 2**8, dtype=np.uint16 if kind == "bf16" else np.uint8)
    expected = torch.from_numpy(codes).view(TORCH[kind]).float().numpy()
    np.testing.assert_array_equal(narrow.decode(codes, kind), expected)


@pytest.mark.parametrize("kind", sorted(narrow.FORMATS))
def test_numbers_round_to_the_nearest_and_halves_to_even(kind: str) -> None:
    largest = {"bf16": 1e30, "fp8e4nv": 448.0, "fp8e5": 57344.0}[kind]
    drawn = np.random.default_rng(0).standard_normal(4096).astype(np.float32)
    known = narrow.decode(np.arange(120, dtype=np.uint8), kind) if kind != "bf16" else drawn
    numbers = np.concatenate([drawn, drawn * 1e-3, (known[1:] + known[:-1]) / 2, [0.0, -0.0, largest, -largest]])
    numbers = numbers.astype(np.float32)
    expected = torch.from_numpy(numbers).to(TORCH[kind]).float().numpy()
    np.testing.assert_array_equal(narrow.decode(narrow.encode(numbers, kind), kind), expected)


@pytest.mark.parametrize(("kind", "largest"), [("fp8e4nv", 448.0), ("fp8e5", 57344.0)])
def test_eight_bits_saturate_and_keep_nan(kind: str, largest: float) -> None:
    """As ``cvt.rn.satfinite`` does."""
    numbers = np.array([1e9, -np.inf, np.nan], dtype=np.float32)
    np.testing.assert_array_equal(narrow.decode(narrow.encode(numbers, kind), kind), [largest, -largest, np.nan])


def test_bfloat16_keeps_infinities_and_nan() -> None:
    numbers = np.array([np.inf, -np.inf, np.nan, 3.4e38], dtype=np.float32)
    np.testing.assert_array_equal(
        narrow.decode(narrow.encode(numbers, "bf16"), "bf16"), [np.inf, -np.inf, np.nan, np.inf]
    )
