"""``tilescope compare``: changes between a baseline and other runs or implementations."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Any

from tilescope.commands import choices, running

if TYPE_CHECKING:
    import pandas as pd

    from tilescope.models.compare import Side


def command(subparsers: choices.Subparsers) -> None:
    parser = subparsers.add_parser("compare", help="show what changed between runs, or between implementations")
    parser.add_argument("base", metavar="RUN[:IMPL]", help="the baseline, such as latest, or latest:triton")
    parser.add_argument("others", nargs="+", metavar="RUN[:IMPL]", help="the runs to compare with it")
    parser.add_argument("--kernel", default="", metavar="KERNEL", help="only this kernel (all)")
    parser.add_argument(
        "--fail-above", type=float, metavar="RATIO", help="status 1 when a case is certainly slower than this ratio"
    )
    parser.add_argument("--json", action="store_true", help="every case as JSON (schema: comparison)")
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Prints a table for each of the others, the worst cases first."""
    from tilescope.models import compare, json_documents  # noqa: PLC0415
    from tilescope.runs import store  # noqa: PLC0415

    base, *others = (compare.side(text, running.found, store.open_run) for text in (arguments.base, *arguments.others))
    found = [compare.compare(base, other, arguments.kernel) for other in others]
    if arguments.json:
        print(json_documents.text(json_documents.comparison(base, others, found)))
    else:
        for other, rows in zip(others, found, strict=True):
            _print(base, other, rows)
    return int(arguments.fail_above is not None and compare.worst(found) > arguments.fail_above)


def _print(base: Side, other: Side, rows: pd.DataFrame) -> None:
    from tilescope.models import compare, text_table, verdicts  # noqa: PLC0415
    from tilescope.table.units import text  # noqa: PLC0415

    print(f"{base.name} → {other.name}\n{verdicts.sentence(rows, other.name, base.name, of_base=False)}")
    for line in compare.obstacles(base, other):
        print(f"no times are compared: {line}")
    for line in compare.changes(base, other):
        print(f"changed: {line}")
    headings = ["kernel", "pass", "workload", "implementation", "time", "then", "ratio", "95 %", ""]
    cells = [
        [
            row["kernel"], row["pass"], row["workload"], _named(row),
            text(row["time"], "second"), text(row["other_time"], "second"),
            "–" if row["ratio"] != row["ratio"] else f"{row['ratio']:.3f}",
            "–" if row["ratio"] != row["ratio"] else f"{row['ratio_low']:.3f} to {row['ratio_high']:.3f}",
            row["verdict"],
        ]
        for row in rows.to_dict("records")
    ]  # fmt: skip
    print(text_table.render(headings, cells))


def _named(row: dict[Any, Any]) -> str:
    def one(impl: str, config: str) -> str:
        return f"{impl} {config}".strip()

    ours, theirs = one(row["impl"], row["config"]), one(row["other_impl"], row["other_config"])
    return ours if ours == theirs else f"{ours} → {theirs}"
