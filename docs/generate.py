"""Reference pages that are made from the code: commands, metrics, findings, JSON schemas."""

from __future__ import annotations

import argparse
import ast
import inspect
import itertools
import textwrap
from collections.abc import Callable, Iterable
from pathlib import Path

import tilescope
from tilescope import cli
from tilescope.collectors import fault_rules
from tilescope.commands import COMMANDS
from tilescope.models import advice, documents, json_documents, recorded_claims
from tilescope.runs import store
from tilescope.table import metrics, schema
from tilescope_dashboard.report.content import Table
from tilescope_dashboard.topics import home

#: The compute capability whose counters are named.
_CHIP = "9.0"
#: Kernels whose recordings have most kinds of findings.
_EXAMPLES = ("matmul", "histogram", "attention")
#: Why recordings lack the findings of a rule.
_ABSENT = {
    "waits": ": it needs lanes, which were not recorded",
    "repeated_requests": ": in none of the library's kernels is L2 busy with repeated requests",
}


def commands() -> str:
    """Every command with its arguments, from its parser."""
    pages = ["# Commands", "`tilescope COMMAND --help` prints the same."]
    parsers = {name: one for command in COMMANDS for name, one in _parsers(cli.parser(command))}
    parsers = dict(_parsers(cli.parser())) | parsers
    former = {name.split()[-1] for name in parsers if " " in name}
    for name, parser in parsers.items():
        if name in former:
            continue
        listed = parsers.get(name.split()[-1], parser)  # has the text of a command below another
        said = " ".join((parser.description or listed.description or "").split()).rstrip(".")
        usage = f"tilescope {name} " + " ".join(parser.format_usage().split()).partition(f" {name} ")[2]
        usage = "\n".join(textwrap.wrap(usage, 80, subsequent_indent="    ", break_on_hyphens=False))
        sentence = said and f"{said[:1].upper()}{said[1:]}."
        pages += filter(None, (f"## tilescope {name}", sentence, f"```\n{usage}\n```"))
        rows = [
            (
                ", ".join(f"`{one}`" for one in action.option_strings) or f"`{action.metavar or action.dest}`",
                _help(action),
            )
            for action in parser._actions
            if action.help not in (None, argparse.SUPPRESS) and action.dest != "help"
        ]
        pages += [table(("argument", "meaning"), rows)] if rows else []
    return "\n\n".join(pages) + "\n"


def _parsers(parser: argparse.ArgumentParser) -> Iterable[tuple[str, argparse.ArgumentParser]]:
    """The parsers of all commands by name, and of those below one."""
    for group in parser._actions:
        for name, command in group.choices.items() if isinstance(group, argparse._SubParsersAction) else ():
            yield name, command
            yield from ((f"{name} {below}", one) for below, one in _parsers(command))


def _help(action: argparse.Action) -> str:
    values = {**vars(action), "prog": "tilescope"}
    return (action.help or "") % {name: value for name, value in values.items() if isinstance(value, str | int | float)}


def metric_table() -> str:
    """Every metric, from its registration."""
    rows = [
        (f"`{one.name}`", one.label, one.unit, ", ".join(f"`{counter}`" for counter, _ in one.terms(_CHIP))) for one in metrics.METRICS.values()
    ]  # fmt: skip
    columns = ", ".join(f"`{name}`" for name in schema.COLUMNS)
    head = (
        "A run's table has one row a value. A metric that was not measured has no row. `launch` is absent for a value of "
        f"the whole case, and `sample` for a value without repetitions. The columns are {columns}."
    )
    return f"# Metrics\n\n{head}\n\n{table(('metric', 'meaning', 'unit', 'counters of Nsight Compute on an H200'), rows)}\n"


def findings() -> str:
    """Every rule: its condition and bound from its docstring, its cure from its code, its evidence from a recording."""
    pages = [
        "# Findings",
        "A finding names its evidence, the most that the cure can win (its bound), and the cure. A rule whose values are absent "
        "says nothing. Findings are ranked by their bound. `tilescope advise` prints them.",
    ]
    examples = _examples()
    for rule in advice.RULES:
        about, _, bound = _said(rule).partition("Bound: ")
        title = rule.__name__.replace("_", " ").capitalize().replace(" cpu", " CPU")
        pages.append(f"## {title}\n\n{about.strip()}")
        pages += [f"**Bound:** {bound}"] if bound else []
        cures = list(dict.fromkeys(_cures(rule)))
        pages += ["**Cure:** " + " *Or:* ".join(cures)] if cures else []
        shown = [text for name, text in examples.items() if name.startswith(rule.__name__.replace("_", "-"))]
        pages.append(
            shown[0]
            if shown
            else f"**Example:** no recording that this page reads has one{_ABSENT.get(rule.__name__, '')}."
        )
    pages.append(
        "## Faults of code\n\nA fault comes before all findings on speed. It names the line and the values that show it. "
        "A case whose result is wrong has no other finding. Programs show faults while they are interpreted, or compiled "
        "code does; neither needs a GPU. Accesses outside of a tensor, code that does not compile and results that differ "
        "from the reference are faults, too."
    )
    faults = [(*_said(rule).partition("Cure: "), *dict.fromkeys(_cures(rule))) for rule in fault_rules.RULES]
    pages.append(table(("fault", "cure"), [(about, "; ".join(filter(None, cures))) for about, _, *cures in faults]))
    return "\n\n".join(pages) + "\n"


