"""Reads of files that may come from anywhere, within limits.

Only an ordinary file is read: no device, no pipe, no link out of the folder that it is to lie in. Its size is limited,
packed and unpacked, and so is the depth of its JSON. Any fault becomes one error of one line. Imports neither torch nor
triton.
"""

from __future__ import annotations

import functools
import gzip
import io
import json
import lzma
import os
import stat
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, ParamSpec, TypeVar

MIB = 1 << 20
#: Bytes of a file as it lies there, and of what gzip or xz make of it.
LARGEST, UNPACKED = 512 * MIB, 256 * MIB
#: The same of files that are read piece by piece, and of a piece.
LARGEST_STREAM, STREAMED, PIECE = 2048 * MIB, 4096 * MIB, MIB
#: Bytes of a text of comma-separated cells, each of which becomes an object.
CELLS = 64 * MIB
#: How deep JSON may be nested, how many values it may hold, and how large a whole number is.
DEPTH, VALUES, BITS = 64, 4_000_000, 63
#: Memory that unpacking xz may take: what its best compression needs, and some.
_XZ_MEMORY = 256 * MIB

Parameters = ParamSpec("Parameters")
Result = TypeVar("Result")


class Unreadable(ValueError):
    """A file that cannot be read, or holds what it must not. One line."""


def one_line(text: object, most: int = 200) -> str:
    """The text in one line that every terminal can show."""
    line = " ".join(str(text).split())
    shown = "".join(c if c.isprintable() else c.encode("unicode_escape", "surrogatepass").decode() for c in line)
    return shown if len(shown) <= most else shown[: most - 1] + "…"


def is_inside(path: Path, folder: Path) -> bool:
    """Whether the path, its links followed, is an ordinary file in the folder or below."""
    try:
        return stat.S_ISREG(path.stat().st_mode) and path.resolve().is_relative_to(folder.resolve())
    except (OSError, ValueError, RuntimeError):
        return False


def content(path: Path, within: Path | None = None, most: int = LARGEST) -> bytes:
    """The file's bytes. ``within`` is the folder that it must lie in: its own, if none is named.

    Raises FileNotFoundError where there is none, else Unreadable.
    """
    try:
        # Asked before it is opened: to open a pipe waits, and to open a device may do anything.
        size = _size(path.stat(), path)
        if not path.resolve().is_relative_to((within or path.parent).resolve()):
            raise Unreadable(f"{path.name} is a link out of its folder")
        if size > most:
            raise Unreadable(f"{path.name} has {size} bytes, which is more than {most}")
        with os.fdopen(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC), "rb") as file:
            # Not to its end: what the kernel makes up as it is read says that it has no bytes.
            return file.read(_size(os.fstat(file.fileno()), path))
    except FileNotFoundError:
        raise
    except OSError as error:
        raise Unreadable(f"{path.name} cannot be read ({error.strerror or type(error).__name__})") from error
    except (ValueError, RuntimeError) as error:
        raise error if isinstance(error, Unreadable) else Unreadable(f"no file is called so ({error})") from error


def chunks(path: Path, most: int = STREAMED) -> Iterator[bytes]:
    """The file's bytes in pieces of at most ``PIECE``, unpacked where they are gzip's (all of its members) or zstd's: for files
    that are too large to be held. ``most`` bounds what they come to.

    Raises FileNotFoundError where there is none, else Unreadable, which may come after the first pieces.
    """
    try:
        if _size(path.stat(), path) > LARGEST_STREAM:
            raise Unreadable(f"{path.name} has more than {LARGEST_STREAM} bytes")
        with os.fdopen(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC), "rb") as file:
            source = _unpacking(file)
            left = most
            while piece := source.read(min(PIECE, left + 1)):
                left -= len(piece)
                if left < 0:
                    raise Unreadable(f"{path.name} comes to more than {most} bytes")
                yield piece
    except FileNotFoundError:
        raise
    except (OSError, EOFError, zlib.error) as error:
        why = getattr(error, "strerror", None) or one_line(error) or type(error).__name__
        raise Unreadable(f"{path.name} cannot be read ({why})") from error


def _unpacking(file: io.BufferedReader) -> Any:
    """The file as it unpacks while it is read."""
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
    """What gzip or xz packed; other bytes as they are. Raises Unreadable for what is damaged or too large."""
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
    """The text of bytes that may be packed; what is no UTF-8 is replaced. Raises Unreadable."""
    return unpacked(raw, most).decode(errors="replace")


def data(raw: bytes, most: int = UNPACKED) -> Any:
    """The JSON value in the bytes, which may be packed. Raises Unreadable where there is none, or one beyond the
    limits.
    """
    plain = unpacked(raw, most)
    if sum(plain.count(mark) for mark in (b"[", b"{", b",")) > VALUES:
        raise Unreadable(f"it holds more than {VALUES} values")
    try:
        found = json.loads(plain.decode())
    except (ValueError, RecursionError) as error:
        raise Unreadable(f"it holds no JSON ({one_line(error)})") from error
    # Only an escape can stand for a character that is none.
    _check(found, escapes=b"\\u" in plain)
    return found


def data_of(path: Path, within: Path | None = None, most: int = UNPACKED) -> Any:
    """The JSON value in a file that may be packed. Raises FileNotFoundError where there is none, else Unreadable."""
    return data(content(path, within, most), most)


def _check(found: Any, escapes: bool) -> None:
    """Raises Unreadable for nesting that is too deep, a whole number that is too large, and text that is not valid."""
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
        elif escapes and isinstance(value, str):
            check_text(value)


def check_text(value: str) -> None:
    """Raises Unreadable for a text that cannot be written down, or has a null in it."""
    if "\x00" in value:
        raise Unreadable("it holds a text with a null in it")
    try:
        value.encode()
    except UnicodeEncodeError as error:
        raise Unreadable("it holds a text with half a character in it") from error


def parser(function: Callable[Parameters, Result]) -> Callable[Parameters, Result]:
    """Decorates a parser of artefacts: any error in it becomes one line that names the artefact.

    The first argument of ``function`` is the artefact's path, and it reads only that file. FileNotFoundError passes.
    """

    @functools.wraps(function)
    def parse(*arguments: Parameters.args, **named: Parameters.kwargs) -> Result:
        try:
            return function(*arguments, **named)
        except FileNotFoundError:
            raise
        except Exception as error:
            name = getattr(arguments[0], "name", "the artefact") if arguments else "the artefact"
            why = one_line(error)
            if isinstance(error, LookupError):
                why = f"it lacks {why}"
            raise Unreadable(f"{one_line(name)} cannot be read ({why}): collect it again") from error

    return parse
