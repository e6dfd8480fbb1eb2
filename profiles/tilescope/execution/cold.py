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

    Most benchmarks write instead. But lines that a memset leaves dirty are written back to HBM while the kernel runs, and count as
    its time (about 12 µs for an H200's 50 MB). Nsight Compute's cache control leaves a clean cache too.

    The reads ask to be evicted last. Of 8 MB that a kernel had read so itself, as Inductor's often do, a fifth was still in the L2
    after ordinary reads or a memset of 240 MB, and nothing after these; the next kernel finds as much room as after ordinary reads
    (H200, 2026-11-27, HBM bytes counted by CUPTI). The call is asynchronous, on the current stream, and so also gives the CPU time to
    queue what follows.
    """

    def __init__(self) -> None:
        l2 = torch.cuda.get_device_properties(torch.cuda.current_device()).L2_cache_size
        self.buffer: Any = torch.zeros(max(_FACTOR * l2, 64 * 2**20) // 4, dtype=torch.float32, device="cuda")
        self.total: Any = torch.empty((), dtype=torch.float32, device="cuda")

    def __call__(self) -> None:
        count = self.buffer.numel()
        _read[(triton.cdiv(count, _CHUNK),)](self.buffer, self.total, count, _CHUNK)

    @property
    def nbytes(self) -> int:
        """Size of the buffer in bytes."""
        return int(self.buffer.numel() * self.buffer.element_size())


@triton.jit  # type: ignore[untyped-decorator]
def _read(source, total, count, CHUNK: tl.constexpr):  # type: ignore[no-untyped-def]
    """Reads ``count`` zeros. What is stored if one is none keeps the reads from being optimised away."""
    element = tl.program_id(0) * CHUNK + tl.arange(0, CHUNK)
    sum_of_zeros = tl.sum(tl.load(source + element, mask=element < count, other=0.0, eviction_policy="evict_last"))
    tl.store(total, sum_of_zeros, mask=sum_of_zeros != 0)
