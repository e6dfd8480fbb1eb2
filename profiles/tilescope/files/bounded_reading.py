"""Reads untrusted files within limits.

Only an ordinary file is read: no device, no pipe, no link that leads out of its folder. Its size is limited, packed and
unpacked, and so is the depth of its JSON. Every fault is raised as Unreadable, with a message of one line. Imports neither
torch nor triton.
"""

from __future__ import annotations

import codecs
import functools
import gzip
import io
import json
import lzma
import os
import re
import stat
import unicodedata
import zlib
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, ParamSpec, TypeVar

MIB = 1 << 20
#: Most bytes of a file, and of its content once gzip or xz is unpacked.
LARGEST, UNPACKED = 512 * MIB, 256 * MIB
#: The same for a file that is read in pieces, and the size of a piece.
LARGEST_STREAM, STREAMED, PIECE = 2048 * MIB, 4096 * MIB, MIB
#: Most bytes of comma-separated text: each cell becomes an object.
CELLS = 64 * MIB
#: Limits of JSON: nesting depth, number of values, bits of an integer.
DEPTH, VALUES, BITS = 64, 4_000_000, 63
#: Memory for unpacking xz: its highest compression level needs 65 MiB.
_XZ_MEMORY = 256 * MIB
#: A null, and lone surrogates, which cannot be encoded.
_UNWRITABLE = re.compile("[\0\ud800-\udfff]")
#: Characters of another message that a wrapped error keeps.
_LONGEST_ERROR = 500

Parameters = ParamSpec("Parameters")
Result = TypeVar("Result")


class Unreadable(ValueError):
    """A file that cannot be read or whose content is invalid. The message is one line."""


def one_line(text: object, most: int = 200) -> str:
    """The text as one printable line of at most ``most`` characters."""
    shown = printable(" ".join(str(text).split()))
    return shown if len(shown) <= most else shown[: most - 1] + "…"


def printable(text: str) -> str:
    """The text with escapes of control characters and of those that turn the direction of writing. Line breaks and spaces stay."""
    if text.isprintable():
        return text
    return "".join(
        c if c.isprintable() or c == "\n" or unicodedata.category(c) == "Zs"
        else c.encode("unicode_escape", "surrogatepass").decode()
        for c in text
    )  # fmt: skip


def shortened(text: str, most: int) -> str:
    """The text, cut in the middle where it is longer than ``most``, because both ends of a mangled name matter."""
    return text if len(text) <= most else f"{text[: most * 2 // 3]}…{text[-(most // 3 - 1) :]}"


def is_inside(path: Path, folder: Path) -> bool:
    """Whether the path is an ordinary file in the folder or below it, once links are followed."""
    try:
        return stat.S_ISREG(path.stat().st_mode) and path.resolve().is_relative_to(folder.resolve())
    except (OSError, ValueError, RuntimeError):
        return False


def content(path: Path, within: Path | None = None, most: int = LARGEST) -> bytes:
    """The file's bytes. Links may not lead out of the folder ``within``, by default the file's own.

    Raises FileNotFoundError where there is no file, otherwise Unreadable.
    """
    try:
        # Checked before opening: opening a pipe blocks, and opening a device may do anything.
        size = _size(path.stat(), path)
        if not path.resolve().is_relative_to((within or path.parent).resolve()):
            raise Unreadable(f"{path.name} is a link out of its folder")
        if size > most:
            raise Unreadable(f"{path.name} has {size} bytes, which is more than {most}")
        with os.fdopen(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC), "rb") as file:
            # Reads the stated size only: files of /proc state 0 bytes and may have no end.
            return file.read(_size(os.fstat(file.fileno()), path))
    except FileNotFoundError:
        raise
    except OSError as error:
        raise Unreadable(f"{path.name} cannot be read ({error.strerror or type(error).__name__})") from error
    except (ValueError, RuntimeError) as error:
        raise error if isinstance(error, Unreadable) else Unreadable(f"the path is invalid ({error})") from error


def chunks(path: Path) -> Iterator[bytes]:
    """The bytes of a file too large for memory, in pieces. gzip (all members) and zstd are unpacked, and UTF-16 and UTF-32 become UTF-8.

    Raises FileNotFoundError where there is no file, otherwise Unreadable, perhaps after the first pieces.
    """
    try:
        if _size(path.stat(), path) > LARGEST_STREAM:
            raise Unreadable(f"{path.name} has more than {LARGEST_STREAM} bytes")
        with os.fdopen(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC), "rb") as file:
            yield from _in_utf8(_pieces(_unpacking(file), path))
    except FileNotFoundError:
        raise
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise Unreadable(f"{path.name} is cut off or damaged: copy it again, or record it again") from error
    except OSError as error:
        raise Unreadable(f"{path.name} cannot be read ({error.strerror or one_line(error)})") from error


def _pieces(source: Any, path: Path) -> Iterator[bytes]:
    left = STREAMED
    while piece := source.read(min(PIECE, left + 1)):
        left -= len(piece)
        if left < 0:
            raise Unreadable(f"{path.name} unpacks to more than {STREAMED} bytes")
        yield piece


