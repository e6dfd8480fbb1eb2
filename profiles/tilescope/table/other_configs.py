"""Finds cases that the compiler compiled with another config than ran, and leaves the compiler's values of them out. Pure.

An implementation that chooses its config by timing takes a guess where there is no GPU. Registers of the guess do not belong beside
times of the choice.
"""

from __future__ import annotations

import pandas as pd

from tilescope.table.schema import CASE_COLUMNS
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
    unlike = pd.concat([_by_resources(table), _by_config(configs)]).drop_duplicates()
    left_out = compiled & pd.MultiIndex.from_frame(table[CASE_COLUMNS]).isin(pd.MultiIndex.from_frame(unlike))
    cases = table.loc[left_out, ["kernel", "impl", "pass", "workload", "config"]].drop_duplicates()
    named = ["/".join(filter(None, case)) for case in cases.itertuples(index=False, name=None)]
    if not named:
        return table, []
    told = ", ".join(named[:_MOST]) + (f" and {len(named) - _MOST} more" if len(named) > _MOST else "")
    note = f"the compiler's values of {several(len(named), 'case')} are left out, because another config ran: {told}"
    return table[~left_out].reset_index(drop=True), [note]


def _by_resources(table: pd.DataFrame) -> pd.DataFrame:
    """Cases of which a function has other resources on the GPU than the compiler says."""
    rows = table[
        table["metric"].isin(_RESOURCES) & table["source"].isin(("compiler", *_ON_GPU)) & table["launch"].notna()
    ]
    key = [*CASE_COLUMNS, "function", "metric"]
    each = rows.assign(compiled=rows["source"].eq("compiler"))[[*key, "compiled", "value"]].drop_duplicates()
    on_both = each.groupby(key)["compiled"].transform("nunique").eq(2)
    apart = each[on_both].drop_duplicates([*key, "value"], keep=False)
    return apart[CASE_COLUMNS].drop_duplicates()


def _by_config(configs: pd.DataFrame) -> pd.DataFrame:
    """Cases of which a function was launched on the GPU with other configs than the compiler's."""
    rows = configs[configs["source"].isin(("compiler", *_ON_GPU))]
    key = [*CASE_COLUMNS, "function"]
    each = rows.assign(compiled=rows["source"].eq("compiler"))[[*key, "compiled", "launched"]].drop_duplicates()
    on_both = each.groupby(key)["compiled"].transform("nunique").eq(2)
    apart = each[on_both].drop_duplicates([*key, "launched"], keep=False)
    return apart[CASE_COLUMNS].drop_duplicates()
