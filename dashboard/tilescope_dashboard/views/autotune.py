"""Autotune: a sweep's configs over two parameters, the others as selectors."""

from __future__ import annotations

from typing import Any

import pandas as pd
import panel as pn
from tilescope.models import sweeps
from tilescope.runs.store import LoadedRun

from tilescope_dashboard.components import html_text
from tilescope_dashboard.components.charts import chart
from tilescope_dashboard.components.copy_button import CopyButton
from tilescope_dashboard.components.tables import fill, table
from tilescope_dashboard.data import kernel_cases, recordings
from tilescope_dashboard.figures.autotune import autotune
from tilescope_dashboard.session.jobs import shared
from tilescope_dashboard.topics import autotune as topic
from tilescope_dashboard.views.base import View
from tilescope_dashboard.views.config_choices import ConfigChoices
from tilescope_dashboard.views.missing_sweep import MissingSweep


class Autotune(View):
    """A heatmap of one sweep and the table of its configs: of the open run, else of the best recording that has one."""

    name_in_address, title = "autotune", "Autotune"

    def build(self) -> list[Any]:
        self._head, self._missing = html_text.pane(), MissingSweep(self.state, shared())
        self._whose = html_text.pane()
        self._choices, self._chart = ConfigChoices(self._draw, self._pick), chart()
        self._table = pn.Column(sizing_mode="stretch_width", margin=0)
        self._copy = CopyButton(label="Copy best config")
        self._body = pn.Column(
            self._whose, self._choices, self._copy, self._chart, self._table, sizing_mode="stretch_width", margin=0
        )
        self._of: tuple[Any, ...] = ()
        self._ranked = pd.DataFrame()
        self._origin: tuple[str, ...] = ()
        self.state.param.watch(self._changed, "runs")
        return [self._head, self._missing, self._body]

    def update(self) -> None:
        state = self.state
        # In other colours the choices stay as they are.
        if self._of != (state.loaded, state.kernel, state.runs):
            self._of = state.loaded, state.kernel, list(state.runs)
            self._fill(state.loaded)
            own = next((run for run in state.runs if run.id == state.run), None)
            best = None
            if not self._body.visible:
                best = recordings.best(state.runs, state.kernel, "sweep", state.device.name if state.device else "")
            if best:
                self._fill(best.loaded)
            self._whose.object = html_text.whose(best.origin if best else recordings.origin(own) if own else "")
        if self.elsewhere() and self.state.chosen:
            self._choices.go(kernel_cases.case_name(self.state.chosen[:3]))
        self._missing.show(missing=not self._body.visible)
        if self._body.visible:
            self._draw()
        else:
            self._head.object = html_text.heading(*topic.ABOUT)

    def _fill(self, loaded: LoadedRun | None) -> None:
        """Offer the sweeps of that run."""
        kernel, table_of = self.state.kernel, self.state.table.head(0)
        failures, target, self._origin = [], "", self.state.origin
        if loaded:
            table_of = loaded.table[loaded.table["kernel"] == kernel]
            failures = [failure for failure in loaded.run.failures if failure.concerns(kernel)]
            target, self._origin = loaded.run.device.target, (kernel, loaded.run.id, loaded.run.device.name)
        self._cells = sweeps.configs(table_of, failures, target)
        self._defaults = sweeps.defaults(table_of)
        names = self._choices.fill(self._cells)
        self._body.visible = bool(names) and self._choices.colouring is not None
        self._rows = table(topic.columns(self._cells, names))
        self._rows.param.watch(lambda _: self._offer(), "selection")
        self._table.objects = [self.saved(self._rows, "configs", lambda: self._origin)]

    def _pick(self) -> None:
        """The sweep that a person chose, and its case for all views."""
        of = kernel_cases.named(self._choices.sweep)
        parts = {name: value for name, value in of._asdict().items() if value} if of else {}
        self.choose(self._draw, **parts)

    def _draw(self) -> None:
        chosen = self._choices
        label, unit, less = sweeps.COLOURINGS[chosen.colouring]
        cells = sweeps.ranked(self._cells, chosen.sweep, chosen.held, chosen.colouring, less)
        shown = topic.grid(cells, chosen.across, chosen.down)
        own = self._defaults[sweeps.names(self._defaults) == chosen.sweep]
        won = sweeps.gain(cells, own) if chosen.colouring == "time" else None
        self._head.object = html_text.heading(*topic.sentence(cells, shown, label, unit, won))
        self._chart.visible = self._table.visible = len(shown) > 0
        self._chart.object = autotune(shown, chosen.across, chosen.down, unit, self.state.look_of(*self._origin))
        self._ranked = topic.listed(cells)
        fill(self._rows, self._ranked)
        self._offer()

    def _offer(self) -> None:
        """What the button copies: the config of the row that is chosen, else the best."""
        chosen = [self._ranked.iloc[place] for place in self._rows.selection if place < len(self._ranked)]
        row = next(iter(chosen), sweeps.best(self._ranked))
        code = sweeps.as_code(row["config"], str(row["time_source"])) if row is not None else ""
        self._copy.param.update(
            visible=bool(code), text=code, label="Copy chosen config" if chosen else "Copy best config"
        )
