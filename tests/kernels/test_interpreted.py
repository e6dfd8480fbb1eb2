"""Every kernel in Triton's interpreter: values, gradients, shapes, strides, special values."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

SCRIPT = "batch_interpreted.py"
CHECKS = re.findall(r"^def (check_\w+)", (Path(__file__).parent / SCRIPT).read_text(), re.MULTILINE)


@pytest.mark.parametrize("check", CHECKS)
def test_interpreted(batch, check):
    wrong = batch(SCRIPT)[check]
    assert not wrong, wrong
