"""Tidy frames as Parquet files, written with a checksum for each page and read within limits. Imports neither torch nor triton."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from tilescope.files import atomic_writing, bounded_reading
from tilescope.table.schema import SchemaError, check_columns

#: Most rows of a frame, most rows for each byte of its file (recorded ones take 2.5 bytes a row and more), and rows that a file
#: of any size may have.
_ROWS, _ROWS_A_BYTE, _FEW_ROWS = 20_000_000, 1, 50_000
#: Most bytes of one text, and of all texts.
_TEXT, _TEXTS = 64 << 10, 512 << 20
#: Most bytes of all unpacked columns, as the file declares them.
_UNPACKED = 4 << 30

#: Arrow's types of numbers, by pandas' name.
_ARROW = {"Int32": pa.int32(), "float64": pa.float64()}

#: Pandas' types, so that absent integers do not turn a column into floats and texts do not become Python objects.
_PANDAS = {pa.int32(): pd.Int32Dtype(), pa.large_string(): pd.StringDtype(na_value=math.nan)}

Validate = Callable[[pd.DataFrame], pd.DataFrame]


def write(frame: pd.DataFrame, path: Path) -> None:
    """Writes the frame atomically; it is on the disk when this returns."""
    atomic_writing.replace(path, lambda to: put(frame, to))


def put(frame: pd.DataFrame, path: Path) -> None:
    """Writes the frame without waiting for the disk, for a caller that syncs the whole folder."""
    frame.to_parquet(path, index=False, compression="zstd", write_page_checksum=True)


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
    check_columns(sorted(metadata.schema.to_arrow_schema().names), sorted(columns))
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
            left -= _weight(column, name)
            if left < 0:
                raise bounded_reading.Unreadable(f"its texts have more than {_TEXTS} bytes")
            column = pa.chunked_array([_plain(chunk) for chunk in column.chunks], pa.large_string())
        elif pa.types.is_integer(column.type) or (dtype == "float64" and pa.types.is_floating(column.type)):
            column = column.cast(_ARROW[dtype])
        else:
            raise bounded_reading.Unreadable(f"column {name} holds {column.type}, not numbers")
        found[name] = column.to_pandas(types_mapper=_PANDAS.get).astype(dtype)
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
    """Bytes of a column of texts if each row has a copy of its own."""
    if column.null_count:
        raise bounded_reading.Unreadable(f"column {name} lacks a text")
    total = 0
    for chunk in column.chunks:
        if pa.types.is_dictionary(chunk.type):
            lengths = pc.binary_length(chunk.dictionary).cast(pa.int64())
            total += pc.sum(lengths.take(chunk.indices)).as_py() or 0
        else:
            lengths = pc.binary_length(chunk).cast(pa.int64())
            total += pc.sum(lengths).as_py() or 0
        if (pc.max(lengths).as_py() or 0) > _TEXT:
            raise bounded_reading.Unreadable(f"column {name} holds a text of more than {_TEXT} bytes")
    return total


def _plain(chunk: Any) -> Any:
    if not pa.types.is_dictionary(chunk.type):
        return chunk.cast(pa.large_string())
    return pa.DictionaryArray.from_arrays(chunk.indices, chunk.dictionary.cast(pa.large_string())).dictionary_decode()
