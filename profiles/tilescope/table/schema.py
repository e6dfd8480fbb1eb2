"""The table's schema: its columns, and what is refused.

The table is tidy: one value a row, in base SI units (seconds, bytes, hertz; ratios between 0 and 1), each with its
provenance in ``source``. What was not measured has no row. Imports neither torch nor triton.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
import pandas as pd

from tilescope.files import json_shape
from tilescope.table.metrics import METRICS
from tilescope.table.sources import SOURCES

#: What identifies a case within a run.
CASE_COLUMNS = ["kernel", "impl", "pass", "workload", "dtype", "config"]

#: Column name to pandas dtype. ``launch`` is the position among the launches that the collector saw in the case, or, in a run
#: of another tool's file, among those of the file; absent for values of the whole case. ``function`` is that launch's kernel
#: function, ``sample`` the repetition, absent where a value is not repeated.
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


class SchemaError(ValueError):
    """A table or a run that does not follow the schema. The message says where and what to do."""


def frame(rows: Iterable[Mapping[str, Any]]) -> pd.DataFrame:
    """Rows to a table with every column of the schema, in order. Missing fields become absent.

    The unit is taken from METRICS, so a row cannot carry a wrong one. Raises SchemaError for a metric
    that METRICS does not have.
    """
    return tidy(rows, COLUMNS, METRICS, "METRICS")


def tidy(
    rows: Iterable[Mapping[str, Any]], columns: Mapping[str, str], metrics: Mapping[str, Any], named: str
) -> pd.DataFrame:
    """``frame`` for any such columns, by their dtypes, and metrics, which are to be found under a name."""
    given = list(rows)
    found = {column: [row.get(column) for row in given] for column in columns}
    if unknown := sorted({metric for metric in found["metric"] if metric is not None} - metrics.keys()):
        raise SchemaError(f"unknown metric {unknown[0]!r}: add it to {named}")
    found["unit"] = [metrics[metric].unit if metric is not None else None for metric in found["metric"]]
    # A column at a time: of few rows, pandas takes longest over making one table of them and changing each column's dtype.
    return pd.DataFrame({column: _array(found[column], dtype) for column, dtype in columns.items()})


def _array(values: list[Any], dtype: str) -> Any:
    """The values as a column of that dtype; absent text becomes empty."""
    if dtype == "str":
        values = ["" if value is None else value for value in values]
    # Not pandas' float64, which tells what is absent from what is no number.
    return np.array(values, dtype=dtype) if dtype == "float64" else pd.array(values, dtype=dtype)


def validate(table: pd.DataFrame) -> pd.DataFrame:
    """The same table, or SchemaError naming the first thing that is wrong and where."""
    if list(table.columns) != list(COLUMNS):
        missing = [c for c in COLUMNS if c not in table.columns]
        extra = [c for c in table.columns if c not in COLUMNS]
        raise SchemaError(f"the table's columns are not the schema's: missing {missing}, unexpected {extra}")
    for column, allowed in (("metric", set(METRICS)), ("source", set(SOURCES))):
        if unknown := [value for value in table[column].unique() if value not in allowed]:
            row = table.index[table[column].isin(unknown)][0]
            raise SchemaError(f"row {row}: unknown {column} {unknown[0]!r}")
    for row, metric, unit in table[["metric", "unit"]].drop_duplicates().itertuples(name=None):
        if unit != METRICS[metric].unit:
            raise SchemaError(f"row {row}: {metric} is not in {METRICS[metric].unit}")
    size = table["value"].abs()
    absent = table.index[size.isna() | size.eq(float("inf"))]
    if len(absent):
        raise SchemaError(f"row {absent[0]}: a value must be finite; leave out what was not measured")
    odd = table.index[size.gt(json_shape.LARGEST) | size.between(0, json_shape.SMALLEST, "neither")]
    if len(odd):
        raise SchemaError(f"row {odd[0]}: no value but 0 is below {json_shape.SMALLEST} or above {json_shape.LARGEST}")
    return table
