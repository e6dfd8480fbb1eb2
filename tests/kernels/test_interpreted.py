"""Every kernel in Triton's interpreter: values, gradients, shapes, strides, special values."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

CHECKS = [
    (script, check)
    for script in ("batch_interpreted.py", "batch_operators.py")
    for check in re.findall(r"^def (check_\w+)", (Path(__file__).parent / script).read_text(), re.MULTILINE)
]


@pytest.mark.slow(
    "kernels", "tests/kernels/conftest.py", "tests/kernels/batch_interpreted.py", "tests/kernels/batch_operators.py"
)
@pytest.mark.parametrize(("script", "check"), CHECKS, ids=[check for _, check in CHECKS])
def test_interpreted(batch, script, check):
    wrong = batch(script)[check]
    assert not wrong, wrong
