"""Compare: speedup over a baseline, another run or another implementation."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path

import pandas as pd
from tilescope.models import baseline as usual
from tilescope.models import compare as model
from tilescope.models import verdicts
from tilescope.models.repetitions import doubts
from tilescope.runs import store
from tilescope.runs.store import LoadedRun

from tilescope_dashboard.data.columns import IMPL, KERNEL, PASS, WORKLOAD, Column
from tilescope_dashboard.data.units import short
from tilescope_dashboard.data.url_state import parts
from tilescope_dashboard.figures.compare import MOST
from tilescope_dashboard.topics.sentence import Sentence

#: Columns of ``tilescope.models.compare.compare``'s frame, where the open run is the candidate.
COLUMNS = (
    PASS, WORKLOAD, IMPL, Column("baseline_name", "baseline"), Column("baseline_run", "its run"),
    Column("time", "GPU time", "second"), Column("baseline_time", "baseline's", "second"),
    Column("speedup", "speedup", "speedup"), Column("speedup_low", "95 %, from", "times"), Column("speedup_high", "to", "times"),
    Column("verdict", "this one is"), Column("bytes", "HBM bytes", "byte"),
    Column("baseline_bytes", "baseline's", "byte"), Column("registers", "registers", "count"),
    Column("baseline_registers", "baseline's", "count"), Column("shared_memory", "shared", "byte"),
    Column("baseline_shared_memory", "baseline's", "byte"), Column("theoretical_occupancy", "occupancy", "ratio"),
    Column("baseline_theoretical_occupancy", "baseline's", "ratio"), Column("source", "clock"),
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
_NOTHING = "Choose a baseline: another implementation, or another run."
_READING = "Right of 1×, this one is faster than the baseline. A bar is the 95 % interval of the speedup."


def baselines(loaded: LoadedRun | None, kernel: str, runs: Iterable[store.Summary]) -> dict[str, str]:
    """Possible baselines of the kernel's run, by their labels: ``RUN``, ``RUN:IMPLEMENTATION``, or ``RUN::KERNEL`` for another kernel."""
    if loaded is None or kernel not in loaded.run.kernels:
        return {}
    mine = loaded.table[(loaded.table["kernel"] == kernel)]
    impls = sorted(set(mine.loc[mine["config"] == "", "impl"].unique()) - {"triton"})
    names = usual.declarations(loaded.run.kernels[kernel])
    ours = mine["impl"].eq("triton").any()
    own = {f"{usual.called(impl, names)} in this run": f"{loaded.run.id}:{impl}" for impl in impls if ours}
    others = [s for s in runs if s.id != loaded.run.id and not s.error and kernel in s.kernels]
    renamed = {
        f"{name}, {'in this run' if s.id == loaded.run.id else f'{_dated(s.title, s.started)} ({s.device})'}": f"{s.id}::{name}"
        for s in runs
        for name in s.kernels
        if not s.error and not s.recorded and (s.id == loaded.run.id or kernel not in s.kernels)
        if name != kernel
    }
    return own | {f"{s.started[:16].replace('T', ' ')} {s.title} ({s.device})": s.id for s in others} | renamed


def before(loaded: LoadedRun | None, kernel: str, runs: Iterable[store.Summary]) -> str:
    """Id of the kernel's newest earlier run on the same GPU; empty without one."""
    own = loaded.run if loaded else None
    readable = [s for s in runs if own and kernel in s.kernels and not s.error]
    found = [s for s in readable if own and s.device == own.device.name and s.started < own.started]
    return max(found, key=lambda s: s.started).id if found else ""


def name_of(token: str, runs: Iterable[store.Summary], declared: Mapping[str, str]) -> str:
    """The baseline's name in a title: a kernel, an implementation of the open run, as its kernel's are ``declared``, or a run."""
    run, impl, other = parts(token)
    if impl or other:
        return other or usual.called(impl, declared)
    return next((_dated(s.title, s.started) for s in runs if s.id == run and s.title), run)


def _dated(title: str, started: str) -> str:
    """A run's title with its time, as runs before and after a change share a title."""
    return f"{title} of {started[:16].replace('T', ' ')}"


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
        name = other or impl if baseline.loaded.run.id == loaded.run.id else _dated("run", baseline.loaded.run.started)
        said += [f"{name}: no times are compared, {line}" for line in model.obstacles(baseline, candidate)]
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
        return Sentence("Compare", _NOTHING)
    more = f" The figure shows the first {MOST}." if rows["speedup"].notna().sum() > MOST else ""
    return Sentence(verdicts.sentence(rows, kernel, _listed(others)), of_case + _READING + more)


def _listed(names: Sequence[str]) -> str:
    """Up to two names, shortened for a title, else their number."""
    return " and ".join(short(name, 40) for name in names) if len(names) < 3 else f"{len(names)} baselines"
