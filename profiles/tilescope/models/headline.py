"""The most important thing to say about a run, in one line. Pure: run -> text."""

from __future__ import annotations

import pandas as pd

from tilescope.models import advice, ledger, step_text, summary
from tilescope.models.advice import Finding
from tilescope.runs import steps
from tilescope.runs.store import MODEL, LoadedRun
from tilescope.table.case import Case

#: The implementation that a run is about.
_OWN = "triton"
#: Most findings of a case that are named.
_SAID = 2


def headline(loaded: LoadedRun, kernel: str = "", rows: pd.DataFrame | None = None) -> str:
    """The first findings about a case of the run, or of one ``kernel``, with the case; empty for a run without any value.

    Triton code comes before other code. A kernel's largest size speaks for it unless a smaller one is wrong. Sweeps are left out.
    A model's step has the first line of what to do next. ``rows`` are ``summary.of_run``'s of the whole run, where they are known.
    """
    if not kernel and (step := steps.read(loaded.folder)):
        known = ledger.of(step, loaded.run.device)
        return next(iter(step_text.advice(step, known, loaded.run.device)), step_text.sentence(known))
    table = loaded.table
    if kernel or (table["config"] != "").any():
        table = table[(table["config"] == "") & table["kernel"].isin([kernel] if kernel else table["kernel"])]
        rows = None  # those of the whole run are too many
    rows = summary.of_run(loaded, table) if rows is None else rows
    impls = {_OWN} & {*rows["impl"]} or {*rows["impl"]}
    found = [
        one for one in advice.of_run(loaded, table, rows)
        if kernel in ("", one.kernel) and (one.impl in impls or _OWN not in impls)
    ]  # fmt: skip
    heads = [summary.representative(of) for _, of in rows[rows["impl"].isin(impls)].groupby(["kernel", "pass"])]
    large = {tuple(head[name] for name in ("kernel", "pass", "workload")) for head in heads if head is not None}
    found = [one for one in found if _is_wrong(one) or (one.kernel, one.direction, one.workload) in large]
    if found:
        said = [one for one in found if one.case == found[0].case and one.bound]
        several = found[0].bound and not _is_wrong(found[0])
        place = "/".join(filter(None, found[0].case))
        return "; ".join([f"{place}: {line(found[0])}", *map(line, said[1:_SAID] if several else ())])
    named = table.loc[
        (table["source"] != MODEL) & table["impl"].isin(impls), ["kernel", "impl", "pass", "workload"]
    ].drop_duplicates()
    if named.empty:
        return ""
    cases = f"all {len(named)} cases" if len(named) > 1 else Case(*named.iloc[0]).id
    return f"{cases}: no problem found{'' if loaded.run.device.measured else ' (not timed: no GPU)'}"


def suggestions(loaded: LoadedRun) -> list[str]:
    """What to do next about a model's step, a line each; nothing for other runs."""
    step, device = steps.read(loaded.folder), loaded.run.device
    return step_text.advice(step, ledger.of(step, device), device) if step else []


def _is_wrong(finding: Finding) -> bool:
    return finding.of_results or finding.warning


def line(finding: Finding) -> str:
    """A finding with its potential speedup, and whether it was measured."""
    if _is_wrong(finding):
        return finding.title
    known = [finding.bound.text] if finding.bound else []
    return f"{finding.title} ({', '.join([*known, 'measured' if finding.measured else 'predicted'])})"
