"""Converts Helion's configs to a case's config text and back. Pure."""

from __future__ import annotations

import ast
import re
from typing import Any

#: The source of Helion's values.
SOURCE = "helion"
#: Most characters of one config.
LONGEST_CONFIG = 16 << 10
_EMPTY = "empty"


def config_text(text: str) -> str:
    """Turns ``Config(block_sizes=[64, 32], pid_type='flat')`` into ``block_sizes_0=64,block_sizes_1=32,pid_type=flat``.

    Members of a nested list are joined by colons. An empty text is written ``empty``. The result is empty for other code.
    """
    if len(text) > LONGEST_CONFIG:
        return ""
    try:
        call = ast.parse(text.strip(), mode="eval").body
        if not isinstance(call, ast.Call):
            return ""
        said = {one.arg: ast.literal_eval(one.value) for one in call.keywords if one.arg}
    except (SyntaxError, ValueError, TypeError, RecursionError, MemoryError):
        return ""
    parts: dict[str, str] = {}
    for name, value in said.items():
        if isinstance(value, (list, tuple)):
            parts |= {f"{name}_{place}": _word(one) for place, one in enumerate(value)}
        else:
            parts[name] = _word(value)
    return ",".join(f"{name}={value}" for name, value in parts.items())


def as_code(config: str) -> str:
    """Reverse of ``config_text``: ``helion.Config(block_sizes=[64, 32], pid_type='flat')``."""
    said: dict[str, Any] = {}
    for part in filter(None, config.split(",")):
        name, _, word = part.partition("=")
        stem, _, place = name.rpartition("_")
        if stem and place.isdecimal() and int(place) == len(said.get(stem, [])):
            said.setdefault(stem, []).append(_value(word))
        else:
            said[name] = _value(word)
    return f"helion.Config({', '.join(f'{name}={value!r}' for name, value in said.items())})"


def _word(value: object) -> str:
    if isinstance(value, (list, tuple)):
        return ":".join(_word(one) for one in value) + (":" if len(value) < 2 else "")
    return re.sub(r"[^\w.+-]", "_", str(value)) or _EMPTY


def _value(word: str) -> Any:
    if ":" in word:
        return [_value(one) for one in word.split(":") if one]
    if word == _EMPTY:
        return ""
    try:
        return ast.literal_eval(word)
    except (SyntaxError, ValueError):
        return word
