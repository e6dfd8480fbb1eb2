"""Columns of tables, for the page, the report, and notebooks without scripts."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pandas as pd

from tilescope_dashboard.data.units import ABSENT, times, write

#: Suffixes of units that ``tilescope.table.units`` does not write.
_FOLLOWED = {"watt": " W", "celsius": " °C"}


@dataclass(frozen=True)
class Column:
    """A frame's column: its title and the unit of its values.

    A unit is one of ``tilescope.table.schema``'s (``second``, ``byte/second``), ``times`` for a factor, ``speedup`` for one that is bad below 1, ``text``, or
    ``spread`` for a text of a value with its range.
    """

    name: str
    title: str
    unit: str = "text"

    @property
    def number(self) -> bool:
        """Whether it is aligned to the right."""
        return self.unit != "text"

    def text(self, value: Any) -> str:
        """A cell's text; a dash for an absent value. Bytes and counts are exact."""
        if pd.isna(value) or value == "":
            return ABSENT
        if self.unit in ("text", "spread"):
            return str(value)
        if self.unit in ("times", "speedup"):
            return times(value)
        if self.unit in _FOLLOWED:
            return f"{value:,.3g}{_FOLLOWED[self.unit]}"
        return write(value, "count" if self.unit == "byte" else self.unit)


#: Columns that name a case in every table.
KERNEL, IMPL = Column("kernel", "kernel"), Column("impl", "impl.")
PASS, WORKLOAD = Column("pass", "pass"), Column("workload", "workload")
GPU_TIME = Column("gpu_time", "GPU time", "second")
