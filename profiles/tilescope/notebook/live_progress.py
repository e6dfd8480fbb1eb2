"""A job's progress, shown in a notebook's output or on Python's terminal."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Mapping
from html import escape
from typing import Any

from tilescope.jobs.progress import Progress, TerminalLine


def progress() -> Progress:
    """The display to call with each event of a job: an output of the cell, a line on a terminal, or none."""
    shell = getattr(sys.modules.get("IPython"), "get_ipython", lambda: None)()
    if shell is not None and hasattr(shell, "kernel"):
        return CellOutput()
    return TerminalLine() if sys.stderr is not None and sys.stderr.isatty() else Progress()


class Telling:
    """Shows what is being done, from its first message on, and that it was ``done`` at its end."""

    def __init__(self, done: str) -> None:
        self._done = done
        self._shown: Progress | None = None

    def __call__(self, doing: str) -> None:
        if self._shown is None:
            self._shown = progress()
        self._shown({"event": "waiting", "doing": doing})

    def close(self) -> None:
        if self._shown is not None:
            self._shown.ended = self._shown.doing = self._done
            self._shown.show({})


class CellOutput(Progress):
    """One output of the cell, updated in place."""

    def __init__(self) -> None:
        super().__init__()
        # Imported by name, because only notebooks have it.
        ipython = importlib.import_module("IPython.display")
        self._html = ipython.HTML
        self._output = ipython.display(self._html(self.html()), display_id=True)

    def html(self) -> str:
        """A bar and a line of escaped text; the bar goes when the job has ended."""
        bar = f'<progress value="{self.index}" max="{max(self.of, 1)}" style="width: 240px"></progress> '
        return (
            f'<div role="status" style="overflow-wrap: anywhere">{"" if self.ended else bar}{escape(self.line())}</div>'
        )

    def show(self, event: Mapping[str, Any]) -> None:
        self._output.update(self._html(self.html()))
