"""Compiles a launch for so many seconds and no longer.

Nothing ends Triton's compiler half-way but the end of its process: a forked one compiles into Triton's cache, which answers this
one. Imports torch and triton: worker-side only.
"""

from __future__ import annotations

import contextlib
import io
import time
from typing import Any

from triton import knobs

from tilescope.execution import multiprocess, offline
from tilescope.execution.launches import Launch


class TooSlow(Exception):
    """A launch that is not compiled in time. One line."""


def compiled(launch: Launch, seconds: float) -> tuple[Any, float | None]:
    """What ``offline.compile_launch`` returns and raises, and how long it took; None for what Triton's cache had.

    Raises TooSlow after ``seconds``.
    """
    deadline = time.perf_counter() + seconds
    took: list[float | None] = [None]

    def compile_it(_: int) -> None:
        # What goes wrong goes wrong again here. Triton prints the whole code that its assembler refuses.
        with contextlib.suppress(Exception), contextlib.redirect_stdout(io.StringIO()):
            took[0] = _timed(launch)

    def until(_: int) -> None:
        if time.perf_counter() > deadline:
            raise TooSlow(f"{launch.name} was not compiled in {seconds:g} s")

    # A compiler that ends its process ends this one, too: whoever watches it tells why.
    with contextlib.suppress(RuntimeError):
        (took[0],) = multiprocess.share_out([0], compile_it, lambda: took[0], until, processes=1)
    return offline.compile_launch(launch), took[0]


def _timed(launch: Launch) -> float | None:
    """Compiles; returns the seconds that it took, None where Triton's cache answered."""
    fresh: list[bool] = []

    def listen(*, cache_hit: bool = False, **_: Any) -> None:
        fresh.append(not cache_hit)

    before, knobs.compilation.listener = knobs.compilation.listener, listen
    began = time.perf_counter()
    try:
        offline.compile_launch(launch)
    finally:
        knobs.compilation.listener = before
    return time.perf_counter() - began if any(fresh) else None
