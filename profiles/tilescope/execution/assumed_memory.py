"""Counts the memory in use on an assumed GPU, as PyTorch's allocator would: launchers ask for it, and scripts print it.

Imports torch: worker-side only.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable

import torch

#: PyTorch's allocator allocates multiples of this many bytes (``kMinBlockSize`` of CUDACachingAllocator).
BLOCK = 512


class Memory:
    """Bytes in use: ``used`` now, and ``most`` at a time since ``reset_peak``."""

    def __init__(self) -> None:
        self.used = self.most = 0

    def count(self, storage: torch.UntypedStorage) -> None:
        held = -(-storage.nbytes() // BLOCK) * BLOCK
        self.used += held
        self.most = max(self.most, self.used)
        weakref.finalize(storage, self._gone, held).atexit = False

    def answers(self) -> dict[str, Callable[..., int]]:
        """Answers to ``torch.cuda``'s functions, by name. Reserved memory is the most in use, which is its lower bound."""
        return {
            "memory_allocated": lambda device=None: self.used,
            "max_memory_allocated": lambda device=None: self.most,
            "memory_reserved": lambda device=None: self.most,
            "max_memory_reserved": lambda device=None: self.most,
        }

    def reset_peak(self) -> None:
        self.most = self.used

    def _gone(self, held: int) -> None:
        self.used -= held


#: The memory of this process's assumed GPU.
memory = Memory()
