"""A few mutants of each kind: every one is told in one line, in its time and memory.

``TILESCOPE_FUZZ`` is how many of each kind (thousands: with ``--timeout 0``), ``TILESCOPE_FUZZ_SEED`` which.
"""

import os

from . import fuzz

COUNT, SEED = int(os.environ.get("TILESCOPE_FUZZ", "25")), int(os.environ.get("TILESCOPE_FUZZ_SEED", "1"))


def test_mutants_are_told_in_one_line():
    assert fuzz.many(SEED, COUNT) == []
