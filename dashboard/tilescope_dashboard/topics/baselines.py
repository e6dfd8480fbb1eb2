"""What a run of a kernel can be compared with, how a baseline is called, and the chosen case among those compared."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import pandas as pd
from tilescope.models import baseline as model
from tilescope.models import renaming
from tilescope.runs import store
from tilescope.runs.store import LoadedRun

from tilescope_dashboard.data import url_state
from tilescope_dashboard.data.kernel_cases import OF_KERNEL, KernelCase
from tilescope_dashboard.data.run_cache import open_cached
from tilescope_dashboard.data.units import times


def possible(
    loaded: LoadedRun | None, kernel: str, runs: Sequence[store.Summary], catalog: Iterable[Mapping[str, Any]] = ()
) -> dict[str, str]:
    """Possible baselines of the kernel's run, by their labels: ``RUN``, ``RUN:IMPLEMENTATION``, or ``RUN::KERNEL`` for another kernel.

    Other kernels are those of the user's runs, and those of the ``catalog`` with the same dimensions, each in its newest recording.
    """
    if loaded is None or kernel not in loaded.run.kernels:
        return {}
    mine = loaded.table[(loaded.table["kernel"] == kernel)]
    impls = sorted(set(mine.loc[mine["config"] == "", "impl"].unique()) - {"triton"})
    names = model.declarations(loaded.run.kernels[kernel])
    ours = mine["impl"].eq("triton").any()
    own = {f"{model.called(impl, names)} in this run": f"{loaded.run.id}:{impl}" for impl in impls if ours}
    readable = [s for s in runs if not s.error]
    others = [s for s in readable if s.id != loaded.run.id and kernel in s.kernels]
    dims = loaded.run.kernels[kernel].get("dims")
    alike = {entry["name"] for entry in catalog if dims and entry.get("dims") == dims}
    recorded = {name: s for s in reversed(readable) if s.recorded and s.measured for name in s.kernels if name in alike}
    others_of = [
        (name, s)
        for s in readable
        for name in s.kernels
        if name != kernel
        and (recorded.get(name) is s if s.recorded else s.id == loaded.run.id or kernel not in s.kernels)
    ]
    renamed = [
        (
            f"{name}, {'in this run' if s.id == loaded.run.id else f'{dated(s.title, s.started)} ({s.device})'}",
            f"{s.id}::{name}",
        )
        for name, s in others_of
    ]
    made_by = tritons(readable)
    dates = [
        (f"{s.started[:16].replace('T', ' ')} {s.title} ({', '.join([s.device, *made_by.get(s.id, [])])})", s.id)
        for s in others
    ]
    return own | _distinct([*dates, *renamed])


def _distinct(labelled: Iterable[tuple[str, str]]) -> dict[str, str]:
    """The tokens by their labels. Runs of one title and minute are told apart by the ends of their ids."""
    known = list(labelled)
    labels = Counter(label for label, _ in known)
    return {
        label if labels[label] == 1 else f"{label} · {url_state.parts(token)[0][-4:]}": token for label, token in known
    }


def tritons(runs: Iterable[store.Summary]) -> dict[str, list[str]]:
    """Each run's version of Triton, for its label; empty where the runs do not differ in it."""
    known = {s.id: s.triton for s in runs if s.triton}
    return {run: [f"Triton {version}"] for run, version in known.items() if len(set(known.values())) > 1}


def before(loaded: LoadedRun | None, kernel: str, runs: Iterable[store.Summary]) -> str:
    """Id of the kernel's newest earlier run on the same GPU; empty without one."""
    own = loaded.run if loaded else None
    readable = [s for s in runs if own and kernel in s.kernels and not s.error]
    found = [s for s in readable if own and s.device == own.device.name and s.started < own.started]
    return max(found, key=lambda s: s.started).id if found else ""


def meant(token: str, loaded: LoadedRun | None, kernel: str) -> str:
    """The token, with the kernel's former name where it is a run that has it under another one."""
    run, impl, other = url_state.parts(token)
    if loaded is None or impl or other:
        return token
    try:
        former = renaming.renamed(open_cached(url_state.run_folder(run)), loaded).get(kernel, "")
    except (store.StoreError, OSError):
        return token  # the page says why
    return f"{run}::{former}" if former else token


def name_of(token: str, runs: Iterable[store.Summary], declared: Mapping[str, str]) -> str:
    """The baseline's name in a title: a kernel, an implementation of the open run, as its kernel's are ``declared``, or a run."""
    run, impl, other = url_state.parts(token)
    if impl or other:
        return other or model.called(impl, declared)
    return next((dated(s.title, s.started) for s in runs if s.id == run and s.title), run)


def dated(title: str, started: str) -> str:
    """A run's title with its time, as runs before and after a change share a title."""
    return f"{title} of {started[:16].replace('T', ' ')}"


def declared(loaded: LoadedRun | None, kernel: str) -> Mapping[str, str]:
    """The declarations of the kernel's implementations in the run."""
    return model.declarations(loaded.run.kernels.get(kernel)) if loaded else {}


def usual(loaded: LoadedRun | None, kernel: str, runs: Iterable[store.Summary] = ()) -> list[str]:
    """The usual baseline: an implementation of this run; without one the kernel's run before, of ``runs``; else nothing."""
    there = set(loaded.table.loc[loaded.table["kernel"] == kernel, "impl"].unique()) if loaded else set()
    impl = model.usual(there, declared(loaded, kernel))
    token = f"{loaded.run.id}:{impl}" if loaded and impl else before(loaded, kernel, runs)
    return [token] if token else []


def of_case(rows: pd.DataFrame, case: KernelCase | None) -> pd.DataFrame:
    """Rows of ``compare.against`` for the case, else for its problem, one per baseline; none without a case."""
    if case is None:
        return rows.head(0)
    same = rows[(rows["workload"] == case.workload) & (rows["pass"] == case.direction)]
    own = same[(same["impl"] == case.impl) & (same["config"] == case.config)]
    return own if len(own) else same


def said(rows: pd.DataFrame, case: KernelCase | None, names: Mapping[str, str]) -> str:
    """The case's speedups over up to two baselines, a sentence each. ``names`` are ``declared``."""
    ours = of_case(rows, case)
    return "".join(
        f"{model.called(row['impl'], names)} on {row['workload']}, {row['pass']}: {times(row['speedup'])} vs {model.called(row['baseline_impl'], names)}. "
        for row in ours[ours["speedup"].notna()].head(2).to_dict("records")
    )


def explained(names: Iterable[str], declared: Mapping[str, str]) -> str:
    """A sentence for each baseline that has its implementation's own name and a declaration: ``cudnn is PyTorch's SDPA. ``."""
    return "".join(f"{name} is {declared[name].rstrip('.')}. " for name in names if declared.get(name))


def of_row(row: Mapping[Any, Any]) -> dict[str, str]:
    """The fields of a row's ``KernelCase``."""
    return dict(zip(KernelCase._fields, (row[column] for column in OF_KERNEL), strict=True))
