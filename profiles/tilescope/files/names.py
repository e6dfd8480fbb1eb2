"""Checks names from a run before they become part of a path."""

from __future__ import annotations

import re

#: Short enough for every file system, with a prefix and a suffix.
_LONGEST = 128
_ID = re.compile(rf"[A-Za-z0-9][A-Za-z0-9._=+-]{{0,{_LONGEST - 1}}}")
#: A notebook's cell as captures name it, or as IPython does.
_CELL = re.compile(r"(?:notebook_cell(?:_(\d+))?(?:-\d+)?|\d{5,})\.py")


def file_name(text: str, what: str) -> str:
    """Returns the text if it can be the name of a file or folder. Raises ValueError otherwise; ``what`` says of what."""
    if not _ID.fullmatch(text):
        shown = ascii(text if len(text) <= _LONGEST else text[:_LONGEST])
        raise ValueError(f"{shown} cannot be {what}: use letters, digits, dots and dashes, {_LONGEST} at most")
    return text


def readable(name: str) -> str:
    """A source file's name for people: that of a notebook's cell becomes ``notebook cell 5``."""
    cell = _CELL.fullmatch(name)
    return " ".join(filter(None, ["notebook cell", cell[1]])) if cell else name