def _said(rule: Callable[..., object]) -> str:
    return " ".join(inspect.cleandoc(rule.__doc__ or "").split())


def _examples() -> dict[str, str]:
    """By a rule's name, what it finds in a recording, with the evidence."""
    found: dict[str, str] = {}
    for kernel in _EXAMPLES:
        for run in itertools.islice(tilescope.recordings(kernel), 5):
            for one in advice.of_run(run, run.table):
                values = "; ".join(f"{value.label} {value.text} ({value.source})" for value in one.evidence)
                found.setdefault(one.rule, f"**Example** ({kernel}, {one.impl}): {one.title}. *Evidence:* {values}.")
    return {rule: _escaped(text).replace("\\*", "*") for rule, text in found.items()}


def _cures(rule: Callable[..., object]) -> Iterable[str]:
    """Texts that the rule offers as a remedy: what it assigns to ``remedy``, or gives ``finding`` or ``Fault`` third."""
    tree = ast.parse(textwrap.dedent(inspect.getsource(rule)))
    for node in ast.walk(tree):
        if isinstance(node, ast.Assign) and any(isinstance(to, ast.Name) and to.id == "remedy" for to in node.targets):
            yield from _texts(node.value)
        elif isinstance(node, ast.Call) and len(node.args) > 2 and _name(node.func) in ("finding", "Fault"):
            yield from _texts(node.args[2])


def _name(called: ast.expr) -> str:
    return str(getattr(called, "attr", getattr(called, "id", "")))


def _texts(node: ast.expr) -> Iterable[str]:
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        yield _escaped(node.value)
    elif isinstance(node, ast.JoinedStr):
        parts = (str(part.value) if isinstance(part, ast.Constant) else "…" for part in node.values)
        yield _escaped("".join(parts)).lstrip("…")
    elif isinstance(node, ast.IfExp):
        yield from (*_texts(node.body), *_texts(node.orelse))


def _escaped(text: str) -> str:
    return text.replace("*", "\\*").replace("_", "\\_")


def schemas() -> str:
    """The JSON Schema of every document."""
    pages = [
        "# JSON documents",
        "Values are in SI base units; null means unknown. A version only ever gains fields. `tilescope show --schema NAME` prints a schema.",
    ]
    for name, kind in documents.TYPES.items():
        said = " ".join((inspect.getdoc(kind) or "").split())
        pages += [f"## {name}", said, f"```json\n{json_documents.schema_text(name)}\n```"]
    return "\n\n".join(pages) + "\n"


def library() -> str:
    """The library's kernels as they were recorded, each with its page of the gallery."""
    rows, _ = recorded_claims.every()
    kernels = home.kernels(rows, store.list_runs([store.recorded_dir()]), {}).sort_values("kernel")
    shown = Table(kernels, home.COLUMNS[:6])
    cells = shown.cells(len(shown.rows))
    linked = [(f'<a href="gallery/{name}.html">{name}</a>', *others) for name, *others in cells]
    return f"# Recorded\n\n{table([column.title for column in shown.columns], linked)}\n"


def table(titles: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    """A Markdown table."""
    head = list(titles)
    lines = [
        head,
        ["---"] * len(head),
        *([cell.replace("|", "\\|").replace("\n", " ") for cell in row] for row in rows),
    ]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


#: The pages by their names.
PAGES: dict[str, Callable[[], str]] = {
    "commands": commands, "metrics": metric_table, "findings": findings, "json": schemas,
    "library": library,
}  # fmt: skip


def write(folder: Path) -> None:
    """Writes the pages into the folder."""
    for name, make in PAGES.items():
        file, text = folder / f"{name}.md", make()
        if not file.is_file() or file.read_text(encoding="utf-8") != text:
            file.write_text(text, encoding="utf-8")
