"""Suggestions for an unknown name."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


def unknown(what: str, text: str, known: Iterable[str]) -> str:
    """The message ``unknown kernel 'sofmax': did you mean 'softmax'?``. It lists all known names where none is close."""
    names = list(known)
    close = difflib.get_close_matches(text, names, n=1)
    return f"unknown {what} {text!r}: " + (f"did you mean {close[0]!r}?" if close else f"use one of {', '.join(names)}")
