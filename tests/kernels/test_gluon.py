"""Kernels in Gluon that keep rows on chip, run on the CPU: what is read has come, what is written is right."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

SCRIPT = "batch_gluon.py"
CHECKS = re.findall(r"^def (check_\w+)", (Path(__file__).parent / SCRIPT).read_text(), re.MULTILINE)


@pytest.mark.parametrize("check", CHECKS)
def test_on_the_cpu(batch, check):
    wrong = batch(SCRIPT)[check]
    assert not wrong, wrong
