"""What can go wrong with a file of a run: bytes that are flipped, values that are others, things that are no files."""

import copy
import gzip
import io
import json
import lzma
import os
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pandas as pd

#: Values that stand where another kind, size or sign is expected.
EVIL: tuple[Any, ...] = (
    None, True, False, 0, -1, 1, 5, 2**31, 2**63, -(2**63), 10**30, 10**400, 0.0, -0.0, 1e308, -1e308, 5e-324, float("nan"),
    float("inf"), float("-inf"), "", " ", "x", "\x00", "\ud800", "\udfff\ud800", "\u2028\n\r\t", "\x1b[31m", "../victim", ".", "..",
    "/", "/proc/kmsg", "/dev/zero", "/etc/passwd", "a" * 100_000, "é" * 300, "__main__/x.py", "../../x.py", "nan", "1e999",
    "9" * 5000, [], {}, [[]], [None], {"": None}, {"\x00": 1}, [1, "a", None], {"a": {"b": {"c": []}}}, "latest", "<b>", "=1+1",
)  # fmt: skip
#: Where a link may lead that must not be followed.
AWAY = ("/etc/passwd", "/proc/kmsg", "/dev/zero", "/dev/stdin", "/proc/self/mem", "nowhere", ".", "..")


def deep(depth: int, of: str) -> str:
    """JSON nested so deep."""
    return "[" * depth + "]" * depth if of == "[" else '{"a":' * depth + "1" + "}" * depth


def value(rng: random.Random, data: Any) -> Any:
    """The JSON value with one to three places changed."""
    data = copy.deepcopy(data)
    for _ in range(rng.choice((1, 1, 1, 2, 3))):
        data = _one(rng, data)
    return data


def _one(rng: random.Random, data: Any) -> Any:
    places = _places(data)
    if not places or rng.random() < 0.02:
        return rng.choice(EVIL)
    holder, key = rng.choice(places)
    kind = rng.randrange(10)
    if kind < 5:
        evil = rng.choice(EVIL)
        try:  # what holds it may be the same value, from a mutation before
            holder[key] = copy.deepcopy(evil)
        except RecursionError:
            holder[key] = evil
    elif kind == 5:
        del holder[key]
    elif kind == 6:
        holder[key] = [copy.deepcopy(holder[key]) for _ in range(rng.choice((1, 2, 300)))]
    elif kind == 7:
        holder[key] = {"a": holder[key]}
    elif kind == 8:
        number, factor = (
            holder[key],
            rng.choice((-1, 0, 1e200, 1e-300)) if isinstance(holder[key], (int, float)) else None,
        )
        try:
            holder[key] = str(number) if factor is None else number * factor
        except OverflowError:  # an integer that no float holds, by a mutation before
            holder[key] = -number
    else:
        holder_2, key_2 = rng.choice(places)
        try:
            holder[key] = copy.deepcopy(holder_2[key_2])
        except (KeyError, IndexError):
            holder[key] = None
    return data


