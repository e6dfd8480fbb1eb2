"""One run, as a report shows it. Pure: run -> content."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import pandas as pd
from tilescope.models import summary
from tilescope.runs import changes
from tilescope.runs.store import LoadedRun
from tilescope.table.units import text

from tilescope_dashboard.data import frames
from tilescope_dashboard.data.columns import Column
from tilescope_dashboard.data.units import ABSENT, moments, write
from tilescope_dashboard.figures.model import ledger as draw_ledger
from tilescope_dashboard.figures.overview import overview
from tilescope_dashboard.report.content import Part, RunPart, Table
from tilescope_dashboard.report.kernels import kernel
from tilescope_dashboard.topics import model as model_topic
from tilescope_dashboard.topics import overview as topic

#: Columns of the device's roofs.
ROOFS = (
    Column("name", "roof"), Column("value", "rate", "spread"), Column("origin", "origin"), Column("note", "how it is known"),
)  # fmt: skip
_CLOCKS = {"sm_clock": "SM clock", "dram_clock": "HBM clock"}


def run_part(loaded: LoadedRun, chosen: str = "") -> RunPart:
    """The run, or the kernel ``chosen`` of it. A kernel that it lacks leaves it without a case."""
    run = loaded.run
    names = [name for name in run.kernels if chosen in ("", name)]
    told = loaded.table["kernel"].isin(names)
    # The same frame where that is all of it: what models gather of one they gather once.
    table = loaded.table if told.all() else loaded.table[told]
    cases = topic.timed(summary.of_run(loaded, frames.default_configs(table)))
    # Runs of before 2026-11-25 do not say it of any case.
    shown = tuple(c for c in topic.IN_FULL if c.name != "chosen" or cases["chosen"].ne("").any())
    every = Part(
        title="Every case",
        text=topic.READING if len(cases) else topic.NOTHING,
        drawings=(partial(overview, cases),) if len(cases) else (),
        table=Table(cases, shown),
        wide=True,
    )
    of_step = () if chosen else tuple(model_parts(loaded))
    return RunPart(
        run=run,
        warnings=tuple(_warnings(loaded, names)),
        overview=of_step[0] if of_step else every,
        kernels=tuple(kernel(loaded, name, cases[cases["kernel"] == name]) for name in names),
        environment=tuple(_environment(loaded)),
        roofs=Table(
            pd.DataFrame(
                [[c.name, text(c.value, c.unit), c.origin, moments(c.provenance)] for c in run.device.ceilings],
                columns=[column.name for column in ROOFS],
            ),
            ROOFS,
        ),
        model=of_step[1:],
    )


def model_parts(loaded: LoadedRun) -> Iterator[Part]:
    """The step of a model: its time, what to do next, its modules and kernels. Nothing where the run is of no step."""
    model = model_topic.of_run(loaded)
    if model is None:
        return
    said = model_topic.sentence(model)
    drawn = partial(draw_ledger, model.ledger, predicted=not model.measured)
    yield Part(said.title, " ".join([said.text, *model.costs]), (drawn,))
    yield Part("What to do next", " ".join(model.trials), points=tuple(model.advice))
    paths = Column("path", "module"), *model_topic.MODULES[1:]
    yield Part("Modules", model_topic.OF_MODULES, table=Table(model.modules, paths))
    kept = [column for column in model_topic.KERNELS if model.kernels[column.name].ne("").any()]
    yield Part("Kernels", model_topic.OF_KERNELS, table=Table(model.kernels, tuple(kept)))


def _warnings(loaded: LoadedRun, kernels: Sequence[str]) -> Iterator[str]:
    """Reasons to doubt the numbers of these kernels."""
    run = loaded.run
    changed = [name for name in changes.changed_kernels(loaded) if name in kernels]
    if not run.device.measured:
        yield f"Predicted for {run.device.name}: this machine had no such GPU, so nothing was measured."
    if changed:
        yield f"Changed since this run: {', '.join(changed)}."
    if not run.complete:
        yield "This run is not complete: it was cancelled, or its worker died."
    yield from (one.note for one in run.skipped if one.limited)


def _environment(loaded: LoadedRun) -> Iterator[tuple[str, str]]:
    run, device = loaded.run, loaded.run.device
    yield "run", run.id
    yield "started", run.started
    # Another tool's file leaves unknown facts of its GPU at 0.
    count = f"{device.multiprocessors} SMs" if device.multiprocessors else ""
    known = ", ".join(filter(None, [device.target, count, "" if device.measured else "predicted"]))
    yield "device", f"{device.name} ({known})" if known else device.name
    sizes = {"": device.memory_bytes, "L2 ": device.l2_bytes}
    if any(sizes.values()):
        yield "memory", ", ".join(f"{what}{write(size, 'byte')}" for what, size in sizes.items() if size)
    for metric, label in _CLOCKS.items():
        rows = loaded.table[loaded.table["metric"] == metric]
        for source, values in rows.groupby("source")["value"]:
            low, middle, high = (write(v, "hertz") for v in values.quantile([0.05, 0.5, 0.95]))
            yield label, f"{middle} ({low} – {high}, 5 to 95 % of {len(values)} readings, {source})"
    yield "values from", ", ".join(dict.fromkeys(loaded.table["source"])) or ABSENT
    yield from run.versions.items()
    for name, value in run.settings.items():
        label = name.replace("_", " ")
        if isinstance(value, Mapping) and all(isinstance(part, Mapping) for part in value.values()):
            # A setting of each collector.
            yield from ((f"{label}, {whose}", _in_words(part)) for whose, part in value.items())
        else:
            yield label, _in_words(value)
    if run.git_revision:
        dirty = ", with changes that were not committed" if run.git_revision.endswith("+") else ""
        yield "revision", run.git_revision + dirty


def _in_words(value: Any) -> str:
    """A setting without brackets; what is empty of one that has parts is left out."""
    if isinstance(value, Mapping):
        # A name that is code, such as a question to PyTorch, stays as it is.
        parts = {n.replace("_", " ") if n.isidentifier() else n: _in_words(part) for n, part in value.items()}
        return "; ".join(f"{name}: {part}" for name, part in parts.items() if part)
    return ", ".join(map(_in_words, value)) if isinstance(value, list | tuple) else str(value)
