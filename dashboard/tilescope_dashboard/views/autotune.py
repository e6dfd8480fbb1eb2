"""Autotune: a sweep's configs over two parameters, the others as selectors."""

from __future__ import annotations

from typing import Any

import pandas as pd
import panel as pn
from tilescope.models import sweeps

from tilescope_dashboard.components import html_text
from tilescope_dashboard.components.charts import chart
from tilescope_dashboard.components.copy_button import CopyButton
from tilescope_dashboard.components.tables import fill, table
from tilescope_dashboard.data import kernel_cases, recordings, run_cache
from tilescope_dashboard.figures.autotune import autotune
from tilescope_dashboard.session.job_follower import JobFollower
from tilescope_dashboard.session.jobs import shared
from tilescope_dashboard.topics import autotune as topic
from tilescope_dashboard.views import missing_sweep
from tilescope_dashboard.views.base import View
from tilescope_dashboard.views.config_choices import ConfigChoices


class Autotune(View):
    """A heatmap of one sweep and the table of its configs."""

    name_in_address, title, question = "autotune", "Autotune", recordings.SWEEP

    def build(self) -> list[Any]:
        self._choices, self._chart = ConfigChoices(self._draw, self._pick), chart()
        self._table = pn.Column(sizing_mode="stretch_width", margin=0)
        self._copy = CopyButton(label="Copy best config")
        self._body = pn.Column(
            self._choices, self._copy, self._chart, self._table, sizing_mode="stretch_width", margin=0
        )
        self._of: tuple[Any, ...] = ()
        self._ranked = pd.DataFrame()
        self._follower = JobFollower(shared(), self._say)
        self.state.param.watch(self._say, ["catalog", "may_launch"])
        return [self._body]

    def otherwise(self) -> str:
        return missing_sweep.otherwise(self.state, shared().jobs)

    def _say(self, *_: Any) -> None:
        if self.fresh and not self.shown:
            self.say_whose()

    def update(self) -> None:
        # A change of theme keeps the choices.
        if self._of != (self.loaded, self.state.kernel):
            self._of = self.loaded, self.state.kernel
            self._fill()
        if self.elsewhere() and self.state.chosen:
            self._choices.go(kernel_cases.case_name(self.state.chosen[:3]))
        if self._body.visible:
            self._draw()
        else:
            self._head.object = html_text.heading(*topic.ABOUT)

    def _fill(self) -> None:
        """Offer the sweeps of the run that is shown."""
        kernel, table_of, loaded = self.state.kernel, self.state.table.head(0), self.loaded
        failures, target = [], ""
        if loaded:
            table_of = loaded.table[loaded.table["kernel"] == kernel]
            failures = [failure for failure in loaded.run.failures if failure.concerns(kernel)]
            target = loaded.run.device.target
        self._cells = sweeps.configs(table_of, failures, target)
        self._defaults = sweeps.defaults(table_of)
        names = self._choices.fill(self._cells)
        self._body.visible = bool(names) and self._choices.colouring is not None
        self._rows = table(topic.columns(self._cells, names))
        self._rows.param.watch(lambda _: self._offer(), "selection")
        self._table.objects = [self.saved(self._rows, "configs")]

    def _pick(self) -> None:
        """Take the sweep that a person chose, and its case for all views."""
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
        title, text = topic.sentence(cells, shown, label, unit, won)
        self._head.object = html_text.heading(title, self._instead() + text)
        self._chart.visible = self._table.visible = len(shown) > 0
        self._chart.object = autotune(shown, chosen.across, chosen.down, unit, self.look)
        self._ranked = topic.listed(cells)
        fill(self._rows, self._ranked)
        self._offer()

    def _instead(self) -> str:
        """Remarks that the page's case was not swept and another sweep is shown, and that its code is gone; empty otherwise."""
        asked = self.state.standing and kernel_cases.case_name(self.state.standing[:3])
        swept = set(sweeps.names(self._cells))
        said = f"{asked} was not swept; this is {self._choices.sweep}. " if asked and asked not in swept else ""
        return said + (topic.GONE.format(self.state.kernel) if self._is_gone() else "")

    def _is_gone(self) -> bool:
        """Whether the code that the sweep launched has changed since, so that its configs are no answer for today's."""
        of = kernel_cases.named(self._choices.sweep)
        return bool(of and self.loaded and run_cache.has_changed(self.loaded, self.state.kernel, of))

    def _offer(self) -> None:
        """The config that the button copies: the chosen row's, else the best; none of code that is gone."""
        chosen = [self._ranked.iloc[place] for place in self._rows.selection if place < len(self._ranked)]
        row = next(iter(chosen), sweeps.best(self._ranked))
        offered = None if self._is_gone() else row
        code = sweeps.as_code(offered["config"], str(offered["time_source"])) if offered is not None else ""
        self._copy.param.update(
            visible=bool(code), text=code, label="Copy chosen config" if chosen else "Copy best config"
        )
