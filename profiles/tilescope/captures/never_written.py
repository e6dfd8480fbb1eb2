"""Bytes of an output that no launch stores, although an operator reads them or launches store nearly all others. Imports torch."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np
import torch

from tilescope.execution import fresh_memory, kernel_syntax
from tilescope.execution.fresh_memory import Fresh, Marks
from tilescope.execution.launches import Launch
from tilescope.interpreter import arguments
from tilescope.interpreter.meter import Meter
from tilescope.table import units
from tilescope.table.kernel_faults import Fault


class _Stored(NamedTuple):
    """A launch's store to fresh memory: its record, the line, the tensor with its name, and the bytes that a program stored."""

    record: dict[str, Any]
    line: int
    name: str
    tensor: torch.Tensor
    share: float


class NeverWritten:
    """The memory that ``torch.empty`` made and launches stored to."""

    def __init__(self) -> None:
        self._last: dict[int, tuple[Fresh, _Stored]] = {}

    def launched(self, launch: Launch, meter: Meter, record: dict[str, Any]) -> None:
        """Notes what an interpreted launch stored. ``record`` is its record."""
        for name, value in launch.arguments.items():
            for tensor in arguments.tensors(value):
                fresh, index = fresh_memory.of(tensor), meter.written.index(tensor.untyped_storage().data_ptr())
                if fresh is None or fresh.settled or fresh.blame or index is None:
                    continue
                read = index in meter.read.used
                if index not in meter.written.used:
                    fresh.read |= read  # nobody knows which lanes of a load count
                    continue
                fresh.settled |= read or kernel_syntax.stores_by_memory(launch.function.fn)
                fresh.launched = True
                before = np.count_nonzero(fresh.stored)
                fresh.stored |= meter.written.marks[index] > 0
                share = (np.count_nonzero(fresh.stored) - before) / math.prod(launch.grid)
                if fresh.settled or fresh.stored.all():
                    fresh.settled, fresh.stored = True, fresh.stored[:0]
                    self._last.pop(id(fresh), None)
                elif id(fresh) not in self._last or share:
                    line = meter.storing.get(index, 0)
                    self._last[id(fresh)] = fresh, _Stored(record, line, name, tensor.detach(), share)

    def unmade(self, launch: Launch) -> None:
        """Leaves out the memory of a launch that was not interpreted."""
        for fresh in filter(None, map(fresh_memory.of, arguments.tensors(launch.arguments))):
            fresh.settled = True

    def conclude(self) -> None:
        """Adds the faults to the launches' records. A hole that is larger than what a program stores may be left for another launch."""
        for fresh, stored in self._last.values():
            count = fresh.missed
            if not fresh.read and not fresh.settled:
                missing, size = fresh.missing(stored.tensor), stored.tensor.element_size()
                count = int(missing.sum()) * size if _longest(missing) * size < stored.share + size else 0
            if count and not fresh.settled:
                reader = f", and {fresh.reader} reads it" if fresh.reader else ""
                what = f"no program stores {units.several(count, 'byte')} of {stored.name}, which torch.empty leaves to chance"
                remedy = "let the grid and the masks cover it, or allocate it by torch.zeros"
                faults = stored.record.setdefault("faults", [])
                faults.append(Fault(stored.line, what + reader, remedy)._asdict())


def _longest(marks: Marks) -> int:
    """The length of the longest run of marks."""
    edges = np.flatnonzero(np.diff(marks, prepend=False, append=False))
    return int((edges[1::2] - edges[::2]).max(initial=0))
