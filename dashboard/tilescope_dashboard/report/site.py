"""Static pages of runs: a table of the kernels, and a page a kernel. They ask no server."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

from tilescope.models import claims
from tilescope.models.baseline import Declared, declarations
from tilescope.runs import store
from tilescope.runs.store import LoadedRun, Summary
from tilescope.table.units import several

from tilescope_dashboard.data import best_run, measurements, run_cache
from tilescope_dashboard.data.columns import Column
from tilescope_dashboard.figures.history import history as draw_history
from tilescope_dashboard.figures.sizes import sizes as draw_sizes
from tilescope_dashboard.figures.style import theme
from tilescope_dashboard.report import html
from tilescope_dashboard.report.content import KernelPart, Part, RunPart, Table
from tilescope_dashboard.report.runs import model_parts, run_part
from tilescope_dashboard.topics import history, home, sizes

_VERDICT = Column("verdict", "verdict")
_INDEX, _SEARCH, _MODEL = "index.html", "site.js", "model-"
#: Most characters of a kernel's name in its page's.
_LONGEST = 100


def write(out: Path, runs: Sequence[Summary], kernels: Sequence[str], title: str, say: Callable[[str], None]) -> int:
    """Writes the pages of these kernels of the runs, newest first, into ``out``. Returns their size in bytes.

    Raises ValueError where that would replace a page of something else.
    """
    if out.exists() and not out.is_dir():
        raise ValueError(f"{out} is a file: name a folder for the pages")
    if (out / _INDEX).exists() and not (out / _SEARCH).exists():
        raise ValueError(f"{out} has an {_INDEX} of something else: name another folder")
    out.mkdir(parents=True, exist_ok=True)
    scripts = html.scripts_of_figures()
    pages = {name: f"{file_name(name, number)}.html" for number, name in enumerate(kernels)}
    written, parts = {**scripts, _SEARCH: html.script(_SEARCH)}, {}
    for number, name in enumerate(kernels, 1):
        say(f"[{number}/{len(kernels)}] {name}")
        part = _of_kernel(tuple(runs), name)
        parts[name] = part.kernels[0]
        written[pages[name]] = html.site_page("site_kernel.html", name, scripts, part=part, kernel=parts[name])
    models = []
    for number, summary in enumerate(run for run in runs if run.of_step):
        loaded, file = run_cache.open_cached(summary.path), f"{_MODEL}{file_name(summary.id, number)}.html"
        shown, name = tuple(model_parts(loaded)), summary.title or summary.id
        written[file] = html.site_page("site_model.html", name, scripts, parts=shown, run=loaded.run)
        models.append((file, name, shown[0].title))
    written[_INDEX] = _index(runs, pages, parts, models, title)
    return sum((out / name).write_bytes(text.encode()) for name, text in written.items())


def file_name(kernel: str, number: int) -> str:
    """The kernel's name as a file's: another tool's kernel may have any name. Only numbered names have ``~`` in them."""
    plain = "".join(letter if letter.isascii() and (letter.isalnum() or letter in "_-") else "-" for letter in kernel)
    # Some file systems take capitals for small letters.
    keeps = plain == kernel.lower() and kernel != "index" and not kernel.startswith(_MODEL) and len(plain) <= _LONGEST
    return plain if keeps else f"{plain[:_LONGEST]}~{number}"


def _of_kernel(runs: tuple[Summary, ...], name: str) -> RunPart:
    """The kernel's best run, with the sizes and the history that all runs give."""
    best = best_run.best_run(runs, name)
    assert best is not None  # noqa: S101 - one of them has it
    loaded = run_cache.open_cached(best.path)
    part = run_part(loaded, name)
    kernel = part.kernels[0]
    first, more = kernel.parts[:1], _over_runs(runs, loaded, name)
    return replace(part, kernels=(replace(kernel, parts=(*first, *more, *kernel.parts[1:])),))


def _over_runs(runs: tuple[Summary, ...], loaded: LoadedRun, name: str) -> Iterator[Part]:
    """Rates over sizes, a part a pass, and the times of the representative case over runs."""
    device, look = loaded.run.device, theme(False, declared=declarations(loaded.run.kernels.get(name)))
    every = measurements.of_kernel(runs, name, device.name)
    for direction in every["pass"].unique():
        rate = sizes.rate(every[every["pass"].eq(direction)])
        rows = sizes.sizes(every, direction, rate)
        if rows["size"].nunique() > 1:
            drawn = partial(draw_sizes, rows, rate, sizes.roof(rows, device, rate))
            shown = Table(rows, sizes.columns(rate))
            said = sizes.sentence(look.named(rows), rate).line
            yield Part(f"Sizes, {direction}", said, (drawn,), shown).named(look)
    case = run_cache.representative(loaded, name)
    rows = history.history(every, case)
    own = rows[rows["impl"].eq(case.impl)] if case else rows
    if own["run_id"].nunique() > 1:
        named = case and case._replace(impl=look.called(case.impl))
        said = history.sentence(name, look.named(rows), named).line
        yield Part("History", said, (partial(draw_history, own),), Table(rows, history.COLUMNS), wide=True).named(look)


def _index(
    runs: Sequence[Summary], pages: dict[str, str], parts: dict[str, KernelPart], models: Sequence[tuple[str, str, str]],
    title: str,
) -> str:  # fmt: skip
    measured = [summary.path for summary in reversed(runs) if summary.measured]
    known = run_cache.best_claims(run_cache.written(measured))
    families, declared = _declared(runs)
    rows = home.kernels(known, runs, families, declared=declared)
    rows = rows[rows["kernel"].isin(pages)].reset_index(drop=True)
    # Where nothing was measured against a roof, what the compiler and the interpreter say stands for it.
    said = () if rows["of_roof"].notna().any() else (_VERDICT,)
    rows = rows.assign(verdict=[parts[name].reached.title for name in rows["kernel"]])
    known_of = [column for column in home.COLUMNS if rows[column.name].replace("", None).notna().any()]
    days = sorted(summary.started[:10] for summary in runs)
    devices = ", ".join(dict.fromkeys(filter(None, (summary.device for summary in runs))))
    return html.site_page(
        "site_index.html", title, [_SEARCH] if pages else [], sentence=home.sentence(rows), stats=home.stats(rows, claims.verdicts(known)),
        table=Table(rows, (*known_of, *said)), models=models, pages=pages, abouts={name: part.about for name, part in parts.items()},
        about=f"From {several(len(runs), 'run')} on {devices}, {' to '.join(dict.fromkeys((days[0], days[-1])))}.",
    )  # fmt: skip


def _declared(runs: Sequence[Summary]) -> tuple[dict[str, str], Declared]:
    """The kernels by the folder of the library that declares them, others after them; and the declarations of implementations."""
    families, declared = dict[str, str](), dict[str, Mapping[str, str]]()
    for summary in reversed(runs):
        for name, facts in store.read_run(summary.path).kernels.items():
            file = str(facts.get("file", ""))
            families[name] = Path(file).parent.name.replace("_", " ") if file.startswith("tilescope_kernels/") else ""
            declared[name] = declarations(facts)
    return dict(sorted(families.items(), key=lambda one: (not one[1], one[1]))), declared
