"""A bounded number of mutants of each kind: every one is told in one line, in its time and memory.

``TILESCOPE_FUZZ`` is how many of each kind, ``TILESCOPE_FUZZ_SEED`` which; ``fuzz.py`` does thousands.
"""

from __future__ import annotations

import os

import pytest

from . import fuzz

COUNT, SEED = int(os.environ.get("TILESCOPE_FUZZ", "8")), int(os.environ.get("TILESCOPE_FUZZ_SEED", "1"))


@pytest.mark.parametrize("kind", fuzz.KINDS)
def test_mutants_are_told_in_one_line(kind):
    assert fuzz.many(kind, SEED, COUNT) == []
