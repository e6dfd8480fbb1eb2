"""Reads JSON that is too large for memory: the members of an object, and one of its arrays item by item.

Memory holds a few pieces of the file at a time. Items are decoded in batches. Imports neither torch nor triton.
"""

from __future__ import annotations

import codecs
import json
import re
from collections.abc import Iterable, Iterator
from typing import Any

import msgspec

from tilescope.files.bounded_reading import MIB, Unreadable, one_line

#: What a file that ends too early is told.
_CUT_OFF = "it is cut off: copy it again, or record it again"
#: Most characters of one value.
LARGEST = 16 * MIB
_SPACE = re.compile(r"[ \t\r\n]*")
#: The comma between two objects of an array.
_BETWEEN = re.compile(r"\}\s*(,)\s*\{")
#: Characters at the end of a window where the last such comma is searched.
_NEAR = 1 << 16
#: A backslash that escapes nothing: Kineto writes paths of Windows so.
_LONE = re.compile(r'\\(?:(["\\/bfnrt]|u[0-9a-fA-F]{4})|)')
#: A text, which the window may cut off and in which a quote may be bare, or a number as C prints one that is none.
_BROKEN = re.compile(
    r'"((?:[^"\\]|\\.|"(?!\s*[,:}\]]))*)(?:"|\\?\Z)|-?(?:nan(?:\(\w*\))?|inf(?:inity)?)(?=[\s,}\]])',
    re.DOTALL | re.IGNORECASE,
)
#: A quote in a text, perhaps escaped.
_QUOTE = re.compile(r'(\\.)|"', re.DOTALL)


def members(pieces: Iterable[bytes], array: str, kind: type) -> Iterator[tuple[str, Any]]:
    """Yields the name and value of each member of the JSON object in ``pieces``.

    The items of the member called ``array`` come in lists, as far as they fit ``kind`` (a msgspec type, whose numbers may be texts).
    So do the items where ``pieces`` hold an array instead of an object; None stands for an item that does not. Kineto's errors are corrected: lone
    backslashes, bare quotes and control characters in texts, and ``inf`` and ``nan``. Raises Unreadable for other invalid JSON, for
    truncated JSON, for an array of such objects, and where anything follows.
    """
    text = _Text(pieces)
    if text.next() == "[":
        if text.begins(rf'\[\s*\{{.{{0,{_NEAR}}}?"{array}"\s*:\s*\['):
            raise Unreadable("it holds an array of traces: give each trace a file of its own")
        for items in text.items(kind):
            yield array, items
    elif text.next() == "{":
        text.take("{")
        while text.next() != "}":
            name = text.value()
            text.take(":")
            if not isinstance(name, str):
                raise Unreadable("it holds no JSON (a member has no name)")
            if name == array and text.next() == "[":
                for items in text.items(kind):
                    yield name, items
            else:
                yield name, text.value()
            if text.next() == ",":
                text.take(",")
        text.take("}")
    else:
        raise Unreadable("it holds no JSON object")
    if text.next():
        raise Unreadable("a second trace, or another text, follows the first: give each trace a file of its own")


class _Text:
    """A window on the text that moves forward as values are read."""

    def __init__(self, pieces: Iterable[bytes]) -> None:
        self._pieces = iter(pieces)
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
        self._decode = json.JSONDecoder(strict=False).raw_decode
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

    def begins(self, pattern: str) -> bool:
        """Whether the text in the window matches ``pattern`` from here."""
        return re.compile(pattern, re.DOTALL).match(self._held, self._place) is not None

    def take(self, mark: str) -> None:
        """Skips ``mark``. Raises Unreadable if another character comes next."""
        if (found := self.next()) != mark:
            raise Unreadable(f"it holds no JSON ({mark!r} is not where it must be)" if found else _CUT_OFF)
        self._place += 1

    def value(self) -> Any:
        """The next value."""
        self.next()
        mended = False
        while True:
            try:
                value, end = self._decode(self._held, self._place)
            except (ValueError, RecursionError) as error:
                if not mended:
                    self._held, self._place = _BROKEN.sub(_corrected, self._held[self._place :]), 0
                    mended = True
                    continue
                if len(self._held) - self._place > LARGEST or not self._more():
                    no_json = f"it holds no JSON ({one_line(error)})"
                    raise Unreadable(f"{no_json}, perhaps because {_CUT_OFF}" if self._whole else no_json) from error
                mended = False
                continue
            # A number at the end of a piece may continue in the next one.
            if end == len(self._held) and self._more():
                continue
            self._place = end
            return value

    def items(self, kind: type) -> Iterator[list[Any]]:
        """The items of the array that comes next, in lists, each as ``kind`` or None."""
        decoder = msgspec.json.Decoder(list[kind], strict=False)  # type: ignore[valid-type]
        self.take("[")
        tried = ""
        while self.next() != "]":
            if self._held is not tried:
                tried = self._held
                cut = self._last_comma()
                if cut > 0 and (found := self._batch(decoder, cut)) is not None:
                    yield found
                    continue
            value = self.value()
            try:
                yield [msgspec.convert(value, kind, strict=False)]
            except msgspec.ValidationError:
                yield [None]
            if self.next() == ",":
                self.take(",")
        self.take("]")

    def _last_comma(self) -> int:
        """The place of the last comma between two objects in the window; 0 without one."""
        start = max(self._place, len(self._held) - _NEAR)
        return max((found.start(1) for found in _BETWEEN.finditer(self._held, start)), default=0)

    def _batch(self, decoder: msgspec.json.Decoder[list[Any]], cut: int) -> list[Any] | None:
        """The items before the comma at ``cut``. None where that comma is within an item, or an item does not fit."""
        try:
            found = decoder.decode(f"[{self._held[self._place : cut]}]")
        except (msgspec.DecodeError, RecursionError, UnicodeEncodeError):
            return None
        self._place = cut + 1
        return found

    def _more(self) -> bool:
        """Reads another piece. Returns False where there is none."""
        piece = next(self._pieces, None)
        self._whole = piece is None
        added = self._decoder.decode(piece or b"", piece is None)
        self._held = self._held[self._place :] + added
        self._place = 0
        return piece is not None or bool(added)


def _corrected(found: re.Match[str]) -> str:
    """A text with every backslash and quote escaped; null for a number that is none. A text that is cut off is left as it is."""
    if found[1] is None:
        return "null"
    if found.end() == len(found.string):
        return found[0]
    escaped = _LONE.sub(lambda lone: lone[0] if lone[1] else "\\\\", found[1])
    return '"' + _QUOTE.sub(lambda quote: quote[1] or '\\"', escaped) + '"'