def _in_utf8(pieces: Iterable[bytes]) -> Iterator[bytes]:
    """The pieces of a text, encoded anew where they are UTF-16 or UTF-32, or begin with a mark."""
    decoder: codecs.IncrementalDecoder | None = None
    for place, piece in enumerate(pieces):
        if place == 0 and (found := json.detect_encoding(piece)) != "utf-8":
            decoder = codecs.getincrementaldecoder(found)(errors="replace")
        yield decoder.decode(piece).encode() if decoder else piece


def _unpacking(file: io.BufferedReader) -> Any:
    """A file object that reads the unpacked content."""
    magic = file.peek(4)[:4]
    if magic[:2] == b"\x1f\x8b":
        return gzip.GzipFile(fileobj=file)
    if magic == b"\x28\xb5\x2f\xfd":
        import pyarrow as pa  # noqa: PLC0415 - slow to import, and few files are zstd's

        return pa.CompressedInputStream(file, "zstd")
    return file


def _size(found: os.stat_result, path: Path) -> int:
    if not stat.S_ISREG(found.st_mode):
        raise Unreadable(f"{path.name} is no ordinary file")
    return found.st_size


def unpacked(raw: bytes, most: int = UNPACKED) -> bytes:
    """Unpacks gzip and xz; returns other bytes as they are. Raises Unreadable for damaged or too large content."""
    try:
        if raw[:2] == b"\x1f\x8b":
            with gzip.GzipFile(fileobj=io.BytesIO(raw)) as file:
                found = file.read(most + 1)
        elif raw[:6] == b"\xfd7zXZ\x00":
            xz = lzma.LZMADecompressor(lzma.FORMAT_XZ, memlimit=_XZ_MEMORY)
            found = xz.decompress(raw, most + 1)
            if len(found) <= most and not xz.eof:
                raise Unreadable("its packed content is cut off")
        else:
            found = raw
    except (OSError, EOFError, zlib.error, lzma.LZMAError) as error:
        raise Unreadable(f"its packed content is damaged ({one_line(error)})") from error
    if len(found) > most:
        raise Unreadable(f"it unpacks to more than {most} bytes")
    return found


def text(raw: bytes, most: int = CELLS) -> str:
    """Decodes bytes that may be packed: UTF-8, UTF-16 or UTF-32. Other bytes are read as Latin-1.

    Raises Unreadable as ``unpacked``.
    """
    plain = unpacked(raw, most)
    return plain.decode(json.detect_encoding(plain), errors=_LATIN)


def _as_latin(error: UnicodeError) -> tuple[str, int]:
    if not isinstance(error, UnicodeDecodeError):
        raise error
    return error.object[error.start : error.end].decode("latin-1"), error.end


_LATIN = "tilescope.latin-1"
codecs.register_error(_LATIN, _as_latin)


def data(raw: bytes, most: int = UNPACKED) -> Any:
    """Decodes JSON from bytes that may be packed. Raises Unreadable for invalid JSON and for JSON beyond the limits."""
    plain = unpacked(raw, most)
    if sum(plain.count(mark) for mark in (b"[", b"{", b",")) > VALUES:
        raise Unreadable(f"it holds more than {VALUES} values")
    try:
        decoded = plain.decode(json.detect_encoding(plain))
        found = json.loads(decoded)
    except (ValueError, RecursionError) as error:
        raise Unreadable(f"it holds no JSON ({one_line(error)})") from error
    # Only an escape can stand for a lone surrogate or a null.
    _check(found, escapes="\\u" in decoded)
    return found


def data_of(path: Path, within: Path | None = None, most: int = UNPACKED) -> Any:
    """Decodes JSON from a file that may be packed. Raises as ``content`` and ``data``."""
    return data(content(path, within, most), most)


def _check(found: Any, escapes: bool) -> None:
    """Raises Unreadable for JSON that is nested too deeply, or holds a too large integer or an invalid text."""
    waiting = [(found, 0)]
    while waiting:
        value, depth = waiting.pop()
        if isinstance(value, (dict, list)):
            if depth >= DEPTH:
                raise Unreadable(f"it is nested deeper than {DEPTH}")
            waiting += [(item, depth + 1) for item in value]
            if isinstance(value, dict):
                waiting += [(item, depth + 1) for item in value.values()]
        elif isinstance(value, int):
            if value.bit_length() > BITS:
                raise Unreadable("it holds a whole number that is too large")
        elif escapes and isinstance(value, str) and _UNWRITABLE.search(value):
            what = "a null" if "\0" in value else "half a character"
            raise Unreadable(f"it holds a text with {what} in it")


def parser(function: Callable[Parameters, Result]) -> Callable[Parameters, Result]:
    """Decorates a parser of artefacts, so that every error but FileNotFoundError is raised as Unreadable.

    The message is one line that names the artefact, whose path is the first argument of ``function``.
    """

    @functools.wraps(function)
    def parse(*arguments: Parameters.args, **named: Parameters.kwargs) -> Result:
        try:
            return function(*arguments, **named)
        except FileNotFoundError:
            raise
        except Exception as error:
            name = getattr(arguments[0], "name", "the artefact") if arguments else "the artefact"
            why = one_line(error, _LONGEST_ERROR)
            if isinstance(error, LookupError):
                why = f"it lacks {why}"
            raise Unreadable(f"{one_line(name)} cannot be read ({why}): collect it again") from error

    return parse
