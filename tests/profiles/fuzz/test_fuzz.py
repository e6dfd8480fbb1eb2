"""A few mutants of each kind: every one is told in one line, in its time and memory.

``TILESCOPE_FUZZ`` is how many of each kind, ``TILESCOPE_FUZZ_SEED`` which; a slow test does more, ``fuzz.py`` thousands.
"""

import os

import pytest

from . import fuzz

COUNT, SEED = int(os.environ.get("TILESCOPE_FUZZ", "2")), int(os.environ.get("TILESCOPE_FUZZ_SEED", "1"))


def test_mutants_are_told_in_one_line():
    assert fuzz.many(fuzz.EVERY, SEED, COUNT) == []


@pytest.mark.parametrize("kind", fuzz.KINDS)
def test_more_mutants_are_told_in_one_line(kind):
    assert fuzz.many(kind, SEED, 60, start=COUNT) == []
