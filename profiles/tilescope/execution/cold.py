"""Makes the L2 cache cold between repetitions. Imports torch and triton: worker-side only."""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl

#: The buffer's size over the L2's: above 1, in case caches are larger than reported.
_FACTOR = 4
#: Elements that a program reads.
_CHUNK = 4096


class Flush:
    """A call reads a buffer several times the L2's size, so that no data of a kernel stays in the L2.

    A memset would leave dirty lines, which are written back to HBM while the kernel runs and count as its time. The reads ask to be
    evicted last, because ordinary reads leave lines in the L2 that a kernel had asked to keep. The call is asynchronous, on the
    current stream, and gives the CPU time to queue what follows.
    """

    def __init__(self) -> None:
        l2 = torch.cuda.get_device_properties(torch.cuda.current_device()).L2_cache_size
        self.buffer: Any = torch.zeros(max(_FACTOR * l2, 64 * 2**20) // 4, dtype=torch.float32, device="cuda")
        self.total: Any = torch.empty((), dtype=torch.float32, device="cuda")

    def __call__(self) -> None:
        count = self.buffer.numel()
        read_zeros[(triton.cdiv(count, _CHUNK),)](self.buffer, self.total, count, _CHUNK)

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
