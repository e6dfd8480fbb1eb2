"""Reference pages that are made from the code: commands, metrics, findings, JSON schemas."""

from __future__ import annotations

import argparse
import ast
import inspect
import textwrap
from collections.abc import Callable, Iterable
from pathlib import Path

from tilescope import cli
from tilescope.models import advice, documents, json_documents, recorded_claims
from tilescope.runs import store
from tilescope.table import metrics
from tilescope_dashboard.report.content import Table
from tilescope_dashboard.topics import home

#: The compute capability whose counters are named.
_CHIP = "9.0"


def commands() -> str:
    """Every command with its arguments, from its parser."""
    pages = ["# Commands", "`tilescope COMMAND --help` prints the same."]
    parsers = dict(_parsers(cli.parser()))
    former = {name.split()[-1] for name in parsers if " " in name}
    for name, parser in parsers.items():
        if name in former:
            continue
        said = " ".join((parser.description or "").split()).rstrip(".")
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
    head = "A run's table has one row a value: its metric, its unit and its source. A metric that was not measured has no row."
    return f"# Metrics\n\n{head}\n\n{table(('metric', 'meaning', 'unit', 'counters of Nsight Compute on an H200'), rows)}\n"


def findings() -> str:
    """Every rule of advice: its condition and bound from its docstring, its cure from its code."""
    pages = [
        "# Findings",
        "A finding names its evidence, the most that the cure can win (its bound), and the cure. A rule whose values are absent "
        "says nothing. Findings are ranked by their bound. `tilescope advise` prints them.",
    ]
    for rule in advice.RULES:
        said = " ".join(inspect.cleandoc(rule.__doc__ or "").split())
        about, _, bound = said.partition("Bound: ")
        title = rule.__name__.replace("_", " ").capitalize()
        pages.append(f"## {title}\n\n{about.strip()}")
        pages += [f"**Bound:** {bound}"] if bound else []
        cures = list(dict.fromkeys(_cures(rule)))
        pages += ["**Cure:** " + " *Or:* ".join(cures)] if cures else []
    return "\n\n".join(pages) + "\n"


def _cures(rule: Callable[..., object]) -> Iterable[str]:
    """Texts that the rule offers as a remedy: what it assigns to ``remedy``, or gives ``finding`` as its third argument."""
    tree = ast.parse(textwrap.dedent(inspect.getsource(rule)))
    for node in ast.walk(tree):
        if isinstance(node, ast.Assign) and any(isinstance(to, ast.Name) and to.id == "remedy" for to in node.targets):
            yield from _texts(node.value)
        elif isinstance(node, ast.Call) and getattr(node.func, "attr", "") == "finding" and len(node.args) > 2:
            yield from _texts(node.args[2])


def _texts(node: ast.expr) -> Iterable[str]:
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        yield _escaped(node.value)
    elif isinstance(node, ast.JoinedStr):
        parts = (str(part.value) if isinstance(part, ast.Constant) else "…" for part in node.values)
        yield _escaped("".join(parts))
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
