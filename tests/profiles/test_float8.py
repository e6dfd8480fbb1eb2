"""e4m3 in numpy against PyTorch's, which is tested against the hardware."""

from __future__ import annotations

import numpy as np
import pytest
from tilescope.interpreter import float8
from tilescope.table.case import Case

from .capturing import capture, figures

torch = pytest.importorskip("torch")


def test_every_code_stands_for_the_number_that_pytorch_gives_it() -> None:
    codes = np.arange(256, dtype=np.uint8)
    numbers = torch.from_numpy(codes).view(torch.float8_e4m3fn).float().numpy()
    np.testing.assert_array_equal(float8.decode(codes), numbers)
    whole = codes[~np.isnan(numbers)]
    np.testing.assert_array_equal(float8.encode(float8.decode(whole)), whole)


def test_numbers_are_rounded_as_pytorch_does() -> None:
    drawn = np.random.default_rng(0).normal(size=20000).astype(np.float32)
    known = float8.decode(np.arange(0x7F, dtype=np.uint8))
    middles = (known[1:] + known[:-1]) / 2
    for some in (drawn, drawn * 100, drawn * 2.0**-8, middles, -middles, np.nextafter(middles, 0)):
        numbers = some[np.abs(some) <= 448].astype(np.float32)
        expected = torch.from_numpy(numbers).to(torch.float8_e4m3fn).view(torch.uint8).numpy()
        np.testing.assert_array_equal(float8.encode(numbers), expected)


def test_what_is_too_large_becomes_the_largest_and_nan_stays() -> None:
    codes = float8.encode(np.array([1e9, -np.inf, np.nan], np.float32))
    assert list(codes) == [0x7E, 0xFE, 0x7F]


def test_products_of_codes_are_checked_as_what_they_are() -> None:
    # As fp32, to which a check without a GPU brings what it draws, they would be no operands of this kernel.
    cases = [Case("fp8_matmul", impl, "forward", "48x32x160-fp8") for impl in ("triton", "eager")]
    found = capture("check", cases)
    for case in cases:
        assert figures(found[case.id], None)["relative_error"] <= figures(found[case.id], None)["tolerance"] == 6e-3
