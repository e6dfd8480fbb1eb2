"""The files that a process has imported, and whether they are still what it imported."""

from __future__ import annotations

import os
import sys
import time
from dataclasses import dataclass, field


@dataclass
class ImportedFiles:
    """The files of the modules that were imported: when each was written last, and its size."""

    since: int = field(default_factory=time.time_ns)
    known: dict[str, tuple[int, int]] = field(default_factory=dict)
    late: str = ""

    def add(self) -> None:
        """Takes in what has been imported meanwhile. A file may have been written after it was read."""
        for module in list(sys.modules.values()):
            file = getattr(module, "__file__", None)
            if isinstance(file, str) and file not in self.known:
                self.known[file] = _state(file)
                if self.known[file][0] >= self.since:
                    self.late = file

    def changed(self) -> str:
        """A file that is no longer what was imported; empty where there is none."""
        return self.late or next((file for file, state in self.known.items() if _state(file) != state), "")


def _state(file: str) -> tuple[int, int]:
    try:
        seen = os.stat(file)  # noqa: PTH116 - two thousand of them a request
    except OSError:
        return (0, 0)
    return (seen.st_mtime_ns, seen.st_size)
