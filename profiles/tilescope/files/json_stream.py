"""Reads JSON that is too large for memory, value by value: the members of an object and the items of one of its arrays.

Memory holds one value and one piece of the file at a time. Imports neither torch nor triton.
"""

from __future__ import annotations

import codecs
import json
import re
from collections.abc import Iterable, Iterator
from typing import Any

from tilescope.files.bounded_reading import MIB, Unreadable, one_line

#: Most characters of one value.
LARGEST = 16 * MIB
_SPACE = re.compile(r"[ \t\r\n]*")


def members(pieces: Iterable[bytes], array: str) -> Iterator[tuple[str, Any]]:
    """Yields the name and value of each member of the JSON object in ``pieces``.

    The items of the member called ``array`` come one by one, each under that name. So do the items where ``pieces`` hold an
    array instead of an object. Raises Unreadable for invalid or truncated JSON.
    """
    text = _Text(pieces)
    if text.next() == "[":
        for item in text.items():
            yield array, item
    elif text.next() == "{":
        text.take("{")
        while text.next() != "}":
            name = text.value()
            text.take(":")
            if not isinstance(name, str):
                raise Unreadable("it holds no JSON (a member has no name)")
            if name == array and text.next() == "[":
                for item in text.items():
                    yield name, item
            else:
                yield name, text.value()
            if text.next() == ",":
                text.take(",")
        text.take("}")
    else:
        raise Unreadable("it holds no JSON object")


class _Text:
    """A window on the text that moves forward as values are read."""

    def __init__(self, pieces: Iterable[bytes]) -> None:
        self._pieces = iter(pieces)
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
        self._decode = json.JSONDecoder().raw_decode
        self._held, self._place, self._whole = "", 0, False

    def next(self) -> str:
        """The next character that is not white space; empty at the end."""
        while True:
            found = _SPACE.match(self._held, self._place)
            self._place = found.end() if found else self._place
            if self._place < len(self._held):
                return self._held[self._place]
            if not self._more():
                return ""

    def take(self, mark: str) -> None:
        """Skips ``mark``. Raises Unreadable if another character comes next."""
        if (found := self.next()) != mark:
            raise Unreadable(f"it holds no JSON ({mark!r} is not where it must be)" if found else "it is cut off")
        self._place += 1

    def value(self) -> Any:
        """The next value."""
        self.next()
        while True:
            try:
                value, end = self._decode(self._held, self._place)
            except (ValueError, RecursionError) as error:
                if len(self._held) - self._place > LARGEST or not self._more():
                    why = "it is cut off, or holds no JSON" if self._whole else "it holds no JSON"
                    raise Unreadable(f"{why} ({one_line(error)})") from error
                continue
            # A number at the end of a piece may continue in the next one.
            if end == len(self._held) and self._more():
                continue
            self._place = end
            return value

    def items(self) -> Iterator[Any]:
        """The items of the array that comes next."""
        self.take("[")
        while self.next() != "]":
            yield self.value()
            if self.next() == ",":
                self.take(",")
        self.take("]")

    def _more(self) -> bool:
        """Reads another piece. Returns False where there is none."""
        piece = next(self._pieces, None)
        self._whole = piece is None
        added = self._decoder.decode(piece or b"", piece is None)
        self._held = self._held[self._place :] + added
        self._place = 0
        return piece is not None or bool(added)
