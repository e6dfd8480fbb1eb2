"""Integers of launchers are Triton's."""

import triton
from hypothesis import given
from hypothesis import strategies as st
from tilescope_kernels._shared import integers


@given(st.integers(0, 2**40), st.integers(1, 2**20))
def test_they_are_those_of_triton(numerator, denominator):
    assert integers.cdiv(numerator, denominator) == triton.cdiv(numerator, denominator)
    assert integers.next_power_of_2(denominator) == triton.next_power_of_2(denominator)
    assert integers.next_power_of_2(0) == 1
