"""Model: where a step's time goes, its kernels by the time above their roof, and what to do next."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import NamedTuple

import pandas as pd
from tilescope.files.bounded_reading import printable
from tilescope.models import ledger, next_steps, step_tables, step_text
from tilescope.models.ledger import Ledger
from tilescope.runs import steps
from tilescope.runs.store import LoadedRun

from tilescope_dashboard.data.columns import Column
from tilescope_dashboard.data.units import write
from tilescope_dashboard.figures.model import SMALL
from tilescope_dashboard.topics.sentence import Sentence

#: Columns of the tables of kernels, with the whole name where there is room for it, and of modules.
KERNELS = (
    Column("function", "kernel"), Column("time", "time", "second"), Column("share", "of step", "ratio"),
    Column("above", "above roof", "second"), Column("roof", "roof"), Column("launches", "launches", "count"),
    Column("module", "module"), Column("pass", "pass"), Column("operator", "operator"), Column("site", "line"),
    Column("moved", "counted (B)", "byte"), Column("needed", "modelled (B)", "byte"),
)  # fmt: skip
FUNCTION = Column("kernel", "function")
MODULES = (
    Column("module", "module"), Column("time", "time", "second"), Column("share", "of step", "ratio"),
    Column("above", "above roof", "second"), Column("forward", "forward", "second"), Column("backward", "backward", "second"),
    Column("launches", "launches", "count"), Column("most", "most time in"),
)  # fmt: skip
#: What the tables show.
OF_MODULES = "The backward pass of an operator counts to its module. A star stands for each layer's number."
OF_KERNELS = "The most time above the roof comes first."
_NOTHING = (
    "This run is not of a model's step. Make one with 'tilescope model script.py', or open a trace of torch.profiler."
)

#: What a view of single kernels says of a run of a step.
APART = Sentence("This run is a model's step", "This view shows single kernels. Model shows the whole step.")


class Model(NamedTuple):
    """A step's ledger, tables and advice, a line each. ``found`` says what the step is, ``costs`` are its energy and what collectives
    slow down, ``trials`` what was tried. A step that is not ``measured`` is a prediction."""

    ledger: Ledger
    kernels: pd.DataFrame
    modules: pd.DataFrame
    advice: list[str]
    found: str
    tree: pd.DataFrame
    costs: list[str]
    trials: list[str]
    measured: bool
    script: str


def of_run(loaded: LoadedRun) -> Model | None:
    """The run's model; None where the run is of no step."""
    step = steps.read(loaded.folder)
    if step is None:
        return None
    found = ledger.of(step, loaded.run.device)
    modules = step_tables.tree(step, found, alike=True)
    indented = ["\u2003" * depth + name for depth, name in zip(modules["depth"], modules["module"], strict=True)]
    return Model(
        found,
        step_tables.kernels(step, found),
        # The optimizer is in neither pass.
        modules.assign(module=indented).replace({"forward": {0.0: math.nan}, "backward": {0.0: math.nan}}),
        step_text.advice(step, found, loaded.run.device) or [next_steps.already_good(found)],
        step.found or "The step of a trace",
        step_tables.tree(step, found),
        [
            *([step_text.energy(step)] if step.power else []),
            *step_text.communication(step, found, loaded.run.device),
        ],
        [*step_text.trials(step)],
        loaded.run.device.measured,
        printable(str(loaded.run.settings.get("script", ""))),
    )


def sentence(model: Model | None) -> Sentence:
    """The headline: the step's time, and the share at the roofs if most kernels have one; the text is the ledger in one line."""
    if model is None:
        return Sentence("Model", _NOTHING)
    found = model.ledger
    takes = "takes" if model.measured else "is predicted to take"
    title = f"A step {takes} {write(found.step, 'second')}"
    if found.floored:
        title += f", {write(found.parts['floor'] / found.step, 'ratio')} of it at the roofs"
    parts = f"{model.found[:1].upper()}{model.found[1:]}: {step_text.sentence(found)}."
    return Sentence(title, " ".join([parts, *_worst(model)]))


def _worst(model: Model) -> Iterator[str]:
    """The module that loses the most above the roofs; without roofs the one that takes the most time."""
    by, said = ("above", "loses the most") if model.ledger.floored else ("time", "takes the most")
    parts = {path.rpartition(".")[0] for path in model.modules["path"]}
    least = model.modules[~model.modules["path"].isin(parts)].sort_values(by, ascending=False, kind="stable")
    if len(least) > 1:
        above = " above the roofs" if model.ledger.floored else ""
        yield f"{least['path'].iloc[0]} {said}: {write(least[by].iloc[0], 'second')}{above}."


def of_kernels(model: Model) -> str:
    """What the table of kernels shows, and how a script's own kernels go on with their real inputs."""
    said = f"{OF_KERNELS} The figure leaves out those of less than {write(SMALL, 'ratio')} of the step."
    if not model.script or model.kernels["library"].ne("").all():
        return said
    return (
        f"{said} 'tilescope profile {model.script}' records the Triton kernels with their inputs, "
        f"and 'tilescope watch {model.script}' follows your edits."
    )
