"""A job's progress as one line of text, for the terminal and the notebook."""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping
from typing import Any

from rich.console import Console
from rich.control import Control
from rich.segment import ControlType
from rich.text import Text

from tilescope.table.case import readable

#: The text before the first event.
READING = "reading the kernels' declarations"


class Progress:
    """Follows a job's events: the numbers of settled and failed cases, the present activity, and the run's ``folder``.

    ``folder`` is empty until the job is done. Displays override ``show``.
    """

    def __init__(self) -> None:
        self.began = time.monotonic()
        self.failed = self.index = self.of = 0
        self.doing = READING
        self.ended = self.folder = ""

    def __call__(self, event: Mapping[str, Any]) -> None:
        self.index, self.of = int(event.get("index", self.index)), int(event.get("of", self.of))
        kind = event.get("event")
        if event.get("doing"):
            said = (event.get("collector", ""), event["doing"], readable(event.get("case", "")))
            self.doing = " ".join(filter(None, said))
        if kind == "error":
            self.failed += 1
        if kind == "done":
            self.folder = event["folder"]
            self.ended = event.get("why") or _ending(event["complete"], self.folder)
        self.show(event)

    def line(self) -> str:
        """``12 of 30: compiler compiling softmax/triton/…, 4 s, 1 failed``."""
        where = f"{self.index} of {self.of}: {self.doing}" if self.of else self.doing
        said = [self.ended or where, f"{time.monotonic() - self.began:.0f} s"]
        return ", ".join([*said, f"{self.failed} failed"] if self.failed else said)

    def show(self, event: Mapping[str, Any]) -> None:
        """Updates the display after ``event``."""

    def close(self) -> None:
        """Ends the display, also of a job that is not done."""


class TerminalLine(Progress):
    """A line on standard error that is overwritten."""

    def __init__(self) -> None:
        super().__init__()
        self._console = Console(stderr=True, highlight=False, force_jupyter=False)

    def show(self, event: Mapping[str, Any]) -> None:
        self._write(Text(self.line()), end="\n" if self.ended else "")

    def close(self) -> None:
        if not self.ended:
            self._write(Text(""), end="")

    def _write(self, text: Text, end: str) -> None:
        """Replaces the line by the text, cut at the terminal's width unless it stays."""
        self._console.control(Control(ControlType.CARRIAGE_RETURN, (ControlType.ERASE_IN_LINE, 2)))
        if end:
            self._console.print(text, soft_wrap=True)
        else:
            text.truncate(self._console.width - 1, overflow="ellipsis")
            self._console.print(text, end="", soft_wrap=True)


class LogLines(Progress):
    """Lines on standard error, for a file or a pipe: one for each case at its start."""

    def show(self, event: Mapping[str, Any]) -> None:
        kind = event.get("event")
        if kind == "case" or (kind == "waiting" and event.get("collector") is None):
            print(self.line(), file=sys.stderr, flush=True)


def terminal() -> Progress:
    """The display for this process's standard error."""
    return TerminalLine() if sys.stderr.isatty() else LogLines()


def _ending(complete: bool, folder: str) -> str:
    if complete:
        return "finished"
    return "interrupted, finished cases are kept" if folder else "interrupted before any case had finished"
