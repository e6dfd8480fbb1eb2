"""Compare: speedup over a baseline, another run or another implementation."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

import pandas as pd
from tilescope.models import baseline as usual
from tilescope.models import compare as model
from tilescope.models import verdicts
from tilescope.models.compare import doubts
from tilescope.runs import store
from tilescope.runs.store import LoadedRun

from tilescope_dashboard.data.columns import IMPL, KERNEL, PASS, WORKLOAD, Column
from tilescope_dashboard.data.units import short
from tilescope_dashboard.data.url_state import parts
from tilescope_dashboard.figures.compare import MOST
from tilescope_dashboard.topics.baselines import dated
from tilescope_dashboard.topics.sentence import Sentence

#: Columns of ``tilescope.models.compare.compare``'s frame, where the open run is the candidate.
COLUMNS = (
    WORKLOAD, PASS, Column("speedup", "speedup", "speedup"), Column("verdict", "this one is"), IMPL,
    Column("baseline_name", "baseline"), Column("baseline_run", "its run"), Column("time", "GPU time", "second"),
    Column("baseline_time", "baseline's time", "second"), Column("speedup_low", "95 %, from", "times"),
    Column("speedup_high", "95 %, to", "times"),
    Column("bytes", "HBM bytes (B)", "byte"), Column("baseline_bytes", "baseline's HBM bytes (B)", "byte"),
    Column("registers", "registers", "count"), Column("baseline_registers", "baseline's registers", "count"),
    Column("shared_memory", "shared memory (B)", "byte"),
    Column("baseline_shared_memory", "baseline's shared memory (B)", "byte"),
    Column("theoretical_occupancy", "occupancy", "ratio"),
    Column("baseline_theoretical_occupancy", "baseline's occupancy", "ratio"), Column("source", "clock"),
)  # fmt: skip
#: Those of them with times.
TIMES = ("time", "baseline_time", "speedup", "speedup_low", "speedup_high")
#: Columns of a report: times, then resources.
CHANGES = (
    KERNEL, PASS, WORKLOAD, Column("baseline_impl", "baseline"), Column("impl", "candidate"),
    Column("baseline_time", "baseline's time", "second"), Column("time", "candidate's", "second"),
    Column("speedup", "speedup", "times"), Column("interval", "95 % interval", "spread"),
    Column("verdict", "candidate is"), Column("source", "clock"),
)  # fmt: skip
RESOURCES = (
    Column("baseline_bytes", "HBM bytes", "byte"), Column("bytes", "candidate's", "byte"),
    Column("baseline_registers", "registers", "count"), Column("registers", "candidate's", "count"),
    Column("baseline_shared_memory", "shared memory (B)", "byte"), Column("shared_memory", "candidate's", "byte"),
    Column("baseline_theoretical_occupancy", "occupancy", "ratio"), Column("theoretical_occupancy", "candidate's", "ratio"),
)  # fmt: skip
#: How to compare a kernel of one implementation with PyTorch.
ALONE = "'tilescope profile FILE.py:SPEC' also times a SPEC's reference in PyTorch. "
_NOTHING = f"Choose another run or kernel as the baseline. {ALONE}".strip()
_READING = "Right of 1×: {} is faster than the baseline. A bar is the 95 % interval of the speedup."


def against(
    loaded: LoadedRun, kernel: str, tokens: Iterable[str], opened: Callable[[Path], LoadedRun]
) -> tuple[pd.DataFrame, list[str]]:
    """The kernel's cases against each baseline, wrong ones and then the largest speedup first, and remarks on them.

    A baseline without a common case, or that cannot be ``opened``, gets a line instead of an exception.
    """
    frames, said = [pd.DataFrame(columns=list(model.COLUMNS)).astype(model.COLUMNS)], []
    for token in tokens:
        run, impl, other = parts(token)
        candidate = model.Side(loaded, "triton" if impl else "", other and kernel)
        try:
            baseline = model.Side(opened(store.find(run)), impl, other)
            rows = model.compare(baseline, candidate, "" if other else kernel)
        except (store.StoreError, model.CompareError, OSError) as error:
            said.append(f"{token}: {error}")
            continue
        name = other or impl if baseline.loaded.run.id == loaded.run.id else dated("run", baseline.loaded.run.started)
        if obstacles := model.obstacles(baseline, candidate):
            said.append(f"{name}: no times are compared, {'; '.join(obstacles)}")
        doubted, changed = doubts(baseline.loaded, candidate.loaded, rows), model.changes(baseline, candidate)
        said += [f"{name}: {line}" for line in (*doubted, *changed)]
        names = usual.declarations(baseline.loaded.run.kernels.get(kernel))
        frames.append(rows.assign(baseline_name=[usual.called(impl, names) for impl in rows["baseline_impl"]]))
    rows = pd.concat(frames[1:] or frames, ignore_index=True)
    rows = rows.sort_values("speedup", ascending=False, kind="stable", na_position="last", ignore_index=True)
    return rows.sort_values(
        "verdict", key=lambda verdict: verdict != model.WRONG, kind="stable", ignore_index=True
    ), said


def sentence(kernel: str, others: Sequence[str], rows: pd.DataFrame, of_case: str = "") -> Sentence:
    """The headline of ``against``'s rows, followed by ``of_case``; ``others`` names the baselines."""
    if not others:
        title = f"{kernel} has no other implementation and no earlier run to compare with" if kernel else "Compare"
        return Sentence(title, _NOTHING)
    timed = rows["speedup"].notna().sum()
    more = f" The figure shows the first {MOST}." if timed > MOST else ""
    text = of_case + _READING.format(kernel) + more if timed else of_case
    return Sentence(verdicts.sentence(rows, kernel, _listed(others)), text)


def _listed(names: Sequence[str]) -> str:
    """Up to two names, shortened for a title, else their number."""
    return " and ".join(short(name, 40) for name in names) if len(names) < 3 else f"{len(names)} baselines"
