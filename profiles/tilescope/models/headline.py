"""The most important thing to say about a run, in one line. Pure: run -> text."""

from __future__ import annotations

from tilescope.models import advice
from tilescope.models.advice import Finding
from tilescope.runs.store import MODEL, LoadedRun
from tilescope.table.case import Case

#: Most findings of a case that are named.
_SAID = 2


def headline(loaded: LoadedRun, kernel: str = "") -> str:
    """The first findings about a case of the run, or of one ``kernel``, with the case; empty for a run without any value.

    Configs of a sweep are left out.
    """
    table = loaded.table[loaded.table["config"] == ""]
    table = table[table["kernel"] == kernel] if kernel else table
    found = [one for one in advice.of_run(loaded, table) if kernel in ("", one.kernel)]
    if found:
        said = [one for one in found if one.case == found[0].case and one.bound]
        several = found[0].bound and not found[0].of_results
        return "; ".join([_place(found[0]) + line(found[0]), *map(line, said[1:_SAID] if several else ())])
    named = table.loc[table["source"] != MODEL, ["kernel", "impl", "pass", "workload"]].drop_duplicates()
    if named.empty:
        return ""
    cases = f"all {len(named)} cases" if len(named) > 1 else Case(*named.iloc[0]).id
    return f"{cases}: no problem found{'' if loaded.run.device.measured else ' (not timed: no GPU)'}"


def _place(finding: Finding) -> str:
    return f"{'/'.join(filter(None, finding.case))}: "


def line(finding: Finding) -> str:
    """A finding with its potential speedup, and whether it was measured."""
    if finding.of_results or finding.warning:
        return finding.title
    known = [finding.bound.text] if finding.bound else []
    return f"{finding.title} ({', '.join([*known, 'measured' if finding.measured else 'predicted'])})"
