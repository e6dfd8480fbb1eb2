"""Sweeps as frames, one row a config with its parameters and values; the best config, and sentences about it. Pure."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import pandas as pd

from tilescope.collectors.foreign_files import helion_autotune
from tilescope.models import preference
from tilescope.table import units
from tilescope.table.case import Case, config_values
from tilescope.table.case_table import CaseValues, gather
from tilescope.table.metrics import METRICS, stall_name
from tilescope.table.run import Failure
from tilescope.table.schema import CASE_COLUMNS

#: Columns that can colour a heatmap: label, unit, and whether less is better.
COLOURINGS = {
    "time": ("time", "second", True),
    "registers": ("registers per thread", "count", True),
    "shared_memory": ("shared memory per block", "byte", True),
    "spills": ("spilled bytes per thread", "byte", True),
    "theoretical_occupancy": ("theoretical occupancy", "ratio", False),
}
#: Columns from counters, which only the best few configs have.
COUNTED = ("hbm_bytes", "longest_stall", "count_source")
#: Relative difference that is within the noise of measurements.
CLOSE = 0.02
#: The least relative gain by which a config replaces the default.
GAIN = 0.005
#: States of a warp, and those that are no stalls.
_STATES = tuple(metric for metric in METRICS if metric.startswith("stall_"))
_NO_STALLS = ("stall_selected", "stall_not_selected")
#: Keyword arguments of ``triton.Config``; all other parameters are the kernel's.
_OF_LAUNCH = ("num_warps", "num_stages", "num_ctas", "maxnreg")
#: Number of parameters whose costs are listed.
TOLD = 4


def size(table: pd.DataFrame, kernel: str) -> int:
    return int(table.loc[table["kernel"] == kernel, "config"].replace("", pd.NA).nunique())


def configs(table: pd.DataFrame, failures: Iterable[Failure] = (), target: str = "") -> pd.DataFrame:
    """One row a config of a sweep: its parameters, ``time``, registers, shared memory, spills, occupancy, ``reason``.

    ``table`` holds one kernel; ``target`` is the architecture of the run's device. A failed config has its reason and no values.
    ``time_source`` and ``code_source`` are the sources of the time and the resources. ``checked``: its results were compared with
    the reference. Counted configs have ``hbm_bytes`` (read and written) and the ``longest_stall`` of their longest launch, by
    ``count_source``.
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
            key = (impl, direction, workload, Case("", impl, direction, workload).dtype, config)
            reasons.setdefault(key, f"{failure.collector}: {failure.message}")
            known.setdefault(key, dict(zip(index, key, strict=True)))
    cells = [{**case, "reason": reasons.get(key, "")} for key, case in known.items()]
    frame = pd.DataFrame(cells, columns=[*index, "reason"])
    if len(rows):
        frame = frame.join(_values(rows, index, target), on=index)
    frame = frame.reindex(columns=[*index, *COLOURINGS, "sustained", "time_source", "code_source", *COUNTED, "reason"])
    right = {tuple(key) for key in rows.loc[rows["metric"] == "relative_error", index].to_numpy()}
    frame["checked"] = [tuple(key) in right for key in frame[index].to_numpy()]
    return frame.join(_parameters(frame["config"]))


def defaults(table: pd.DataFrame) -> pd.DataFrame:
    """One row for each default of an implementation, in a table of one kernel: ``impl pass workload time sustained time_source``."""
    cases = [case for case in gather(table[table["config"] == ""]) if case.key["config"] == ""]
    found = [{**{name: case.key[name] for name in ("impl", "pass", "workload")}, **_time(case)} for case in cases]
    return pd.DataFrame(found, columns=["impl", "pass", "workload", "time", "sustained", "time_source"])


def parameters(cells: pd.DataFrame) -> list[str]:
    """The parameters that vary, those with most values first."""
    told = (*CASE_COLUMNS, *COLOURINGS, "sustained", "time_source", "code_source", *COUNTED, "reason", "checked")
    names = [c for c in cells.columns if c not in told]
    varying = {n: cells[n].nunique() for n in names if cells[n].nunique() > 1}
    return sorted(varying, key=lambda n: -varying[n])


def names(cells: pd.DataFrame) -> pd.Series:
    """Name of each config's sweep: its implementation, pass and workload."""
    parts = zip(cells["impl"], cells["pass"], cells["workload"], strict=True)
    return pd.Series(map(" · ".join, parts), cells.index, dtype=object)


