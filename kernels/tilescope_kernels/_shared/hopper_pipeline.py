"""Ring of stages in shared memory between the loading warp and the multiplying warpgroups on Hopper.

A stage is one step along K. It has two mbarriers: its operands have arrived, and every warpgroup has used them. The phase of
a wait is a parity that flips whenever the ring wraps around.
"""

from __future__ import annotations

from triton.experimental import gluon
from triton.experimental.gluon import language as gl


@gluon.jit
def advance(slot, phase, STAGES: gl.constexpr, STEP: gl.constexpr = 1):
    """The stage ``STEP`` further in a ring of ``STAGES``, a multiple of it, and its phase, without dividing a running count."""
    slot += STEP
    wrapped = slot == STAGES
    return gl.where(wrapped, 0, slot), gl.where(wrapped, phase ^ 1, phase)
