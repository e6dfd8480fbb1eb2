"""The files that a process has imported, and whether they have changed since."""

from __future__ import annotations

import os
import sys
import time
from dataclasses import dataclass, field


@dataclass
class ImportedFiles:
    """The files of imported modules, each with its time of modification and its size."""

    since: int = field(default_factory=time.time_ns)
    known: dict[str, tuple[int, int]] = field(default_factory=dict)
    late: str = ""

    def add(self) -> None:
        """Adds the files of newly imported modules. One that was modified after ``since`` may differ from what was read."""
        for module in list(sys.modules.values()):
            file = getattr(module, "__file__", None)
            if isinstance(file, str) and file not in self.known:
                self.known[file] = _state(file)
                if self.known[file][0] >= self.since:
                    self.late = file

    def changed(self) -> str:
        """A file that has changed since its import; empty where there is none."""
        return self.late or next((file for file, state in self.known.items() if _state(file) != state), "")


def _state(file: str) -> tuple[int, int]:
    try:
        seen = os.stat(file)  # noqa: PTH116 - two thousand of them a request
    except OSError:
        return (0, 0)
    return (seen.st_mtime_ns, seen.st_size)
