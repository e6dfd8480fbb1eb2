"""A few mutants of each kind: every one is told in one line, in its time and memory.

``TILESCOPE_FUZZ`` is how many of each kind, ``TILESCOPE_FUZZ_SEED`` which; ``fuzz.py`` does thousands.
"""

import os

import pytest

from . import fuzz

COUNT, SEED = int(os.environ.get("TILESCOPE_FUZZ", "25")), int(os.environ.get("TILESCOPE_FUZZ_SEED", "1"))


@pytest.mark.parametrize("kind", fuzz.KINDS)
def test_mutants_are_told_in_one_line(kind):
    assert fuzz.many(kind, SEED, COUNT) == []
