"""Autotune: a sweep's configs over two parameters, the others as selectors."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from html import escape
from typing import Any

import pandas as pd
from tilescope.models import sweeps

from tilescope_dashboard.components import layout
from tilescope_dashboard.components.charts import chart
from tilescope_dashboard.components.copy_button import CopyButton
from tilescope_dashboard.components.tables import table
from tilescope_dashboard.data import kernel_cases, recordings, run_cache
from tilescope_dashboard.figures.autotune import autotune
from tilescope_dashboard.session.jobs import JobFollower, JobState, shared
from tilescope_dashboard.session.state import State
from tilescope_dashboard.topics import autotune as topic
from tilescope_dashboard.views.base import View
from tilescope_dashboard.views.config_choices import ConfigChoices
from tilescope_dashboard.views.form.fields import EVERY_CONFIG


class Autotune(View):
    """A heatmap of one sweep and the table of its configs."""

    name_in_address, title, question = "autotune", "Autotune", recordings.SWEEP

    def build(self) -> list[Any]:
        self._choices, self.chart = ConfigChoices(self._draw, self._pick), chart()
        self._place, self._copy = layout.column(), CopyButton()
        self._of: tuple[Any, ...] = ()
        self._ranked = pd.DataFrame()
        self._follower = JobFollower(shared().watch, self._say)
        self.state.param.watch(self._say, ["catalog", "may_launch"])
        return [self._choices, self._copy, self.chart, self._place]

    def otherwise(self) -> str:
        return otherwise(self.state, shared().jobs)

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
        self.body.visible = self._swept
        if self._swept:
            self._draw()
        else:
            self.say(topic.ABOUT)

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
        self._swept = bool(names) and self._choices.colouring is not None
        self.table = table(topic.columns(self._cells, names))
        self.table.picked = lambda _: self._offer()
        self._place.objects = [self.saved(self.table, "configs")]

    def _pick(self) -> None:
        """Take the sweep that a user chose, and its case for all views."""
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
        said = topic.sentence(cells, shown, label, unit, won)
        gone = self._no_answer() == topic.GONE.format(self.state.kernel)
        title = said.title + ", but the code has changed since" if gone else said.title
        self.say(said._replace(title=title, text=self._instead() + said.text))
        self.chart.visible = self._place.visible = len(shown) > 0
        self.chart.object = autotune(shown, chosen.across, chosen.down, unit, self.look)
        self._ranked = topic.listed(cells)
        self.table.fill(self._ranked)
        self._offer()

    def _instead(self) -> str:
        """Remarks that the page's case was not swept and another sweep is shown, and why no config is offered; empty otherwise."""
        asked = self.state.standing and kernel_cases.case_name(self.state.standing[:3])
        swept = set(sweeps.names(self._cells))
        said = f"{asked} was not swept; this is {self._choices.sweep}. " if asked and asked not in swept else ""
        return said + self._no_answer()

    def _no_answer(self) -> str:
        """The reason why the sweep's configs are no answer for what the case launches today; empty where they are."""
        of = kernel_cases.named(self._choices.sweep)
        if not of or not self.loaded:
            return ""
        if run_cache.has_changed(self.loaded, self.state.kernel, of):
            return topic.GONE.format(self.state.kernel)
        rows = self.loaded.table[self.loaded.table["kernel"] == self.state.kernel]
        swept = kernel_cases.functions(rows, of, swept=True)
        # The page's run is at least as new.
        today = kernel_cases.functions(self.state.table, of) or kernel_cases.functions(rows, of)
        apart = swept and today and {*swept}.isdisjoint(today)
        return topic.OTHER.format(", ".join(swept), ", ".join(today)) if apart else ""

    def _offer(self) -> None:
        """The config that the button copies: the chosen row's, else the best; none where that is no answer."""
        chosen = self.table.chosen
        row = sweeps.best(self._ranked) if chosen is None else self._ranked.iloc[chosen]
        offered = None if self._no_answer() else row
        code = sweeps.as_code(offered["config"], str(offered["time_source"])) if offered is not None else ""
        self._copy.offer("Copy best config" if chosen is None else "Copy chosen config", code)


def otherwise(state: State, jobs: Iterable[JobState]) -> str:
    """How to get a sweep of the chosen kernel, or that one is under way, as HTML."""
    name = escape(state.kernel or "a kernel")
    if sweeping(jobs, state.kernel):
        return f"<p>Those of {name} are being profiled: the progress stands above the views.</p>"
    implementations: Mapping[str, Mapping[str, Any]] = state.declared.get("implementations", {})
    if implementations and not any(known.get("configs") for known in implementations.values()):
        return f"<p>{name} declares no configs.</p>"
    by_form = f"press Profile and tick '{EVERY_CONFIG}', or " if state.may_launch else ""
    return f"<p>No run has configs of {name}: {by_form}run <code>{escape(state.command('tune'))}</code>.</p>"


def sweeping(jobs: Iterable[JobState], kernel: str) -> JobState | None:
    """The running or waiting job that sweeps the kernel's configs; None without one."""
    return next((job for job in jobs if job.active and kernel in job.swept), None)
