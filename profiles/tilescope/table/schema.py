"""The table's schema: its columns, and what is refused.

The table is tidy: one value a row, in base SI units (seconds, bytes, hertz; ratios between 0 and 1), each with its
provenance in ``source``. What was not measured has no row. Imports neither torch nor triton.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import Any

import numpy as np
import pandas as pd

from tilescope.files import bounded_reading, json_shape
from tilescope.table.metrics import METRICS
from tilescope.table.run import SchemaError
from tilescope.table.sources import SOURCES

#: What identifies a case within a run.
CASE_COLUMNS = ["kernel", "impl", "pass", "workload", "dtype", "config"]
#: The same without the dtype, which the workload's name has: the fields of ``Case`` in their order.
NAMED = ["kernel", "impl", "pass", "workload", "config"]

#: Column name to pandas dtype. ``launch`` numbers the launches that the collector saw in the case, or those of the file in a run
#: of another tool's file; it is absent for a value of the whole case. ``function`` is the launch's kernel function. ``sample``
#: numbers repetitions and is absent for a value that is not repeated.
COLUMNS: dict[str, str] = {
    "run_id": "str",
    **dict.fromkeys(CASE_COLUMNS, "str"),
    "launch": "Int32",
    "function": "str",
    "sample": "Int32",
    "metric": "str",
    "value": "float64",
    "unit": "str",
    "source": "str",
}


def frame(rows: Iterable[Mapping[str, Any]]) -> pd.DataFrame:
    """Makes a table of rows, with every column of the schema in order. A field that a row lacks is absent.

    The unit comes from METRICS. Raises SchemaError for a metric that METRICS lacks.
    """
    return tidy(rows, COLUMNS, METRICS, "METRICS")


def tidy(
    rows: Iterable[Mapping[str, Any]], columns: Mapping[str, str], metrics: Mapping[str, Any], named: str
) -> pd.DataFrame:
    """As ``frame``, for other columns (name to dtype) and metrics. ``named`` is what messages call ``metrics``."""
    given = list(rows)
    found = {column: [row.get(column) for row in given] for column in columns}
    if unknown := sorted({metric for metric in found["metric"] if metric is not None} - metrics.keys()):
        raise SchemaError(f"unknown metric {unknown[0]!r}: add it to {named}")
    found["unit"] = [metrics[metric].unit if metric is not None else None for metric in found["metric"]]
    # Column by column: for few rows it is quicker than one table whose dtypes are changed.
    return pd.DataFrame({column: _array(found[column], dtype) for column, dtype in columns.items()})


def _array(values: list[Any], dtype: str) -> Any:
    """The values as a column of that dtype; absent text becomes empty."""
    if dtype == "str":
        values = ["" if value is None else value for value in values]
    # Not pandas' float64, which distinguishes an absent value from NaN.
    return np.array(values, dtype=dtype) if dtype == "float64" else pd.array(values, dtype=dtype)


def is_value(value: float) -> bool:
    """Whether ``validate`` accepts the value: 0, or a finite number that is neither too small nor too large."""
    return value == 0 or json_shape.SMALLEST <= abs(value) <= json_shape.LARGEST


def named(rows: pd.DataFrame) -> list[tuple[str, ...]]:
    """The case of each row, by ``NAMED``."""
    return list(rows[NAMED].itertuples(index=False, name=None))


def check_columns(found: Iterable[str], columns: Iterable[str]) -> None:
    """Raises SchemaError where the columns ``found`` are not ``columns``, in that order."""
    names, wanted = list(found), list(columns)
    if names != wanted:
        missing = [name for name in wanted if name not in names]
        extra = [bounded_reading.one_line(name, 40) for name in names if name not in wanted]
        raise SchemaError(f"the table's columns are not the schema's: missing {missing}, unexpected {extra[:5]}")


def check_known(table: pd.DataFrame, column: str, known: Collection[str]) -> None:
    """Raises SchemaError for the first value of ``column`` that is not ``known``."""
    if unknown := [value for value in table[column].unique() if value not in known]:
        row = table.index[table[column].isin(unknown)][0]
        raise SchemaError(f"row {row}: unknown {column} {bounded_reading.one_line(unknown[0], 40)!r}")


def validate(table: pd.DataFrame) -> pd.DataFrame:
    """Returns the table. Raises SchemaError, which names the first error and its row."""
    check_columns(table.columns, COLUMNS)
    check_known(table, "metric", METRICS)
    check_known(table, "source", SOURCES)
    # Codes, which are quicker than texts or groups of rows, in small tables and in large ones.
    (metric, metrics), (unit, units) = (pd.factorize(table[column]) for column in ("metric", "unit"))
    known = {name: code for code, name in enumerate(units)}
    wanted = np.array([known.get(METRICS[name].unit, len(units)) for name in metrics], dtype=unit.dtype)
    if (wrong := wanted[metric] != unit).any():
        name = table["metric"].iloc[row := wrong.argmax()]
        raise SchemaError(f"row {table.index[row]}: {name} is not in {METRICS[name].unit}")
    size = np.abs(table["value"].to_numpy("float64", na_value=np.nan))
    if not (finite := np.isfinite(size)).all():
        raise SchemaError(
            f"row {table.index[finite.argmin()]}: a value must be finite; leave out what was not measured"
        )
    odd = (size > json_shape.LARGEST) | ((size > 0) & (size < json_shape.SMALLEST))
    if odd.any():
        raise SchemaError(
            f"row {table.index[odd.argmax()]}: no value but 0 is below {json_shape.SMALLEST} or above {json_shape.LARGEST}"
        )
    return table
