"""A worker's output: events, whose form is checked, and a log, of which a bounded part is kept; and what its end says.

The worker runs other people's code, which may write anything in any amount. A failure of the machine (full disk, no memory, a limit)
is told from a failure of a kernel.
"""

from __future__ import annotations

import contextlib
import errno
import getpass
import json
import os
import re
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

#: Bytes that are kept of a log's beginning and of its end.
KEPT = 256 << 10
#: The longest line in bytes: the declarations of a library of kernels take a few million.
LONGEST = 32 << 20
#: The longest texts in characters: of a message, and of its details.
_MESSAGE, _DETAIL = 2000, 64 << 10

#: Required keys of each kind of event, and their types.
_SHAPES: dict[str, dict[str, type]] = {
    "start": {},
    "ready": {},
    "waiting": {},
    "case": {"case": str, "doing": str},
    "result": {"case": str},
    "skipped": {"case": str, "message": str},
    "error": {"message": str},
    "done": {},
    "catalog": {"kernels": list},
    "ceilings": {"ceilings": list},
    "chain": {"chain": dict},
    "files": {"texts": dict},
    "captured": {"job": dict, "ended": str, "folder": str, "unmade": str, "why": str},
}
_TEXTS = {"case": _MESSAGE, "doing": 200, "message": _MESSAGE, "environment": _MESSAGE, "why": _MESSAGE, "detail": _DETAIL}  # fmt: skip

#: Errors of system calls for lack of a resource, which may be available at another time.
_LACKING = frozenset(
    {errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.EAGAIN, errno.EROFS, errno.EIO}
)  # fmt: skip
#: Texts of such errors in the output of tools.
_SAID = re.compile("|".join(os.strerror(number) for number in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EMFILE)))
#: Signals of a process that exceeds its limits.
LIMITS = frozenset({"SIGXFSZ", "SIGXCPU"})
#: Signals that usually come from outside: the system (memory ran out), a person, a batch system.
FROM_OUTSIDE = frozenset({"SIGKILL", "SIGTERM", "SIGINT", "SIGHUP"})


def inductor_cache() -> Path:
    try:
        user = getpass.getuser()
    except (KeyError, ModuleNotFoundError, OSError):
        user = f"uid_{os.getuid()}"
    usual = Path(tempfile.gettempdir(), "torchinductor_" + re.sub(r'[\\/:*?"<>|]', "_", user))
    return Path(os.environ.get("TORCHINDUCTOR_CACHE_DIR", usual))


class EventLines:
    """Assembles events from pieces of the stream. ``ignored`` counts the lines that were no event."""

    def __init__(self, longest: int = LONGEST) -> None:
        self._longest, self._open, self._skipping = longest, bytearray(), False
        self.ignored = 0

    def feed(self, data: bytes) -> list[dict[str, Any]]:
        """The events that ``data`` completes. An unfinished line is kept for the next piece."""
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
    """The event in one line; None where it has not the form of an event."""
    try:
        event = json.loads(line.decode("utf-8", errors="replace"))
    except (ValueError, RecursionError):
        return None
    shape = _SHAPES.get(kind) if isinstance(event, dict) and isinstance(kind := event.get("event"), str) else None
    if shape is None or not all(isinstance(event.get(name), type_) for name, type_ in shape.items()):
        return None
    if not all(isinstance(event.get(name, ""), str) for name in _TEXTS):
        return None
    if b"\\ud" in line.lower():  # JSON can express half a character, UTF-8 cannot
        event = json.loads(json.dumps(event, ensure_ascii=False).encode(errors="replace"))
    for name, longest in _TEXTS.items():
        if len(event.get(name, "")) > longest:
            event[name] = event[name][-longest:] if name == "detail" else f"{event[name][:longest]}…"
    return dict(event)


class BoundedLog:
    """A log that holds at most ``3 * kept`` bytes beside those of one write; ``written`` counts all bytes."""

    def __init__(self, kept: int = KEPT) -> None:
        self._kept = kept
        self._head, self._tail = bytearray(), bytearray()
        self._dropped = self.written = 0

    def write(self, data: bytes) -> None:
        self.written += len(data)
        room = self._kept - len(self._head)
        if room > 0:
            self._head += data[:room]
            data = data[room:]
        self._tail += data
        # Not at every write, because it moves the whole tail.
        if len(self._tail) > 2 * self._kept:
            self._trim()

    def text(self) -> str:
        """The beginning, a line on the omitted bytes if there are any, and the end. Invalid UTF-8 is replaced."""
        self._trim()
        head, tail = (bytes(part).decode("utf-8", errors="replace") for part in (self._head, self._tail))
        return f"{head}\n[… {self._dropped} bytes left out …]\n{tail}" if self._dropped else head + tail

    def _trim(self) -> None:
        over = len(self._tail) - self._kept
        if over > 0:
            del self._tail[:over]
            self._dropped += over


def last_line(log: str, longest: int = 300) -> str:
    """The last line that is not blank, cut to ``longest`` characters."""
    line = next((text.strip() for text in reversed(log.splitlines()) if text.strip()), "")
    return line if len(line) <= longest else f"{line[:longest]}…"


def tail(log: str, lines: int = 40, longest: int = 16 << 10) -> str:
    """The last ``lines`` lines, cut to ``longest`` characters."""
    return "\n".join(log.splitlines()[-lines:])[-longest:]


def lacking(error: BaseException, starting: bool = False) -> str:
    """The lacking resource that caused ``error``, as ``No space left on device (ENOSPC)``; empty where there is none.

    A MemoryError counts only while a process is ``starting``; later the case itself may cause it.
    """
    for link in _chain(error):
        if isinstance(link, OSError) and link.errno in _LACKING:
            return f"{os.strerror(link.errno)} ({errno.errorcode[link.errno]})"
        if starting and isinstance(link, MemoryError):
            return os.strerror(errno.ENOMEM)
        with contextlib.suppress(Exception):  # str() of a kernel's own exception may raise
            if found := _SAID.search(str(link)[:10_000]):
                return found[0]
    return ""


def _chain(error: BaseException) -> Iterator[BaseException]:
    link: BaseException | None = error
    for _ in range(20):
        if link is None:
            return
        yield link
        link = link.__cause__ or (None if link.__suppress_context__ else link.__context__)


def oom_kills() -> int:
    """The number of processes that the system has killed so far for lack of memory, here or in this container."""
    return sum(_counted(path) for path in _counters())


def _counters() -> Iterator[Path]:
    yield Path("/proc/vmstat")
    groups = Path("/sys/fs/cgroup")
    with contextlib.suppress(OSError):
        for line in Path("/proc/self/cgroup").read_text().splitlines():
            _, controllers, path = line.split(":", 2)
            if not controllers:
                yield groups / path.lstrip("/") / "memory.events"
            elif "memory" in controllers.split(","):
                yield groups / "memory" / path.lstrip("/") / "memory.oom_control"
    # In containers that see their own group as the root.
    yield groups / "memory.events"


def _counted(path: Path) -> int:
    with contextlib.suppress(OSError, ValueError):
        for line in path.read_text().splitlines():
            name, _, value = line.partition(" ")
            if name == "oom_kill":
                return int(value)
    return 0
