"""The formats that are read, a line each, and how a file's is found."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Protocol, cast

from tilescope.collectors.foreign_files import (
    helion_autotune,
    inductor_autotune,
    ncu_csv,
    ncu_report,
    profiler_trace,
    proton,
    tritonparse,
)
from tilescope.collectors.foreign_files.contents import Contents
from tilescope.files import bounded_reading

#: Bytes by which a file is known.
HEAD = 256 << 10


class Format(Protocol):
    """What a format's module has; see the package."""

    NAME: str
    reads: Callable[[bytes, str], bool]
    read: Callable[[Path], Contents]


#: In the order in which they are asked: those that are known for certain by their first bytes come first.
FORMATS = cast(
    "tuple[Format, ...]", (ncu_report, helion_autotune, inductor_autotune, tritonparse, proton, profiler_trace, ncu_csv)
)


def known() -> str:
    """The formats as a sentence names them."""
    *names, last = (one.NAME for one in FORMATS)
    return f"{', '.join(names)} and {last}"


def of(path: Path) -> Format:
    """The format of the file. Raises FileNotFoundError where there is none, Unreadable for one that is in no known format."""
    begun = b""
    for piece in bounded_reading.chunks(path):
        begun += piece
        if len(begun) >= HEAD:
            break
    begun = begun[:HEAD]
    found = next((one for one in FORMATS if one.reads(begun, path.name.lower())), None)
    if found is None:
        what = "is empty" if not begun else "is in no format that Tilescope knows"
        raise bounded_reading.Unreadable(f"{bounded_reading.one_line(path.name)} {what}: it opens {known()}")
    return found
