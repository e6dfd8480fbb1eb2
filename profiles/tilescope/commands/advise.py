"""``tilescope advise``: the bottlenecks of a run's kernels, and remedies."""

from __future__ import annotations

import argparse
import textwrap
from typing import Any

import pandas as pd

from tilescope.commands import running
from tilescope.models import advice, faults, json_documents, summary, terminal, text_table
from tilescope.models.advice import Finding, nvidia_rules
from tilescope.models.documents import Advice
from tilescope.runs import store
from tilescope.runs.store import LoadedRun
from tilescope.table.schema import NAMED, named
from tilescope.table.sources import lacking
from tilescope.table.suggest import unknown

#: The largest width of a finding's lines.
_WIDTH = 110


def add(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("name", metavar="RUN", help="an id, its start, a folder, or latest")
    parser.add_argument("kernel", nargs="?", default="", metavar="KERNEL", help="one kernel (all of the run)")
    parser.add_argument("--impl", default="", metavar="NAME", help="one implementation (triton, where there is one)")
    parser.add_argument("--pass", dest="direction", default="", metavar="NAME", help="forward or backward (both)")
    parser.add_argument("--workload", default="", metavar="ID", help="one workload (the largest), or all")
    parser.add_argument("--json", action="store_true", help="every finding as JSON (schema: advice)")


def run(arguments: argparse.Namespace) -> int:
    """Prints the findings. Raises ValueError for a kernel, implementation, pass or workload that the run does not have."""
    loaded = store.open_run(running.found(arguments.name))
    wanted = {name: getattr(arguments, name) for name in ("kernel", "impl", "direction", "workload")}
    if arguments.json:
        print(json_documents.text(document(loaded, **wanted)))
        return 0
    if loaded.of_step and not any(wanted.values()):
        print(text_table.text(loaded))
        return 0
    table, found = _advice(loaded, **wanted)
    # A case that failed before it had any row comes with the faults.
    cases = dict.fromkeys([*(finding.case for finding in found if finding.fault), *named(table)])
    for number, case in enumerate(cases):
        print(("\n" if number else "") + terminal.plain("/".join(filter(None, case))))
        of_case = [finding for finding in found if finding.case == case]
        print(
            "\n".join(text(rank, finding) for rank, finding in enumerate(of_case, 1)) or _nothing(loaded, table, case)
        )
    return running.without_values(loaded)


def _nothing(loaded: LoadedRun, table: pd.DataFrame, case: tuple[str, ...]) -> str:
    """What is said of a case without findings: which collectors would say more of it, where one can run it."""
    sources = set(table.loc[(table[NAMED] == list(case)).all(axis="columns"), "source"])
    if sources <= {"model"}:
        return "  Nothing was measured or compiled: the run's notes say why ('tilescope show')."
    wanted = () if "tool" in loaded.run.settings else lacking(sources)
    more = f" Profile it with --collect {','.join(wanted)} to know more." if wanted else ""
    return f"  No known bottleneck found.{more}"


def document(loaded: LoadedRun, *, kernel: str = "", impl: str = "", direction: str = "", workload: str = "") -> Advice:
    """The document ``advice`` on these cases; by default the largest workload of each kernel and pass, of its Triton code.

    Raises ValueError for a kernel, implementation, pass or workload that the run does not have.
    """
    table, found = _advice(loaded, kernel=kernel, impl=impl, direction=direction, workload=workload)
    return json_documents.advice(loaded, table, found)


def _advice(loaded: LoadedRun, **wanted: str) -> tuple[pd.DataFrame, list[Finding]]:
    """The rows of the wanted cases, and the findings about them: ours, then NVIDIA's."""
    table = _choose(loaded, **wanted)
    found = [one for one in advice.of_run(loaded, table) if _is_wanted(one, **wanted)]
    broken = {finding.case for finding in found if finding.fault}
    cases = set(named(table)) - broken
    theirs = nvidia_rules.of_run(loaded.folder, loaded.run.kernels)
    return table, found + [finding for finding in theirs if finding.case in cases]


def _is_wanted(finding: Finding, *, kernel: str, impl: str, direction: str, workload: str) -> bool:
    of, asked = (finding.kernel, finding.impl, finding.direction), (kernel, impl, direction)
    workload = "" if workload == "all" else workload
    return all(
        not wanted or wanted == name for wanted, name in zip((*asked, workload), (*of, finding.workload), strict=True)
    )


def text(rank: int, finding: Finding) -> str:
    """Lines of one finding: its title and potential speedup, its evidence, and its remedy."""
    win = finding.bound.text if finding.bound else "no estimate"
    clock = " of the interval" if finding.bound and finding.bound.clock == "interval" else ""
    kind = "NVIDIA's rule" if finding.origin == "nvidia" else "measured" if finding.measured else "predicted"
    where = f" ({finding.function})" if finding.function else ""
    values = "; ".join(f"{value.label} {value.text} ({value.source})" for value in finding.evidence)
    lines = [
        *([f"why: {finding.explanation or values}"] if finding.explanation or values else []),
        *([f"bound: {finding.bound.formula}"] if finding.bound else []),
        f"{'ncu' if finding.origin == 'nvidia' else 'do'}: {finding.remedy}",
    ]
    head = f"  {rank}. {finding.title}{where}" + (
        "" if finding.of_results or finding.warning else f": {win}{clock}, {kind}"
    )
    width = min(_WIDTH, terminal.width())
    wrapper = textwrap.TextWrapper(width, "     ", "       ", break_long_words=False)
    told = [textwrap.fill(head, width, subsequent_indent="     ", break_long_words=False), *map(wrapper.fill, lines)]
    return terminal.plain("\n".join(told))


def _choose(loaded: LoadedRun, *, kernel: str, impl: str, direction: str, workload: str) -> pd.DataFrame:
    """The wanted rows; by default those of the largest workload of each kernel and pass, of its Triton code."""
    table = loaded.table
    if loaded.of_step and not (kernel or impl or direction or workload):
        return table.head(0)
    failed = [key for key, _ in faults.of_failures(loaded.run.failures)]
    for column, wanted in (("kernel", kernel), ("impl", impl), ("pass", direction),
                           ("workload", "" if workload == "all" else workload)):  # fmt: skip
        known = list(dict.fromkeys([*table[column], *(fault[column] for fault in failed)]))
        if wanted and wanted not in known:
            raise ValueError(f"{unknown(column, wanted, known)} in {loaded.run.id}")
        table = table[table[column] == wanted] if wanted else table
    if workload:
        return table
    kept = [_largest(rows, loaded, impl) for _, rows in table.groupby(["kernel", "pass"], sort=False)]
    return table[table.index.isin([index for rows in kept for index in rows.index])]


def _largest(rows: Any, loaded: LoadedRun, impl: str) -> Any:
    """The rows of the workload with the longest floor, and of the Triton code where ``impl`` is not chosen."""
    head = summary.representative(summary.summarise(rows, loaded.run.device, loaded.run.kernels))
    if head is None:
        return rows
    return rows[(rows["workload"] == head["workload"]) & (rows["impl"] == (impl or head["impl"]))]
