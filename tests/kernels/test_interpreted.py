"""Every kernel in Triton's interpreter: values, gradients, shapes, strides, special values."""

from __future__ import annotations

SCRIPTS = {"batch_interpreted.py": set(), "batch_operators.py": set()}


def test_interpreted(wrong):
    assert not wrong, wrong
