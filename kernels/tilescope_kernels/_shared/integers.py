"""Arithmetic of launchers. ``triton.cdiv`` and ``triton.next_power_of_2`` serve kernels, too, and take 2 us a call on the host."""

from __future__ import annotations


def cdiv(numerator: int, denominator: int) -> int:
    """The quotient of two integers, rounded up."""
    return -(-numerator // denominator)


def next_power_of_2(least: int) -> int:
    """The smallest power of two that is no less than ``least``; 1 for 1 and less. ``triton.next_power_of_2(0)`` is 0."""
    return 1 << max(0, least - 1).bit_length()
