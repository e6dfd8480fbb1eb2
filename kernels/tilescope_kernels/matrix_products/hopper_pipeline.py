"""The ring of stages in shared memory through which one warp hands operands to the groups that multiply, on Hopper.

A stage is one step along K. It has two barriers: one says that its operands have arrived, the other that every group has
used them. A barrier is waited for by the parity of its use, which changes whenever the ring wraps around.
"""

from __future__ import annotations

from triton.experimental import gluon
from triton.experimental.gluon import language as gl

#: Steps along K whose operands are in shared memory.
_STAGES = gl.constexpr(4)


@gluon.jit
def _advance(slot, phase):
    """The next stage of the ring, and the parity of its use: without the division of a running count."""
    slot += 1
    wrapped = slot == _STAGES
    return gl.where(wrapped, 0, slot), gl.where(wrapped, phase ^ 1, phase)
