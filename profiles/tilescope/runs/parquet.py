"""Tidy frames as Parquet files, written with a checksum for each page and read within limits. Imports neither torch nor triton."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from tilescope.files import atomic_writing, bounded_reading
from tilescope.table.run import SchemaError
from tilescope.table.schema import check_columns

#: Most rows of a frame, most rows for each byte of its file (recorded ones take 2.5 bytes a row and more), and rows that a file
#: of any size may have.
_ROWS, _ROWS_A_BYTE, _FEW_ROWS = 20_000_000, 1, 50_000
#: Most bytes of one text, and of all texts.
_TEXT, _TEXTS = 64 << 10, 512 << 20
#: Most bytes of all unpacked columns, as the file declares them.
_UNPACKED = 4 << 30

#: The columns of a packed file that hold its times, and the time in seconds from which on nanoseconds are not exact.
_PACKED, _LONGEST = ("nanoseconds", "product"), 4e6
#: Arrow's types of numbers, by pandas' name.
_ARROW = {"Int32": pa.int32(), "float64": pa.float64()}

#: Pandas' types, so that absent integers do not turn a column into floats and texts do not become Python objects.
_PANDAS = {pa.int32(): pd.Int32Dtype(), pa.large_string(): pd.StringDtype(na_value=math.nan)}

Validate = Callable[[pd.DataFrame], pd.DataFrame]


def write(frame: pd.DataFrame, path: Path) -> None:
    atomic_writing.replace(path, lambda to: put(frame, to))


def pack(frame: pd.DataFrame, path: Path) -> None:
    """As ``write``, in the fewest bytes, for a recording: ``read`` gives the same frame.

    Times are whole nanoseconds, which clocks give, where that is exact. ``product`` says by which formula (``_seconds``).
    """
    table = pa.Table.from_pandas(frame, preserve_index=False).replace_schema_metadata(None)
    texts = [column for column in table.column_names if column != "value"]
    if "value" in frame and (frame["unit"] == "second").any():
        value = frame["value"].to_numpy()
        times = (frame["unit"] == "second").to_numpy() & (np.abs(value) < _LONGEST)
        ticks = np.where(times, np.rint(value * 1e9), 0).astype("int64")
        # By their bits: -0.0 equals 0.0.
        product = times & (_seconds(ticks, np.True_).view("int64") == value.view("int64"))
        times &= product | (_seconds(ticks, np.False_).view("int64") == value.view("int64"))
        table = table.set_column(table.column_names.index("value"), "value", pa.array(value, mask=times))
        table = table.append_column("nanoseconds", pa.array(ticks, mask=~times))
        table = table.append_column("product", pa.array(product))
    options = {"compression": "zstd", "compression_level": 19, "write_page_checksum": True, "write_statistics": False}
    atomic_writing.replace(path, lambda to: pq.write_table(table, to, use_dictionary=texts, **options))


def _seconds(ticks: Any, product: Any) -> Any:
    """Nanoseconds in seconds, by the formula that the collector used: times of the profiler are products of microseconds."""
    return np.where(product, ticks / 1e3 * 1e-6, ticks / 1e9)


def put(frame: pd.DataFrame, path: Path) -> None:
    """Writes the frame without waiting for the disk, for a caller that syncs the whole folder. Texts that ``read`` refuses are cut."""
    _cut(frame).to_parquet(path, index=False, compression="zstd", write_page_checksum=True)


def _cut(frame: pd.DataFrame) -> pd.DataFrame:
    """The frame with texts of at most ``_TEXT`` bytes."""
    most = _TEXT // 4  # a character has four bytes at most
    for name in frame.columns[frame.dtypes == "str"]:
        short = frame[name].str.len() <= most
        if not short.all():
            frame = frame.assign(**{name: frame[name].where(short, frame[name].str.slice(0, most - 1) + "…")})
    return frame


def read(path: Path, validate: Validate, columns: Mapping[str, str], within: Path | None = None) -> pd.DataFrame:
    """Reads a frame with the columns and dtypes of ``columns``, and validates it.

    ``within`` is as in ``bounded_reading.content``. Raises FileNotFoundError; Unreadable for a file that is not a Parquet
    file of such columns; SchemaError for other columns; and what ``validate`` raises.
    """
    raw = bounded_reading.content(path, within)
    try:
        frame = _frame(raw, columns)
    except (SchemaError, bounded_reading.Unreadable):
        raise
    except Exception as error:  # pyarrow raises many kinds for a damaged file
        raise bounded_reading.Unreadable(bounded_reading.one_line(error) or type(error).__name__) from error
    return validate(frame)


def _frame(raw: bytes, columns: Mapping[str, str]) -> pd.DataFrame:
    texts = [name for name, dtype in columns.items() if dtype == "str"]
    source = pa.BufferReader(raw)
    metadata = pq.read_metadata(source)
    _check_size(metadata, len(raw))
    names = set(metadata.schema.to_arrow_schema().names)
    packed = names >= {*_PACKED, "value"}
    check_columns(sorted(names - {*_PACKED} if packed else names), sorted(columns))
    # Texts stay dictionary-encoded, each once, until their total size is known.
    source.seek(0)
    with pq.ParquetFile(source, metadata=metadata, read_dictionary=texts, page_checksum_verification=True) as file:
        table = file.read()
    table.validate(full=True)
    left = _TEXTS
    found: dict[str, Any] = {}
    for name, dtype in columns.items():
        column = table.column(name)
        if dtype == "str":
            column = column if pa.types.is_dictionary(column.type) else column.dictionary_encode()
            left -= _weight(column, name)
            if left < 0:
                raise bounded_reading.Unreadable(f"its texts have more than {_TEXTS} bytes")
            column = column.cast(column.type.value_type).cast(pa.large_string())
        elif pa.types.is_integer(column.type) or (dtype == "float64" and pa.types.is_floating(column.type)):
            column = column.cast(_ARROW[dtype])
        else:
            raise bounded_reading.Unreadable(f"column {name} holds {column.type}, not numbers")
        found[name] = column.to_pandas(types_mapper=_PANDAS.get).astype(dtype)
    if packed:
        ticks, product = (table.column(name) for name in _PACKED)
        if not (pa.types.is_int64(ticks.type) and pa.types.is_boolean(product.type)) or product.null_count:
            raise bounded_reading.Unreadable("its packed times are no whole nanoseconds")
        times = _seconds(ticks.fill_null(0).to_numpy(), product.to_numpy())
        found["value"] = found["value"].where(ticks.is_null().to_numpy(), times)
    return pd.DataFrame(found, columns=list(columns))


def _check_size(metadata: Any, size: int) -> None:
    if metadata.num_rows > min(_ROWS, _FEW_ROWS + _ROWS_A_BYTE * size):
        raise bounded_reading.Unreadable(f"it declares {metadata.num_rows} rows, in {size} bytes")
    groups = [metadata.row_group(place) for place in range(metadata.num_row_groups)]
    if (
        sum(group.total_byte_size for group in groups) > _UNPACKED
        or sum(g.num_rows for g in groups) != metadata.num_rows
    ):
        raise bounded_reading.Unreadable("it declares what it cannot hold")


def _weight(column: Any, name: str) -> int:
    """Bytes of a dictionary-encoded column of texts if each row has a copy of its own."""
    if column.null_count:
        raise bounded_reading.Unreadable(f"column {name} lacks a text")
    total = 0
    for chunk in column.chunks:
        lengths = pc.binary_length(chunk.dictionary).cast(pa.int64())
        total += pc.sum(lengths.take(chunk.indices)).as_py() or 0
        if (pc.max(lengths).as_py() or 0) > _TEXT:
            raise bounded_reading.Unreadable(f"column {name} holds a text of more than {_TEXT} bytes")
    return total
