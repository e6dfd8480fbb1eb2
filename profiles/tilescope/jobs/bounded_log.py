"""What a process prints, of which the beginning and the end are kept, however much it is."""

from __future__ import annotations

#: Bytes that are kept of the beginning and of the end: what a tool says first and what it dies of.
KEPT = 256 << 10


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
