"""What a user says of a run: its name, tags and a note, in ``labels.json`` beside its data; and deleting a run."""

from __future__ import annotations

import contextlib
import json
import shutil
from dataclasses import asdict, dataclass
from pathlib import Path

from tilescope.files import atomic_writing, bounded_reading, json_shape

FILE = "labels.json"
#: Characters of a name or a tag, and of a note.
_SHORT, _LONG = 80, 4000


@dataclass(frozen=True)
class Labels:
    """Empty where a user said nothing."""

    name: str = ""
    tags: tuple[str, ...] = ()
    note: str = ""


def read(folder: Path) -> Labels:
    """The labels of the run in a folder; empty ones where the file is absent or damaged."""
    with contextlib.suppress(OSError, ValueError, TypeError, LookupError):
        found = json_shape.fit(bounded_reading.data_of(folder / FILE, within=folder), Labels, FILE)
        return labels(found.name, found.tags, found.note)
    return Labels()


def labels(name: str, tags: tuple[str, ...], note: str) -> Labels:
    """Labels as they are stored: in printable text of limited length."""
    short = [bounded_reading.one_line(text, _SHORT) for text in (name, *tags)]
    return Labels(short[0].strip(), tuple(dict.fromkeys(filter(None, map(str.strip, short[1:])))), note.strip()[:_LONG])


def write(folder: Path, said: Labels) -> None:
    """Store the labels of the run in a folder. Raises OSError where it cannot be written."""
    text = json.dumps(asdict(said), ensure_ascii=False, indent=1)
    atomic_writing.replace(folder / FILE, lambda path: path.write_text(text, encoding="utf-8"))


def delete(folder: Path) -> None:
    """Delete the run in a folder with all that belongs to it. Raises OSError where it cannot."""
    # The run is gone from lists at once, even where deleting its files takes time or fails.
    gone = folder.with_name(f".deleted-{folder.name}")
    folder.rename(gone)
    shutil.rmtree(gone)
