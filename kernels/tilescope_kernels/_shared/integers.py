"""Integer arithmetic of launchers. ``triton.cdiv`` and ``triton.next_power_of_2`` are slower on the host."""

from __future__ import annotations


def cdiv(numerator: int, denominator: int) -> int:
    """The quotient of two integers, rounded up."""
    return -(-numerator // denominator)


def next_power_of_2(least: int) -> int:
    """The smallest power of two >= ``least``, at least 1. ``triton.next_power_of_2(0)`` is 0."""
    return 1 << max(0, least - 1).bit_length()
