"""Claims about fused kernels at every recorded size: the published claim, the traffic ratio, and the measured speedup.

Runs -> frame; it also compares each kernel's GPU functions with today's. Only measured times of right results count. The bound is the
bytes of the unfused implementation over those of the fused one (``traffic.speedup``). Moving fewer bytes gains at most that
ratio, but an unfused implementation may also be slow for other reasons.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from tilescope.hardware import roofs
from tilescope.models import compare, summary, traffic
from tilescope.runs import changes
from tilescope.runs.changes import Problem
from tilescope.runs.store import LoadedRun
from tilescope.table.case_table import CaseValues, by_problem, gather, gpu_times, problem_of

#: Metrics that rows are made of. Gathering all metrics of a recording would take twice as long.
_NEEDED = {
    "gpu_time", "interval", "algorithm_flops", "relative_error", "tolerance", "row_error", "row_tolerance",
    *(f"{whose}_bytes_{way}" for whose in ("algorithm", "requested", "unique", "dram") for way in ("read", "written")),
}  # fmt: skip

#: Suffixes of the columns that compare ours with others. The library is the fastest one that was timed.
OVER = ("eager", "compile", "library")

#: Libraries that a run's versions have under another name than their implementation's.
_VERSIONS = {"liger": "liger-kernel", "aten": "torch", "cce": "cut-cross-entropy"}
_CLAIMED = ("claim", "claim_over", "claim_source", "verdict", "verdict_interval")
_ABSENT = dict.fromkeys(("over", "low", "high", "interval"), math.nan)

COLUMNS = {
    **dict.fromkeys(["kernel", "pass", "workload", "claim"], "str"),
    **dict.fromkeys(["claim_low", "claim_high"], "float64"),
    **dict.fromkeys(["claim_over", "claim_source", "verdict", "verdict_interval"], "str"),
    **dict.fromkeys(["bound", *(f"{what}_{other}" for other in OVER for what in _ABSENT)], "float64"),
    **dict.fromkeys(["library", "library_version", "roof"], "str"),
    "of_roof": "float64",
    **dict.fromkeys(["run", "device", "started"], "str"),
    "changed": "bool",
    "floor": "float64",
}
FORWARD, STEP = "forward", "forward+backward"

_TUTORIALS = "https://triton-lang.org/main/getting-started/tutorials"
_LIGER = "https://linkedin.github.io/Liger-Kernel/Low-Level-APIs"
_LIGER_PAPER = "https://arxiv.org/abs/2410.10989"


def best(rows: Iterable[dict[str, Any]]) -> pd.DataFrame:
    """One row a kernel, pass and workload: kernels by name, sizes from the smallest on.

    If several runs have a row, the best is taken by these criteria in order: it has other implementations to compare with, its
    kernel's code is today's (not ``changed``), it has more implementations, more workloads, it is newer. All rows of a kernel and
    pass are of one GPU. If its best row is of today's code, ``changed`` rows of other runs are left out.

    ``over_…`` are speed ratios by GPU time (the other implementation's over ours), ``low_…`` and ``high_…`` their 95 %
    intervals, ``interval_…`` the ratio by the interval, which includes the CPU's delays. ``of_roof`` is the floor's time
    over ours at the ``roof``: copy or read bandwidth, or a pipe's rate. ``verdict`` compares the claim with the ratio by GPU time,
    ``verdict_interval`` with that by the interval; both are empty where nothing is claimed. An absent number is NaN; an empty
    ``library_version`` was not recorded.
    """
    found: dict[tuple[str, str, str], dict[str, Any]] = {}
    headlines: dict[tuple[str, str], dict[str, Any]] = {}
    for row in rows:
        size, problem = (row["kernel"], row["pass"], row["workload"]), (row["kernel"], row["pass"])
        found[size] = max(found.get(size, row), row, key=_worth)
        headlines[problem] = max(headlines.get(problem, row), row, key=_worth)

    def counts(row: dict[str, Any]) -> bool:
        headline = headlines[row["kernel"], row["pass"]]
        current = row["changed"] <= headline["changed"] or row["run"] == headline["run"]
        return bool(row["device"] == headline["device"] and current)

    # By name, because a family may be recorded in parts.
    ordered = sorted(
        filter(counts, found.values()),
        key=lambda row: (row["kernel"], list(headlines).index((row["kernel"], row["pass"])), row["floor"]),
    )
    return pd.DataFrame(ordered, columns=list(COLUMNS)).astype(COLUMNS)


def of_run(loaded: LoadedRun) -> list[dict[str, Any]]:
    """One row for each kernel, pass and workload with right results of the Triton implementation, measured.

    A row has ``COLUMNS``, ``functions``, the GPU functions of the library that its problem launched, and ``workloads``, the number of
    the run's rows of its kernel and pass.
    """
    if not loaded.run.device.measured:
        return []
    table = loaded.table[(loaded.table["config"] == "") & loaded.table["metric"].isin(_NEEDED)]
    every = summary.summarise(table, loaded.run.device, loaded.run.kernels)
    gains = traffic.speedup(table)
    bounds = gains[gains["impl"] == "triton"].set_index(["kernel", "pass", "workload"])["predicted"].to_dict()
    cases = gather(table)
    problems = by_problem(cases)
    failed = {failure.case for failure in loaded.run.failures if failure.collector == "check"}
    launched = changes.launched(loaded)
    changed = {name: changes.changed_functions(loaded, name) for name in loaded.run.kernels}
    rows = []
    for case, ours in zip(cases, every.to_dict("records"), strict=True):
        if case.key["impl"] != "triton" or not ours["measured"] or not _right(case, failed):
            continue
        others = {name: other for name, other in problems[problem_of(case)].items() if _right(other, failed)}
        known = {str(name): value for name, value in ours.items()}
        functions = launched[Problem(*problem_of(case)[1:])]
        row = _row(case, known, others, bounds, loaded)
        rows.append(
            {**row, "functions": sorted(functions), "changed": not functions.isdisjoint(changed.get(row["kernel"], ()))}
        )
    sizes = {(row["kernel"], row["pass"], row["workload"]) for row in rows}
    counts = Counter(size[:2] for size in sizes)
    return [{**row, "workloads": counts[row["kernel"], row["pass"]]} for row in rows]


def disagree(rows: pd.DataFrame, other: str) -> pd.Series:
    """Rows where ours is ahead of ``other`` (of ``OVER``) by one of the two clocks and behind by the other."""
    gpu, interval = rows[f"over_{other}"], rows[f"interval_{other}"]
    return gpu.notna() & interval.notna() & ((gpu > 1) != (interval > 1))


def standings(rows: pd.DataFrame) -> pd.Series:
    """``faster``, ``on par`` or ``slower`` by GPU time than the fastest other implementation; empty where none was timed."""
    low, high = PAR
    quickest = rows[[f"over_{other}" for other in OVER]].min(axis="columns")
    words = np.select([quickest.isna(), quickest > high, quickest < low], ["", "faster", "slower"], "on par")
    return pd.Series(words, index=rows.index, dtype="object")


def verdicts(rows: pd.DataFrame) -> pd.Series:
    """The verdict on each claim over all sizes by GPU time, as text, by kernel and pass."""
    claimed = rows[rows["verdict"] != ""]
    found: dict[tuple[str, str], str] = {}
    for (kernel, direction), sizes in claimed.groupby(["kernel", "pass"], sort=False):
        counts = sizes.loc[sizes["verdict"] != "not measured", "verdict"].value_counts()
        total = int(counts.sum())
        if len(counts) > 1:
            parts = (f"{word} at {counts[word]}" for word in ("holds", "less", "more") if word in counts)
            found[str(kernel), str(direction)] = f"{', '.join(parts)} of {total}"
        else:
            found[str(kernel), str(direction)] = str(counts.index[0]) if total else "not measured"
    return pd.Series(found, dtype="object")


def _worth(row: dict[str, Any]) -> tuple[bool, bool, int, int, str]:
    compared = sum(not math.isnan(row[f"over_{name}"]) for name in OVER)
    # First, because a sweep has no other implementation and so supports no claim.
    return bool(compared), not row["changed"], compared, row["workloads"], row["run"]


def _right(case: CaseValues, failed: set[str]) -> bool:
    name = "/".join(case.key[column] for column in ("kernel", "impl", "pass", "workload"))
    return not case.wrong() and not any(known == name or known.endswith(f":{name}") for known in failed)


def _row(
    case: CaseValues,
    ours: Mapping[str, Any],
    others: Mapping[str, CaseValues],
    bounds: Mapping[Any, float],
    loaded: LoadedRun,
) -> dict[str, Any]:
    device, versions = loaded.run.device, loaded.run.versions
    near = roofs.of_roof(ours, device)
    ratios = {name: _ratios(case, others.get(name)) for name in ("eager", "compile", *summary.LIBRARIES)}
    timed = [name for name in summary.LIBRARIES if ratios[name]["over"] > 0]
    library = min(timed, key=lambda name: ratios[name]["over"], default="")
    chosen = {"eager": "eager", "compile": "compile", "library": library}
    size = case.key["kernel"], case.key["pass"], case.key["workload"]
    return {
        **{name: case.key[name] for name in ("kernel", "pass", "workload")}, **_claimed(case.key["kernel"], case.key["pass"], ratios),
        "bound": math.nan if near.pipe else bounds.get(size, math.nan),
        **{f"{what}_{other}": value for other, name in chosen.items() for what, value in ratios.get(name, _ABSENT).items()},
        "library": library, "library_version": versions.get(_VERSIONS.get(library, library), ""),
        "roof": near.name, "of_roof": near.fraction, "floor": ours["floor"], "run": loaded.run.id, "device": device.name,
        "started": loaded.run.started[:10],
    }  # fmt: skip


def _ratios(ours: CaseValues, other: CaseValues | None) -> dict[str, float]:
    """The other's time over ours by either clock, and the interval of the ratio of GPU times."""
    if other is None or other is ours:
        return _ABSENT
    found = dict(_ABSENT)
    times = gpu_times(ours, other)
    clocks = [("over", ("gpu_time", times[0].source))] if times else []
    for what, clock in (*clocks, ("interval", ("interval", "events"))):
        mine, theirs = (np.array(case.totals.get(clock, ())) for case in (ours, other))
        if mine.size and theirs.size and np.median(mine) > 0:
            found[what] = float(np.median(theirs) / np.median(mine))
            if what == "over" and min(mine.size, theirs.size) > 1:
                found["low"], found["high"] = compare.interval(baseline=theirs, candidate=mine)
    return found


def _claimed(kernel: str, direction: str, ratios: Mapping[str, Mapping[str, float]]) -> dict[str, Any]:
    claim = published(kernel, direction)
    if claim is None:
        return {**dict.fromkeys(_CLAIMED, ""), "claim_low": math.nan, "claim_high": math.nan}
    measured = ratios.get(claim.over, _ABSENT)
    said = [claim.said, claim.over, claim.source, *(_verdict(claim, measured[name]) for name in ("over", "interval"))]
    return {**dict(zip(_CLAIMED, said, strict=True)), "claim_low": claim.low, "claim_high": claim.high}


def _verdict(claim: Claim, measured: float) -> str:
    if math.isnan(measured):
        return "not measured"
    if claim.low <= measured <= claim.high:
        return "holds"
    return "less" if measured < claim.low else "more"


@dataclass(frozen=True)
class Claim:
    """A claim of ``low`` to ``high`` times the speed of the implementation ``over``, for one pass.

    ``said`` is the figure as the text at ``source`` has it, ``title`` the name of the text.
    """

    kernel: str
    said: str
    low: float
    high: float
    source: str
    title: str
    over: str = "eager"
    direction: str = FORWARD


def _about(factor: float) -> tuple[str, float, float]:
    """A figure that a text gives without an interval: within 10 %."""
    return f"about {factor:g}×", 0.9 * factor, 1.1 * factor


#: The range of the ratio of two times that counts as on par: texts give no interval.
PAR = (0.95, 1.05)
_ON_PAR = ("on par", *PAR)

CLAIMS = (
    Claim("softmax", *_about(4), f"{_TUTORIALS}/02-fused-softmax.html", "Triton's tutorial of a fused softmax"),
    Claim("matmul", *_ON_PAR, f"{_TUTORIALS}/03-matrix-multiplication.html", "Triton's tutorial of a matrix product"),
    Claim("rms_norm", *_about(7), _LIGER, "Liger-Kernel's documentation"),
    Claim("cross_entropy", *_about(3), _LIGER, "Liger-Kernel's documentation", direction=STEP),
    Claim("rope", *_about(8), _LIGER_PAPER, "the Liger-Kernel paper, section 4.1"),
    Claim("swiglu", *_ON_PAR, _LIGER_PAPER, "the Liger-Kernel paper, section 4.1"),
    Claim("geglu", *_ON_PAR, _LIGER_PAPER, "the Liger-Kernel paper, section 4.1"),
)


def published(kernel: str, direction: str) -> Claim | None:
    """The published claim about a kernel's pass, or None."""
    return next((claim for claim in CLAIMS if (claim.kernel, claim.direction) == (kernel, direction)), None)
