"""Times between CUDA events. Worker-side: imports torch when used."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


def intervals(run: Callable[[], Any], repetitions: int, before: Callable[[], Any] = lambda: None) -> list[float]:
    """Seconds between an event before and one after each of ``repetitions`` calls. ``before`` is called ahead of each pair.

    The CPU does not wait in between: the GPU is still busy with earlier work when the CPU launches, which hides a short delay of
    the CPU as in a real program.
    """
    import torch  # noqa: PLC0415 - only the worker may import torch

    def event() -> Any:
        return torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]

    pairs = [(event(), event()) for _ in range(repetitions)]
    for start, end in pairs:
        before()
        start.record()
        run()
        end.record()
    torch.cuda.synchronize()
    return [start.elapsed_time(end) / 1e3 for start, end in pairs]