def _places(data: Any) -> list[tuple[Any, Any]]:
    """Every place in a JSON value: what holds it, and its key there. Those near the top are not drowned by those below."""
    levels: list[list[tuple[Any, Any]]] = []
    waiting = [data]
    while waiting and len(levels) < 12:
        keys = [
            (v, k)
            for v in waiting
            for k in (v if isinstance(v, dict) else range(len(v)) if isinstance(v, list) else ())
        ]
        levels.append(keys)
        waiting = [v[k] for v, k in keys]
    most = max(map(len, levels), default=0)
    return [place for level in levels if level for place in level * max(1, min(20, most // (4 * len(level))))]


def written(rng: random.Random, data: Any) -> bytes:
    """The value as JSON, sometimes nested beyond reason."""
    try:
        text = json.dumps(data)
    except RecursionError:  # a mutant of a mutant
        text = deep(100_000, "[")
    if rng.random() < 0.05:
        nested = deep(rng.choice((10, 63, 64, 65, 500, 990, 5000, 100_000)), rng.choice("[{"))
        text = text.replace("null", nested, 1) if "null" in text else text[:-1] + f', "deep": {nested}}}'
    return text.encode(rng.choice(("utf-8",) * 20 + ("utf-16", "latin-1")), "replace")


def raw(rng: random.Random, content: bytes) -> bytes:
    """The bytes with some flipped, cut off, put in, taken out or repeated."""
    found = bytearray(content)
    for _ in range(rng.choice((1, 1, 2, 8))):
        size = len(found)
        place = rng.randrange(size + 1)
        kind = rng.randrange(8)
        if kind < 3 and size:
            found[place % size] ^= 1 << rng.randrange(8)
        elif kind == 3:
            del found[place:]
        elif kind == 4:
            del found[place : place + rng.randrange(1, 65)]
        elif kind == 5:
            found[place:place] = rng.randbytes(rng.randrange(1, 65))
        elif kind == 6:
            start = rng.randrange(size + 1)
            found[place:place] = found[start : start + rng.randrange(1, 513)]
        else:
            found[place : place + 8] = rng.choice((b"\xff" * 8, b"\x00" * 8, b'"' * 8, b"\x7f\xff\xff\xff" * 2))
    return bytes(found)


def bomb(rng: random.Random, packed: str) -> bytes:
    """Little that unpacks to much."""
    size = rng.choice((300, 400)) << 20
    piece = rng.choice((b"\x00", b" ", b"[", b'"ID",', b"[],", b'{"a":'))
    return _bomb(size, piece, packed)


_BOMBS: dict[tuple[int, bytes, str], bytes] = {}


def _bomb(size: int, piece: bytes, packed: str) -> bytes:
    key = (size, piece, packed)
    if key not in _BOMBS:
        out = io.BytesIO()
        part = piece * ((1 << 20) // len(piece))
        with (
            gzip.GzipFile(fileobj=out, mode="wb", compresslevel=1)
            if packed == "gz"
            else lzma.LZMAFile(out, "wb", preset=0) as file
        ):
            for _ in range(size >> 20):
                file.write(part)
        _BOMBS[key] = out.getvalue()
    return _BOMBS[key]


#: Bytes that a column's new values come to at most.
_LARGEST = 100 << 20


def frame(rng: random.Random, table: pd.DataFrame, path: Path) -> None:
    """Writes the table with values that are others, of other kinds, absent, or too many."""
    table = table.copy()
    for _ in range(rng.choice((1, 1, 2, 4))):
        name = str(rng.choice(list(table.columns)))
        kind = rng.randrange(12)
        if kind < 6 and len(table):
            column = table[name].astype("object")
            rows = rng.sample(range(len(table)), rng.choice((1, max(1, len(table) // 2), len(table))))
            new = _cell(rng, name, table)
            if isinstance(new, str) and len(new) * len(rows) > _LARGEST:  # the table's readers are tested, not this
                new = new[: _LARGEST // len(rows)]
            for row in rows:
                column.iloc[row] = new
            table[name] = _settled(column)
        elif kind == 6:
            table = table.drop(columns=name)
        elif kind == 7:
            table = table.rename(columns={name: rng.choice(("", "x", "kernel", name.upper()))})
        elif kind == 8:
            table = pd.concat([table] * rng.choice((2, 3, 50)), ignore_index=True)
        elif kind == 9:
            table = table.iloc[: rng.randrange(len(table) + 1)]
        elif kind == 10:
            table = table.sample(frac=1, random_state=rng.randrange(2**31))
        else:
            table = table.assign(**{rng.choice(("extra", "kernel ", name)): rng.choice((1, "a", None))})
    try:
        table.to_parquet(path, index=rng.random() < 0.1)
    except Exception:  # what cannot be written cannot be read either
        path.write_bytes(rng.randbytes(100))


def _cell(rng: random.Random, name: str, table: pd.DataFrame) -> Any:
    if rng.random() < 0.3:
        return rng.choice(list(table[rng.choice(list(table.columns))]))
    if name == "value":
        return rng.choice((0.0, -1.0, 1e308, -1e308, 5e-324, float("nan"), float("inf"), 1e30, -0.0, "x", None))
    if name in ("launch", "sample", "line"):
        return rng.choice((0, -1, 1, 2**31 - 1, -(2**31), 2**40, None, 0.5, "x", 7))
    if name in ("metric", "source", "unit") and rng.random() < 0.7:
        return rng.choice(
            [*table[name], "events", "ncu", "model", "gpu_time", "interval", "dram_bytes_read", "registers"]
        )
    return rng.choice(
        ("", "x", None, "a" * 5000, "a" * 70_000, "\x00", "\n", "../x", "0x0-fp32", "--", "é", 5, b"\xff", "backward")
    )


def _settled(column: Any) -> Any:
    try:
        return column.infer_objects()
    except Exception:
        return column


def no_file(rng: random.Random, path: Path) -> None:
    """Puts something in the file's place that is none, or another's, or none at all."""
    kind = rng.randrange(7)
    path.unlink(missing_ok=True)
    if kind == 0:
        path.symlink_to(rng.choice(AWAY))
    elif kind == 1:
        os.mkfifo(path)
    elif kind == 2:
        path.mkdir()
    elif kind == 3:
        path.write_bytes(b"")
    elif kind == 4:
        with path.open("wb") as file:
            file.truncate(rng.choice((1 << 20, 600 << 20, 1 << 40)))
    elif kind == 5:
        path.write_bytes(rng.randbytes(rng.choice((1, 16, 5000))))


def file(rng: random.Random, path: Path) -> str:  # noqa: PLR0911 - a kind of file each
    """Mutates one file, by what it is; says how."""
    if rng.random() < 0.06:
        no_file(rng, path)
        return "no file"
    content = path.read_bytes()
    packed = "gz" if content[:2] == b"\x1f\x8b" else "xz" if content[:6] == b"\xfd7zXZ\x00" else ""
    if packed and rng.random() < 0.02:
        path.write_bytes(bomb(rng, packed))
        return "bomb"
    if rng.random() < 0.4:
        path.write_bytes(raw(rng, content))
        return "bytes"
    if path.suffix == ".parquet":
        try:
            table = pd.read_parquet(path)
        except Exception:  # it was mutated before
            path.write_bytes(raw(rng, content))
        else:
            frame(rng, table, path)
        return "table"
    pack: Callable[[bytes], bytes] = {"gz": gzip.compress, "xz": lzma.compress, "": bytes}[packed]
    try:
        plain = {"gz": gzip.decompress, "xz": lzma.decompress, "": bytes}[packed](content)
    except Exception:  # it was mutated before
        path.write_bytes(raw(rng, content))
        return "bytes"
    if path.suffix in (".jsonl", ".ndjson"):
        lines = plain.split(b"\n")
        place = rng.randrange(len(lines))
        lines[place] = _json(rng, lines[place])
        path.write_bytes(b"\n".join(lines))
        return "line"
    path.write_bytes(pack(_json(rng, plain)))
    return "content"


def _json(rng: random.Random, plain: bytes) -> bytes:
    try:
        data = json.loads(plain)
    except (ValueError, RecursionError):  # no JSON, or nested deeply by a mutation before
        return raw(rng, plain)
    return written(rng, value(rng, data))