def spread(values: pd.Series) -> float | None:
    """The relative distance of the largest value from the least; None for fewer than two values, or a least one of 0."""
    known = values.dropna()
    return float(known.max() / known.min() - 1) if len(known) > 1 and known.min() > 0 else None


def over_best(values: pd.Series, less: bool) -> pd.Series:
    """The relative distance of each value from the best: 0 for the best, 0.25 for a quarter worse.

    The best is the least if ``less``, or the largest otherwise. Absent where the value is, and everywhere if the best is 0.
    """
    best = values.min() if less else values.max()
    if not best > 0:
        return values * float("nan")
    return (values / best if less else best / values) - 1


def close(values: pd.Series) -> bool:
    """Whether the ``spread`` is less than ``CLOSE``."""
    apart = spread(values)
    return apart is not None and apart < CLOSE


def ranked(cells: pd.DataFrame, sweep: str, held: Mapping[str, str], column: str, less: bool) -> pd.DataFrame:
    """One sweep's configs with the parameters in ``held``, sorted by ``column``, which becomes their ``value``.

    The best comes first (the least if ``less``, the largest otherwise), configs without a value last. By time the configs that
    were also timed without a rest come first, in that order: the race sends only those that nothing else tells apart.
    """
    found = cells[names(cells) == sweep]
    for name, value in held.items():
        found = found[found[name].astype(str) == value]
    by = ["sustained", "value"] if column == "time" and "sustained" in found else ["value"]
    return found.assign(value=found[column]).sort_values(by, ascending=less, na_position="last", ignore_index=True)


def best(rows: pd.DataFrame) -> pd.Series | None:
    """The first of ``ranked``'s rows, if it has a value."""
    return rows.iloc[0] if len(rows) and pd.notna(rows["value"].iloc[0]) else None


def alike(rows: pd.DataFrame) -> bool:
    """Whether ``ranked``'s rows are several and all have the same value."""
    return len(rows) > 1 and bool(rows["value"].notna().all()) and rows["value"].nunique() == 1


def effects(rows: pd.DataFrame, less: bool) -> dict[str, float]:
    """The cost of each varying parameter of ``ranked``'s rows: its worst value with all others tuned, over the best; 0.25 is 25 %.

    The largest comes first. A parameter is left out if one of its values never worked, or if the best is 0.
    """
    timed = rows[rows["value"].notna()]
    found = {}
    for name in parameters(timed.drop(columns="value")):
        of_values = timed.groupby(name)["value"]
        apart = over_best(of_values.min() if less else of_values.max(), less)
        if apart.notna().all():
            found[name] = float(apart.max())
    return dict(sorted(found.items(), key=lambda item: -item[1]))


def gain(rows: pd.DataFrame, default: pd.DataFrame) -> float | None:
    """The default's time (``defaults``' row of the sweep) over that of the best of ``ranked``'s rows by time.

    Times without a rest decide where both have them. None where either was not timed, or where their clocks differ.
    """
    top = best(rows)
    if top is None or default.empty or default["time_source"].iloc[0] != top["time_source"]:
        return None
    clocks = [column for column in ("sustained", "time") if column in default and column in top]
    ratios = [float(default[column].iloc[0] / top[column]) for column in clocks]
    return next((ratio for ratio in ratios if not math.isnan(ratio)), None)


def as_code(config: str, source: str = "") -> str:
    """``triton.Config({"BLOCK": 128}, num_warps=4)`` for ``BLOCK=128,num_warps=4``; a ``helion.Config`` if ``source`` is Helion."""
    if source.startswith(helion_autotune.SOURCE):
        return helion_autotune.as_code(config)
    values = config_values(config)
    of_launch = {name: values.pop(name) for name in _OF_LAUNCH if name in values}
    named = ", ".join(f'"{name}": {value!r}' for name, value in values.items())
    return f"triton.Config({', '.join(['{' + named + '}', *(f'{name}={value}' for name, value in of_launch.items())])})"


def costs(effects: Mapping[str, float]) -> list[str]:
    """``BLOCK +12 %`` for the first ``TOLD`` of ``effects``, and the number of the others."""
    told = [
        f"{name} +{units.text(part, 'ratio', 2)}" if part > 0 else f"{name} nothing" for name, part in effects.items()
    ]
    rest = len(told) - TOLD
    return told if rest <= 0 else [*told[:TOLD], f"the other {rest} no more"]


