"""Finds cases that the compiler compiled with another config than ran, and leaves the compiler's values of them out. Pure.

An implementation that chooses its config by timing takes a guess where there is no GPU. Registers of the guess do not belong beside
times of the choice.
"""

from __future__ import annotations

import pandas as pd

from tilescope.table.schema import CASE_COLUMNS, named
from tilescope.table.units import several

#: Resources of a launch by which configs differ, and the sources that see launches on a GPU.
_RESOURCES, _ON_GPU = ("block_threads", "shared_memory", "registers"), ("torch_profiler", "cupti", "ncu")
#: Cases that a note names.
_MOST = 3


def without(table: pd.DataFrame, configs: pd.DataFrame) -> tuple[pd.DataFrame, list[str]]:
    """The table without the compiler's rows of these cases, and a note on them. ``configs`` is a frame of ``launch_configs``."""
    compiled = table["source"].eq("compiler")
    if not compiled.any() or not table["source"].isin(_ON_GPU).any():
        return table, []
    resources = table[table["metric"].isin(_RESOURCES) & table["launch"].notna()]
    unlike = pd.concat([_apart(resources, ["function", "metric"], "value"), _apart(configs, ["function"], "launched")])
    left_out = compiled & pd.MultiIndex.from_frame(table[CASE_COLUMNS]).isin(pd.MultiIndex.from_frame(unlike))
    cases = ["/".join(filter(None, case)) for case in dict.fromkeys(named(table[left_out]))]
    if not cases:
        return table, []
    told = ", ".join(cases[:_MOST]) + (f" and {len(cases) - _MOST} more" if len(cases) > _MOST else "")
    note = f"the compiler's values of {several(len(cases), 'case')} are left out, because another config ran: {told}"
    return table[~left_out].reset_index(drop=True), [note]


def _apart(rows: pd.DataFrame, of: list[str], value: str) -> pd.DataFrame:
    """Cases with another ``value`` on the GPU than the compiler's, of the same columns ``of``."""
    rows = rows[rows["source"].isin(("compiler", *_ON_GPU))]
    key = [*CASE_COLUMNS, *of]
    each = rows.assign(compiled=rows["source"].eq("compiler"))[[*key, "compiled", value]].drop_duplicates()
    on_both = each.groupby(key)["compiled"].transform("nunique").eq(2)
    return each[on_both].drop_duplicates([*key, value], keep=False)[CASE_COLUMNS].drop_duplicates()
