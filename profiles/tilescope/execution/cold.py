"""Makes the L2 cache cold between repetitions. Worker-side: imports torch when used."""

from __future__ import annotations

from typing import Any

#: The buffer's size over the L2's: above 1, in case caches are larger than reported.
_FACTOR = 4


class Flush:
    """A call reads a buffer several times the L2's size, so that no data of a kernel stays in the L2.

    Most benchmarks write instead. But lines that a memset leaves dirty are written back to HBM while the kernel runs, and count as
    its time (about 12 µs for an H200's 50 MB). Nsight Compute's cache control leaves a clean cache too. The read is asynchronous,
    on the current stream, and so also gives the CPU time to queue what follows.
    """

    def __init__(self) -> None:
        import torch  # noqa: PLC0415 - only the worker may import torch

        l2 = torch.cuda.get_device_properties(torch.cuda.current_device()).L2_cache_size
        self.buffer: Any = torch.zeros(max(_FACTOR * l2, 64 * 2**20) // 4, dtype=torch.float32, device="cuda")
        self.total: Any = torch.empty((), dtype=torch.float32, device="cuda")

    def __call__(self) -> None:
        import torch  # noqa: PLC0415 - only the worker may import torch

        torch.sum(self.buffer, dim=0, out=self.total)

    @property
    def nbytes(self) -> int:
        """Size of the buffer in bytes."""
        return int(self.buffer.numel() * self.buffer.element_size())
