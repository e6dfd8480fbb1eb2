"""Times between CUDA events, and the state of the GPU before them: a cold L2 and, before a long call, a rest. Imports torch and triton: worker-side only."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import triton
import triton.language as tl

#: The buffer's size over the L2's: above 1, in case caches are larger than reported.
_FACTOR = 4
#: Elements that a program reads.
_CHUNK = 4096
#: A call of so many seconds may take the GPU to its power limit, where its clock depends on the calls before it.
LONG = 5e-4
#: The rest before a long call over the call's time, and the longest rest in seconds.
_REST, _LONGEST = 2.0, 0.05
#: Seconds of a long call's repetitions with their rests, and the fewest.
_WHILE, _FEWEST = 0.1, 20
#: Approximate cycles of the GPU's clock in a second, for ``torch.cuda._sleep``.
_CYCLES = 2e9
#: The shorter of two sleeps, in seconds, whose difference tells the clock.
_SPIN = 5e-5


def sleep(seconds: float) -> None:
    """Keeps the current stream busy for about so many seconds, at little power. The call is asynchronous."""
    torch.cuda._sleep(int(seconds * _CYCLES))  # type: ignore[no-untyped-call]


def clock() -> float:
    """The hertz of the GPU's clock right after what is queued: the time of sleeps of known cycles."""
    marks = [torch.cuda.Event(enable_timing=True) for _ in range(3)]  # type: ignore[no-untyped-call]
    sleep(_SPIN)  # meanwhile the CPU queues the rest
    for mark, seconds in zip(marks, (_SPIN, 5 * _SPIN, 0.0), strict=True):
        mark.record()
        sleep(seconds)
    torch.cuda.synchronize()
    short, long = (marks[at].elapsed_time(marks[at + 1]) for at in range(2))
    return float(4 * _SPIN * _CYCLES / (long - short) * 1e3)


def rest(call: Callable[[], Any]) -> float:
    """The seconds of rest before each repetition of the call, which is made once; 0 for a short one.

    With it each repetition starts at the same clock, and configs and implementations of a long kernel can be compared.
    """
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
    start.record()
    call()
    end.record()
    torch.cuda.synchronize()
    seconds = start.elapsed_time(end) / 1e3
    return min(_REST * seconds, _LONGEST) if seconds > LONG else 0.0


def intervals(run: Callable[[], Any], repetitions: int, before: Callable[[], Any] = lambda: None) -> list[float]:
    """Seconds between an event before and one after each of ``repetitions`` calls. ``before`` is called ahead of each pair.

    The CPU does not wait in between: the GPU is still busy with earlier work when the CPU launches, which hides a short delay of
    the CPU as in a real program.
    """
    marks = [torch.cuda.Event(enable_timing=True) for _ in range(2 * repetitions)]  # type: ignore[no-untyped-call]
    pairs = list(zip(marks[::2], marks[1::2], strict=True))
    for start, end in pairs:
        before()
        start.record()
        run()
        end.record()
    torch.cuda.synchronize()
    return [start.elapsed_time(end) / 1e3 for start, end in pairs]


class Flush:
    """A call reads a buffer several times the L2's size, so that no data of a kernel stays in the L2.

    A memset would leave dirty lines, which are written back to HBM while the kernel runs and count as its time. The reads ask to be
    evicted last, because ordinary reads leave lines in the L2 that a kernel had asked to keep. The call is asynchronous, on the
    current stream, and gives the CPU time to queue what follows. The GPU first rests for ``rest`` seconds.
    """

    def __init__(self, rest: float = 0.0) -> None:
        self.rest = rest
        l2 = torch.cuda.get_device_properties(torch.cuda.current_device()).L2_cache_size
        self.buffer: Any = torch.zeros(max(_FACTOR * l2, 64 * 2**20) // 4, dtype=torch.float32, device="cuda")
        self.total: Any = torch.empty((), dtype=torch.float32, device="cuda")

    def __call__(self) -> None:
        if self.rest:
            sleep(self.rest)
        count = self.buffer.numel()
        read_zeros[(triton.cdiv(count, _CHUNK),)](self.buffer, self.total, count, _CHUNK)

    def repetitions(self, usual: int) -> int:
        """The repetitions of a call: ``usual``, of a long one as many as take a tenth of a second, at least 20."""
        each = self.rest * (1 + 1 / _REST)
        return min(usual, max(_FEWEST, int(_WHILE / each))) if each else usual

    @property
    def nbytes(self) -> int:
        """Size of the buffer in bytes."""
        return int(self.buffer.numel() * self.buffer.element_size())


@triton.jit  # type: ignore[untyped-decorator]
def read_zeros(source, total, count, CHUNK: tl.constexpr):  # type: ignore[no-untyped-def]
    """Reads ``count`` zeros. The store of a sum that is not 0 keeps the reads from being optimised away."""
    element = tl.program_id(0) * CHUNK + tl.arange(0, CHUNK)
    sum_of_zeros = tl.sum(tl.load(source + element, mask=element < count, other=0.0, eviction_policy="evict_last"))
    tl.store(total, sum_of_zeros, mask=sum_of_zeros != 0)
