"""What a worker writes: events, believed only as far as their shape goes, and a log of which a bounded part is kept.

The process that writes runs other people's code, which may write anything, in any amount.
"""

from __future__ import annotations

import json
from typing import Any

#: Bytes that are kept of the beginning and of the end: what a tool says first and what it dies of.
KEPT = 256 << 10
#: Longest line in bytes: what a library of kernels declares takes a few million.
LONGEST = 32 << 20
#: Longest texts, in characters: what a person is told, and what helps to find out why.
_MESSAGE, _DETAIL = 2000, 64 << 10

#: Of each kind of event, what it must have and of which type; ``case`` is a text wherever it stands.
_SHAPES: dict[str, dict[str, type]] = {
    "start": {},
    "ready": {},
    "case": {"case": str, "doing": str},
    "result": {"case": str},
    "skipped": {"case": str, "message": str},
    "error": {"message": str},
    "done": {},
    "catalog": {"kernels": list},
    "ceilings": {"ceilings": list},
}
_TEXTS = {"case": _MESSAGE, "doing": 200, "message": _MESSAGE, "environment": _MESSAGE, "detail": _DETAIL}


class EventLines:
    """Puts pieces of the stream together. ``ignored`` counts the lines that were no event."""

    def __init__(self, longest: int = LONGEST) -> None:
        self._longest, self._open, self._skipping = longest, bytearray(), False
        self.ignored = 0

    def feed(self, data: bytes) -> list[dict[str, Any]]:
        """The events that ``data`` completes. A line that its writer did not finish is kept for the next piece."""
        found = []
        *whole, rest = data.split(b"\n")
        for piece in whole:
            line = bytes(self._open) + piece
            skipping, self._skipping = self._skipping or len(line) > self._longest, False
            self._open.clear()
            event = None if skipping else _event(line)
            if event is not None:
                found.append(event)
            elif skipping or line.strip():
                self.ignored += 1
        if not self._skipping:
            self._open += rest
        if len(self._open) > self._longest:
            self._open.clear()
            self._skipping = True
        return found


def _event(line: bytes) -> dict[str, Any] | None:
    """The event of one line; None for what has not the shape of one."""
    try:
        event = json.loads(line.decode("utf-8", errors="replace"))
    except (ValueError, RecursionError):
        return None
    shape = _SHAPES.get(kind) if isinstance(event, dict) and isinstance(kind := event.get("event"), str) else None
    if shape is None or not all(isinstance(event.get(name), type_) for name, type_ in shape.items()):
        return None
    if not all(isinstance(event.get(name, ""), str) for name in _TEXTS):
        return None
    if b"\\ud" in line.lower():
        event = _encodable(event)
    for name, longest in _TEXTS.items():
        if len(event.get(name, "")) > longest:
            event[name] = event[name][-longest:] if name == "detail" else f"{event[name][:longest]}…"
    return dict(event)


def _encodable(value: Any) -> Any:
    """The same without halves of surrogate pairs, which JSON can spell and no file can hold."""
    if isinstance(value, str):
        return value.encode("utf-8", errors="replace").decode("utf-8")
    if isinstance(value, list):
        return [_encodable(item) for item in value]
    if isinstance(value, dict):
        return {_encodable(name): _encodable(item) for name, item in value.items()}
    return value


class BoundedLog:
    """Takes bytes as they come. Holds at most ``3 * kept`` of them, beside those of one write; ``written`` counts all."""

    def __init__(self, kept: int = KEPT) -> None:
        self._kept = kept
        self._head, self._tail = bytearray(), bytearray()
        self._dropped = self.written = 0

    def write(self, data: bytes) -> None:
        """Adds what was printed next."""
        self.written += len(data)
        room = self._kept - len(self._head)
        if room > 0:
            self._head += data[:room]
            data = data[room:]
        self._tail += data
        # Not at every write: moving the tail costs as much as it is long.
        if len(self._tail) > 2 * self._kept:
            self._trim()

    def text(self) -> str:
        """The beginning, a line that says how much is left out, if anything is, and the end; never fails to decode."""
        self._trim()
        head, tail = (bytes(part).decode("utf-8", errors="replace") for part in (self._head, self._tail))
        return f"{head}\n[… {self._dropped} bytes left out …]\n{tail}" if self._dropped else head + tail

    def _trim(self) -> None:
        over = len(self._tail) - self._kept
        if over > 0:
            del self._tail[:over]
            self._dropped += over


def last_line(log: str, longest: int = 300) -> str:
    """The last line that says anything, cut to a length that a person reads."""
    line = next((text.strip() for text in reversed(log.splitlines()) if text.strip()), "")
    return line if len(line) <= longest else f"{line[:longest]}…"


def tail(log: str, lines: int = 40, longest: int = 16 << 10) -> str:
    """The last lines, as many as fit."""
    return "\n".join(log.splitlines()[-lines:])[-longest:]
