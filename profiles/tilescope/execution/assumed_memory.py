"""How much of a GPU that is not there is in use: the tensors that say they are on it, as PyTorch's allocator counts them.

Kept of an absent GPU because launchers ask for it before they launch, and scripts print it. Imports torch: worker-side only.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable

import torch

#: PyTorch's allocator hands out multiples of so many bytes (``kMinBlockSize`` of CUDACachingAllocator).
BLOCK = 512


class Memory:
    """``used``: bytes that are held now; ``most``: the most that were since ``forget``."""

    def __init__(self) -> None:
        self.used = self.most = 0

    def take(self, storage: torch.UntypedStorage) -> None:
        """Counts a storage until it goes."""
        held = -(-storage.nbytes() // BLOCK) * BLOCK
        self.used += held
        self.most = max(self.most, self.used)
        weakref.finalize(storage, self._gone, held).atexit = False

    def questions(self) -> dict[str, Callable[..., int]]:
        """Answers by the names of ``torch.cuda``'s functions. What is reserved, the allocator's own store, is at least the most that
        was held at once; more of it is not known.
        """
        return {
            "memory_allocated": lambda device=None: self.used,
            "max_memory_allocated": lambda device=None: self.most,
            "memory_reserved": lambda device=None: self.most,
            "max_memory_reserved": lambda device=None: self.most,
        }

    def forget(self) -> None:
        """What was held until now counts no longer."""
        self.most = self.used

    def _gone(self, held: int) -> None:
        self.used -= held


#: Of this process: there is one GPU that is not there.
memory = Memory()