def costing(rows: pd.DataFrame) -> str:
    """``costs``, or ``costs at most`` where not every combination of values was timed, because another may be better."""
    timed = rows[rows["value"].notna()]
    values = [timed[name].nunique() for name in parameters(timed.drop(columns="value"))]
    return "costs" if len(timed) >= math.prod(values) else "costs at most"


def conclusions(table: pd.DataFrame, target: str = "") -> Iterator[tuple[str, list[str]]]:
    """Each timed sweep of a run's table with lines on it: the best config as code, its speedup, and the parameters' costs."""
    for kernel in table.loc[table["config"] != "", "kernel"].unique():
        of_kernel = table[table["kernel"] == kernel]
        cells, own = configs(of_kernel, target=target), defaults(of_kernel)
        for sweep in names(cells).unique():
            rows = ranked(cells, sweep, {}, "time", less=True)
            top = best(rows)
            if top is None or len(rows) < 2:
                continue
            won = gain(rows, own[names(own) == sweep] if len(own) else own)
            code = as_code(top["config"], top["time_source"])
            without = " without rests between calls" if pd.notna(top.get("sustained")) else ""
            against = (
                f"{units.text(won, '', 4)} times the default's speed{without}" if won else "the default has no time"
            )
            said = [f"best: {code}: {against}"]
            if won is not None and won < 1 + GAIN:
                said = [f"the default stays: no config is {units.text(GAIN, 'ratio', 1)} faster; the fastest is {code}"]
            if found := effects(rows, less=True):
                what = f"a parameter's worst value, with the others at their best, {costing(rows)}"
                said.append(f"{what}: {', '.join(costs(found))}")
            yield f"{kernel} · {sweep}", said


def _parameters(configs: pd.Series) -> pd.DataFrame:
    """A column a parameter. It holds text if any config has a text for it, as other tools' configs do."""
    found = pd.DataFrame([config_values(config) for config in configs], index=configs.index)
    words = [name for name in found if found[name].map(lambda value: isinstance(value, str)).any()]
    return found.assign(**{name: found[name].map(str, na_action="ignore").fillna("–") for name in words})


def _values(rows: pd.DataFrame, index: list[str], target: str) -> pd.DataFrame:
    """Time and resources of each case. Resources are those of its longest launch (``models.preference``)."""
    cells: dict[tuple[str, ...], dict[str, Any]] = {}
    for case in gather(rows):
        found = cells[tuple(case.key[name] for name in index)] = _time(case)
        if taken := preference.main_resources(case, target):
            found |= {name: getattr(taken, name) for name in ("registers", "shared_memory", "theoretical_occupancy")}
            found |= {"spills": taken.spill_bytes, "code_source": taken.source}
        found |= _counted(case)
    frame = pd.DataFrame(list(cells.values()), pd.MultiIndex.from_tuples(cells, names=index))
    numbers = dict.fromkeys((*COLOURINGS, "sustained", "hbm_bytes"), "float64")
    return frame.reindex(columns=[*COLOURINGS, "sustained", "time_source", "code_source", *COUNTED]).astype(numbers)


def _counted(case: CaseValues) -> dict[str, Any]:
    """The HBM bytes of all launches, and the most frequent stall of the longest one, where they were counted."""
    source = case.counted_by
    sides = [known.value for side in ("read", "written") if (known := case.total(f"dram_bytes_{side}", source))]
    launch = case.main_launch(source)
    cycles = {stall: k.value for stall in _STATES if (k := case.at(stall, launch, source))}
    waited = {stall: value for stall, value in cycles.items() if stall not in _NO_STALLS and value > 0}
    found: dict[str, Any] = {"hbm_bytes": sum(sides)} if len(sides) == 2 else {}
    if waited:
        longest = max(waited, key=lambda stall: waited[stall])
        share = units.text(waited[longest] / sum(cycles.values()), "ratio", 2)
        found["longest_stall"] = f"{stall_name(longest.removeprefix('stall_'))} {share}"
    return {**found, "count_source": source} if found else {}


def _time(case: CaseValues) -> dict[str, Any]:
    """``time`` and ``time_source`` by the preferred clock of the case, and the ``sustained`` time where it has one."""
    clocks = {
        "gpu time": case.gpu_time(),
        **{name: case.spread(name.replace(" ", "_")) for name in ("graph time", "interval")},
    }
    found = next(({"time": s.value, "time_source": f"{s.source}, {name}"} for name, s in clocks.items() if s), {})
    sustained = case.total("sustained_time", "events")
    return {**found, "sustained": sustained.value} if sustained else found
