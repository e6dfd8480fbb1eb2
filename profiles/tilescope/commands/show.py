"""``tilescope show``: lists the runs, or prints one."""

from __future__ import annotations

import argparse
from collections.abc import Iterator

import pandas as pd

from tilescope.commands import running
from tilescope.models import impossible, json_documents, sweeps, terminal, text_table
from tilescope.runs import changes, store
from tilescope.table import units
from tilescope.table.case import Case
from tilescope.table.schema import NAMED

_PLACE = ["kernel", "impl", "function", "file", "line"]


def add(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("name", nargs="?", metavar="RUN", help="an id, its start, a folder, or latest (list all)")
    parser.add_argument(
        "--json", action="store_true", help="the list, or the run with its whole table (schemas: runs, run)"
    )
    parser.add_argument("--schema", metavar="NAME", help="print the JSON Schema of a document, such as advice")


def run(arguments: argparse.Namespace) -> int:
    if arguments.schema:
        print(json_documents.schema_text(arguments.schema))
        return 0
    if arguments.name is None:
        return _list(arguments.json)
    folder = running.found(arguments.name)
    # A half-written run is shown with its finished cases.
    loaded, said = store.open_partial(folder) if folder.name.startswith(store.PARTIAL) else (store.open_run(folder), [])
    if arguments.json:
        print(json_documents.text(json_documents.run(loaded)))
        return 0
    run = loaded.run
    versions = ", ".join(f"{name} {version}" for name, version in run.versions.items())
    # Faults come before what is slow.
    rows = running.begin(loaded)
    terminal.say(f"{run.id} {run.title}", f"started {run.started}, {run.device.where}, with {versions}")
    if run.git_revision.endswith("+"):
        terminal.say(f"note: its source was revision {run.git_revision[:12]} with changes that were not committed")
    for line in said:
        terminal.say(f"note: {line}")
    if not run.complete and not said:
        terminal.say("not complete: it was cancelled, or its process died; the finished cases follow")
    for kernel in changes.changed_kernels(loaded):
        terminal.say(f"note: {kernel} has changed since this run")
    print(text_table.text(loaded, rows))
    for sweep, lines in sweeps.conclusions(loaded.table, run.device.target):
        terminal.say(sweep, *(f"  {line}" for line in lines))
    terminal.say(*remarks(loaded.lines))
    for case, reason in impossible.of_table(loaded.table, run.device, run.kernels):
        terminal.say(f"impossible: {Case(*(case.key[name] for name in NAMED)).id}: {reason.said}")
    running.report(loaded, False, [])
    return 0


def _list(as_json: bool) -> int:
    runs = store.list_runs()
    if as_json:
        print(json_documents.text(json_documents.runs(runs)))
        return 0
    if not runs:
        print("no runs yet: make one with 'tilescope profile softmax'")
        return 0
    rows = [
        [
            run.id,
            *run.in_one_line(),
            str(run.cases) if not run.error else "–",
            run.error or ", ".join(filter(None, [
                "recorded" if run.recorded else "" if run.measured else "predicted",
                "a model's step" if run.of_step else "",
                "" if run.complete else "not complete",
                f"{run.failures} failed" if run.failures else "",
            ])),
        ]
        for run in runs
    ]  # fmt: skip
    print(terminal.render(["run", "device", "title", "cases", "remarks"], rows))
    return 0


def conflicted(lines: pd.DataFrame) -> pd.DataFrame:
    """Lines with predicted bank conflicts, the worst first.

    ``lines`` is a frame of ``table.line_values``. The columns are the line's place, ``wavefronts`` and ``ideal`` of one warp (each
    access counted once), and their ``ratio``: the worst case's, where cases share a line.
    """
    own = lines[lines["metric"].isin(["code_wavefronts", "code_wavefronts_ideal"])]
    found = own.pivot_table(index=[*_PLACE, "pass", "workload", "config", "launch"], columns="metric", values="value")
    found = found.reindex(columns=["code_wavefronts", "code_wavefronts_ideal"]).set_axis(
        ["wavefronts", "ideal"], axis="columns"
    )
    found = found[found["wavefronts"] > found["ideal"]].reset_index()
    found["ratio"] = found["wavefronts"] / found["ideal"]
    return found.sort_values("ratio", ascending=False, kind="stable").drop_duplicates(_PLACE, ignore_index=True)


def remarks(lines: pd.DataFrame) -> Iterator[str]:
    """A line of text for each line of ``conflicted``."""
    for row in conflicted(lines).itertuples():
        yield (
            f"bank conflicts (predicted): {row.function}, {row.file} line {row.line}: shared memory takes "
            f"{units.times(row.ratio)} the wavefronts that its bytes need"
        )
