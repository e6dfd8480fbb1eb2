"""The known formats, and recognition of a file's format."""

from __future__ import annotations

from pathlib import Path
from types import ModuleType

from tilescope.collectors.foreign_files import (
    helion_autotune,
    inductor_autotune,
    lanes_trace,
    ncu_csv,
    ncu_report,
    perfetto_trace,
    profiler_trace,
    proton,
    tritonparse,
    unread,
)
from tilescope.files import bounded_reading

#: Bytes of a file that formats are recognised by.
HEAD = 256 << 10


#: Every format, in the order of recognition: those with certain first bytes come first, and ncu's CSV last.
FORMATS: tuple[ModuleType, ...] = (
    ncu_report, perfetto_trace, helion_autotune, inductor_autotune, tritonparse, proton, lanes_trace, profiler_trace, ncu_csv,
)  # fmt: skip


def known() -> str:
    *names, last = (one.NAME for one in FORMATS)
    return f"{', '.join(names)} and {last}"


def of(path: Path) -> ModuleType:
    """The format of the file. Raises FileNotFoundError for a missing file, Unreadable for an unknown format."""
    begun = b""
    for piece in bounded_reading.chunks(path):
        begun += piece
        if len(begun) >= HEAD:
            break
    begun = begun[:HEAD]
    called = bounded_reading.one_line(path.name)
    if not begun.strip(b"\x00 \t\r\n"):
        raise bounded_reading.Unreadable(f"{called} is empty: record it again, and let the profiler end")
    found = next((one for one in FORMATS if one.reads(begun, path.name.lower())), None)
    # A name alone says little: every tool writes .csv, and ncu's tables may follow any output.
    if (found is None or (found is FORMATS[-1] and not ncu_csv.begins(begun))) and (
        what := unread.named(begun, path.name.lower())
    ):
        raise bounded_reading.Unreadable(f"{called} is {what}")
    if found is None:
        raise bounded_reading.Unreadable(f"{called} is in no format that Tilescope knows: it opens {known()}")
    return found
