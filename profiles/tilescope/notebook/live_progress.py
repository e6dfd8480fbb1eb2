"""How far a profile is, where the person looks: an output that updates in a notebook, a line on a terminal, else nothing."""

from __future__ import annotations

import importlib
import sys
import time
from collections.abc import Callable, Mapping
from html import escape
from typing import Any


def progress() -> Callable[[Mapping[str, Any]], None]:
    """What to call with each event of a job, chosen by where the output goes."""
    shell = getattr(sys.modules.get("IPython"), "get_ipython", lambda: None)()
    if shell is not None and hasattr(shell, "kernel"):
        return Notebook()
    return Terminal() if sys.stderr is not None and sys.stderr.isatty() else lambda event: None


def short(case: str) -> str:
    """A case's id without the folder and file that a kernel of one's own has in front."""
    return case.rpartition(".py:")[2]


class Progress:
    """Follows a job's events: what it is doing, how many cases are settled, how many failed."""

    def __init__(self) -> None:
        self.began = time.monotonic()
        self.failed = self.index = self.of = 0
        self.doing = "reading what the kernel declares"
        self.ended = ""

    def __call__(self, event: Mapping[str, Any]) -> None:
        self.index, self.of = int(event.get("index", self.index)), int(event.get("of", self.of))
        kind = event.get("event")
        if event.get("doing"):
            self.doing = f"{event['doing']} {short(event.get('case', ''))}".strip()
        if kind == "error":
            self.failed += 1
        if kind == "done":
            self.ended = "finished" if event["complete"] else "interrupted, finished cases are kept"
            if event.get("why"):
                self.ended = event["why"]
            if not event["complete"] and not event["folder"]:
                self.ended = "interrupted before any case had finished"
        self.show()

    def line(self) -> str:
        """``12 of 30: compiling softmax/triton/…, 4 s, 1 failed``."""
        where = f"{self.index} of {self.of}: {self.doing}" if self.of else self.doing
        said = [self.ended or where, f"{time.monotonic() - self.began:.0f} s"]
        return ", ".join([*said, f"{self.failed} failed"] if self.failed else said)

    def show(self) -> None:
        """Bring what is shown up to date."""
        raise NotImplementedError


class Notebook(Progress):
    """One output of the cell, updated in place."""

    def __init__(self) -> None:
        super().__init__()
        # By name: only a notebook has it.
        ipython = importlib.import_module("IPython.display")
        self._html = ipython.HTML
        self._output = ipython.display(self._html(self.html()), display_id=True)

    def html(self) -> str:
        """A bar and a line of escaped text; the bar goes when the job has ended."""
        bar = f'<progress value="{self.index}" max="{max(self.of, 1)}" style="width: 240px"></progress> '
        return (
            f'<div role="status" style="overflow-wrap: anywhere">{"" if self.ended else bar}{escape(self.line())}</div>'
        )

    def show(self) -> None:
        self._output.update(self._html(self.html()))


class Terminal(Progress):
    """A line on standard error that is written over."""

    def show(self) -> None:
        end = "\n" if self.ended else ""
        sys.stderr.write(f"\r\x1b[2K{self.line()[:118]}{end}")
        sys.stderr.flush()
