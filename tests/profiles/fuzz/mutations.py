"""What can go wrong with a file of a run: bytes that are flipped, values that are others, things that are no files."""

import contextlib
import copy
import functools
import gzip
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


#: How a file that begins so is unpacked and packed.
PACKED: dict[bytes, tuple[Callable[[bytes], bytes], Callable[[bytes], bytes]]] = {
    b"\x1f\x8b": (gzip.decompress, functools.partial(gzip.compress, compresslevel=1)),
    b"\xfd7": (lzma.decompress, functools.partial(lzma.compress, preset=0)),
}


def value(rng: random.Random, data: Any) -> Any:
    """The JSON value with one to three places changed."""
    root = [copy.deepcopy(data)]
    for _ in range(rng.choice((1, 1, 1, 2, 3))):
        (holder, key), (other, place) = _place(rng, root), _place(rng, root)
        was, number = holder[key], isinstance(holder[key], float)
        if holder is not root and rng.random() < 0.1:
            del holder[key]
            continue
        more = ([was] * rng.choice((0, 1, 2, 300)), {"a": was}, other[place])
        scaled = was * rng.choice((-1, 0, 1e200, 1e-300)) if number else str(was)
        holder[key] = copy.deepcopy(rng.choice((*[rng.choice(EVIL)] * 5, scaled, *more)))
    return root[0]


def _place(rng: random.Random, root: list[Any]) -> tuple[Any, Any]:
    """A place in a JSON value: what holds it, and its key there. Those near the top are not drowned by those below."""
    holder, key = root, 0
    for _ in range(rng.randrange(12)):
        inner = holder[key]
        keys = list(inner if isinstance(inner, dict) else range(len(inner)) if isinstance(inner, list) else ())
        if not keys:
            break
        holder, key = inner, rng.choice(keys)
    return holder, key


def written(rng: random.Random, data: Any) -> bytes:
    """The value as JSON, sometimes nested beyond reason."""
    text = json.dumps(data)
    if rng.random() < 0.05:
        depth, (begin, inner, end) = (
            rng.choice((10, 63, 64, 65, 500, 990, 5000, 100_000)),
            rng.choice(("[ ]", ('{"a":', "1", "}"))),
        )
        nested = begin * depth + inner + end * depth
        text = text.replace("null", nested, 1) if "null" in text else text[:-1] + f', "deep": {nested}}}'
    return text.encode(rng.choice(("utf-8",) * 20 + ("utf-16", "latin-1")), "replace")


def raw(rng: random.Random, content: bytes) -> bytes:
    """The bytes with some flipped, cut off, put in, taken out or repeated."""
    found = bytearray(content)
    for _ in range(rng.choice((1, 1, 2, 8))):
        place, size = rng.randrange(len(found) + 1), rng.randrange(1, 65)
        flipped = bytes(byte ^ 1 << rng.randrange(8) for byte in found[place : place + 1])
        evil = rng.choice((b"\xff" * 8, bytes(8), b'"' * 8, b"\x7f\xff\xff\xff" * 2))
        end, new = rng.choice((
            *[(place + 1, flipped)] * 3, (len(found), b""), (place + size, b""), (place, rng.randbytes(size)),
            (place, bytes(found[: 8 * size])), (place + 8, evil),
        ))  # fmt: skip
        found[place:end] = new
    return bytes(found)


@functools.cache
def bomb(pack: Callable[[bytes], bytes], piece: bytes) -> bytes:
    """Little that unpacks to much."""
    return pack(piece * ((400 << 20) // len(piece)))


def frame(rng: random.Random, table: pd.DataFrame) -> pd.DataFrame:
    """The table with values that are others, of other kinds, absent, or too many."""
    name = str(rng.choice(list(table.columns)))
    changes: tuple[Callable[[], pd.DataFrame], ...] = (
        *[lambda: _cells(rng, table, name)] * 6,
        lambda: table.drop(columns=name),
        lambda: table.rename(columns={name: rng.choice(("", "x", "kernel", name.upper()))}),
        lambda: pd.concat([table] * rng.choice((2, 3, 50)), ignore_index=True),
        lambda: table.iloc[: rng.randrange(len(table) + 1)],
        lambda: table.sample(frac=1, random_state=rng.randrange(2**31)),
        lambda: table.assign(**{rng.choice(("extra", "kernel ", name)): rng.choice((1, "a", None))}),
    )
    return rng.choice(changes)()


def _cells(rng: random.Random, table: pd.DataFrame, name: str) -> pd.DataFrame:
    """Some rows of the column with another value, most often of its kind."""
    numbers = pd.api.types.is_numeric_dtype(table[name])
    own = [one for one in EVIL if isinstance(one, (int, float) if numbers else str)]
    new = rng.choice(
        (*EVIL, *own * 4, None, 0.5, "0x0-fp32", "backward", *table[rng.choice(list(table.columns))].unique())
    )
    rows = rng.sample(range(len(table)), rng.choice((1, len(table) // 2, len(table))))
    column = table[name].astype("object")
    for row in rows:
        column.iloc[row] = new
    return table.assign(**{name: column.infer_objects()})


def no_file(rng: random.Random, path: Path) -> None:
    """Puts something in the file's place that is none, or another's, or none at all."""
    path.unlink(missing_ok=True)
    kinds: tuple[Callable[[], object], ...] = (
        lambda: path.symlink_to(rng.choice(AWAY)),
        lambda: os.mkfifo(path),
        path.mkdir,
        lambda: path.write_bytes(rng.randbytes(rng.choice((0, 1, 16, 5000)))),
        lambda: path.write_bytes(b"") or os.truncate(path, rng.choice((1 << 20, 600 << 20, 1 << 40))),
        lambda: None,
    )
    rng.choice(kinds)()


def file(rng: random.Random, path: Path) -> None:
    """Mutates one file, by what it is."""
    content, kind = path.read_bytes(), rng.random()
    unpack, pack = PACKED.get(content[:2], (bytes, bytes))
    if kind < 0.06:
        no_file(rng, path)
        return
    changed = raw(rng, content)
    if kind < 0.08 and pack is not bytes:
        changed = bomb(pack, rng.choice((b"\x00", b"[", b'"ID",', b"[],", b'{"a":')))
    elif kind > 0.45:
        with contextlib.suppress(Exception):  # it was mutated before, or cannot be written
            if path.suffix == ".parquet":
                changed = frame(rng, frame(rng, pd.read_parquet(path))).to_parquet(index=rng.random() < 0.1)
            else:
                changed = pack(_text(rng, unpack(content), by_line=path.suffix in (".jsonl", ".ndjson")))
    path.write_bytes(changed)


def _text(rng: random.Random, plain: bytes, *, by_line: bool) -> bytes:
    lines = plain.split(b"\n") if by_line else [plain]
    place = rng.randrange(len(lines))
    try:
        lines[place] = written(rng, value(rng, json.loads(lines[place])))
    except (ValueError, RecursionError):  # no JSON, or nested deeply by a mutation before
        lines[place] = raw(rng, lines[place])
    return b"\n".join(lines)
