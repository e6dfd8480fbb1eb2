"""Names that come from a run and become part of a path, checked in one place."""

from __future__ import annotations

import re

#: As long as every file system takes, with what is put before and after.
_LONGEST = 128
_ID = re.compile(rf"[A-Za-z0-9][A-Za-z0-9._=+-]{{0,{_LONGEST - 1}}}")
#: A cell of a notebook as captures call it, and as IPython does.
_CELL = re.compile(r"(?:notebook_cell(?:_(\d+))?(?:-\d+)?|\d{5,})\.py")
_SOURCE = re.compile(r"(?!\.)[^/\\\x00-\x1f\x7f]{1,200}")


def file_name(text: str, what: str) -> str:
    """The text, if it can name a file or folder and nothing else. Raises ValueError otherwise; ``what`` says what it
    was to name.
    """
    if not _ID.fullmatch(text):
        shown = ascii(text if len(text) <= _LONGEST else text[:_LONGEST])
        raise ValueError(f"{shown} cannot be {what}: use letters, digits, dots and dashes, {_LONGEST} at most")
    return text


def is_source(text: str) -> bool:
    """Whether the text is the plain name of a source file beside another."""
    return bool(_SOURCE.fullmatch(text)) and text.endswith(".py")


def readable(name: str) -> str:
    """A source file's name as people read it: a notebook's cell, which they know by its number, is called so."""
    cell = _CELL.fullmatch(name)
    return " ".join(filter(None, ["notebook cell", cell[1]])) if cell else name
