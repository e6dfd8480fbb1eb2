"""Sweeps over configs as frames: a row a config, with its parameters and what they led to."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pandas as pd
from tilescope.models import preference
from tilescope.table.case import config_values
from tilescope.table.case_table import CaseValues, gather
from tilescope.table.schema import CASE_COLUMNS, Failure

#: What a heatmap can be coloured by: label, unit, and whether less is better.
COLOURINGS = {
    "time": ("time", "second", True),
    "registers": ("registers per thread", "count", True),
    "shared_memory": ("shared memory per block", "byte", True),
    "spills": ("spilled bytes per thread", "byte", True),
    "theoretical_occupancy": ("theoretical occupancy", "ratio", False),
}
#: Values that lie within this part of the least one differ by little more than one measurement does from the next.
CLOSE = 0.02


def size(table: pd.DataFrame, kernel: str) -> int:
    """Number of the kernel's configs in a run's table; with one there is nothing to choose from."""
    return int(table.loc[table["kernel"] == kernel, "config"].replace("", pd.NA).nunique())


def configs(table: pd.DataFrame, failures: Iterable[Failure] = (), target: str = "") -> pd.DataFrame:
    """One row a config of a sweep: its parameters, ``time``, registers, shared memory, spills, occupancy, ``reason``.

    ``table`` holds one kernel. A config that failed has its reason and no values. ``time_source`` and
    ``code_source`` name where the time and the resources come from; ``target`` is the architecture of the run's device.
    """
    index = [c for c in CASE_COLUMNS if c != "kernel"]
    rows = table[table["config"] != ""]
    known = {tuple(key): dict(zip(index, key, strict=True)) for key in rows[index].drop_duplicates().to_numpy()}
    name = rows["kernel"].iloc[0] if len(rows) else ""
    reasons: dict[tuple[str, ...], str] = {}
    for failure in failures:
        parts = failure.case.split("/")
        if len(parts) >= 5 and "=" in parts[-1] and (not name or failure.concerns(name)):
            impl, direction, workload, config = parts[-4:]
            dtype = next((p for p in workload.split("-")[1:] if not p.startswith("s")), "")
            key = (impl, direction, workload, dtype, config)
            reasons.setdefault(key, f"{failure.collector}: {failure.message}")
            known.setdefault(key, dict(zip(index, key, strict=True)))
    cells = [{**case, "reason": reasons.get(key, "")} for key, case in known.items()]
    frame = pd.DataFrame(cells, columns=[*index, "reason"])
    if len(rows):
        frame = frame.join(_values(rows, index, target), on=index)
    frame = frame.reindex(columns=[*index, *COLOURINGS, "time_source", "code_source", "reason"])
    return frame.join(_parameters(frame["config"]))


def defaults(table: pd.DataFrame) -> pd.DataFrame:
    """One row an implementation's own choice, in a table of one kernel: ``impl pass workload time time_source``."""
    cases = [case for case in gather(table[table["config"] == ""]) if case.key["config"] == ""]
    found = [{**{name: case.key[name] for name in ("impl", "pass", "workload")}, **_time(case)} for case in cases]
    return pd.DataFrame(found, columns=["impl", "pass", "workload", "time", "time_source"])


def parameters(cells: pd.DataFrame) -> list[str]:
    """The parameters that vary, those with most values first."""
    names = [c for c in cells.columns if c not in (*CASE_COLUMNS, *COLOURINGS, "time_source", "code_source", "reason")]
    varying = {n: cells[n].nunique() for n in names if cells[n].nunique() > 1}
    return sorted(varying, key=lambda n: -varying[n])


def names(cells: pd.DataFrame) -> pd.Series:
    """Name of each config's sweep: its implementation, pass and workload."""
    return cells[["impl", "pass", "workload"]].apply(" · ".join, axis=1, result_type="reduce").astype(object)


def spread(values: pd.Series) -> float | None:
    """Relative distance of the largest value from the least; None for fewer than two values, or a least one of 0."""
    known = values.dropna()
    return float(known.max() / known.min() - 1) if len(known) > 1 and known.min() > 0 else None


def over_best(values: pd.Series, less: bool) -> pd.Series:
    """How far each value is from the best, the least if ``less``, else the largest: 0 for the best, 0.25 for a quarter worse.

    Absent where the value is, and everywhere where the best is 0: nothing is a part of it.
    """
    best = values.min() if less else values.max()
    if not best > 0:
        return values * float("nan")
    return (values / best if less else best / values) - 1


def close(values: pd.Series) -> bool:
    """Whether the ``spread`` is less than ``CLOSE``."""
    apart = spread(values)
    return apart is not None and apart < CLOSE


def _parameters(configs: pd.Series) -> pd.DataFrame:
    """A column a parameter. One that has a word for any config, as other tools' have, is of words."""
    found = pd.DataFrame([config_values(config) for config in configs], index=configs.index)
    words = [name for name in found if found[name].map(lambda value: isinstance(value, str)).any()]
    return found.assign(**{name: found[name].map(str, na_action="ignore").fillna("–") for name in words})


def _values(rows: pd.DataFrame, index: list[str], target: str) -> pd.DataFrame:
    """Time and resources of each case: of the longest launch, by the source that ``tilescope.models.preference`` takes at its word."""
    cells: dict[tuple[str, ...], dict[str, Any]] = {}
    for case in gather(rows):
        found = cells[tuple(case.key[name] for name in index)] = _time(case)
        if taken := preference.main_resources(case, target):
            found |= {
                "registers": taken.registers,
                "shared_memory": taken.shared_memory,
                "spills": taken.spill_bytes,
                "theoretical_occupancy": taken.theoretical_occupancy,
                "code_source": taken.source,
            }
    frame = pd.DataFrame(list(cells.values()), pd.MultiIndex.from_tuples(cells, names=index))
    return frame.reindex(columns=[*COLOURINGS, "time_source", "code_source"]).astype(
        dict.fromkeys(COLOURINGS, "float64")
    )


def _time(case: CaseValues) -> dict[str, Any]:
    """``time`` and ``time_source`` by the clock that is preferred among those that the case has."""
    clocks = {
        "gpu time": case.gpu_time(),
        **{name: case.spread(name.replace(" ", "_")) for name in ("graph time", "interval")},
    }
    return next(({"time": s.value, "time_source": f"{s.source}, {name}"} for name, s in clocks.items() if s), {})
