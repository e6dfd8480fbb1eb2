"""Autotune: a sweep's configs over two parameters, the others as selectors."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from html import escape
from typing import Any

import pandas as pd
import panel as pn
import panel_material_ui as pmui
from tilescope.models import sweeps

from tilescope_dashboard.components import layout
from tilescope_dashboard.components.charts import chart
from tilescope_dashboard.components.choice import Choice
from tilescope_dashboard.components.copy_button import CopyButton
from tilescope_dashboard.components.tables import table
from tilescope_dashboard.data import kernel_cases, recordings, run_cache
from tilescope_dashboard.figures.autotune import autotune
from tilescope_dashboard.session.jobs import Follower, JobState, shared
from tilescope_dashboard.session.state import State
from tilescope_dashboard.topics import autotune as topic
from tilescope_dashboard.views.base import View
from tilescope_dashboard.views.form.fields import EVERY_CONFIG

#: The choice of a parameter that is held at no value.
_BEST = "best of all"


class Autotune(View):
    """A heatmap of one sweep and the table of its configs.

    The parameters that are not drawn have a selector each; a button shows those on which the cost depends least.
    """

    name_in_address, title, question = "autotune", "Autotune", recordings.SWEEP
    collectors = ("race",)

    def build(self) -> list[Any]:
        self._sweep, self._colouring = Choice("sweep", 300, self._pick), Choice("colour by", 160, self._draw)
        self._across, self._down = Choice("across", 140, self._turn), Choice("down", 140, self._turn)
        wide: dict[str, Any] = {"sizing_mode": "stretch_width", "gap": "4px", "margin": (6, 0, 0, 0)}
        self._others, self._aside = pn.FlexBox(gap="4px", sizing_mode=None), pn.FlexBox(visible=False, **wide)
        look = [".MuiToggleButton-root { height: 36px; white-space: nowrap; }"]
        self._more = pmui.Toggle(label="", size="small", margin=(10, 10, 4, 10), visible=False, stylesheets=look)
        self._more.param.watch(self._unfold, "value")
        choices = layout.beside(self._sweep, self._colouring, self._across, self._down, self._others, self._more)
        self.chart, self._place, self._copy = chart(), layout.column(), CopyButton()
        self._of: tuple[Any, ...] = ()
        self._ranked = pd.DataFrame()
        self._follower = Follower(shared().watch, self._say)
        self.state.param.watch(self._say, ["catalog", "may_launch"])
        return [choices, self._aside, self._copy, self.chart, self._place]

    def otherwise(self) -> str:
        return otherwise(self.state, shared().jobs)

    def _say(self, *_: Any) -> None:
        if self.fresh and not self.shown:
            self.update()

    def update(self) -> None:
        # A change of theme keeps the choices.
        if self._of != (self.loaded, self.state.kernel):
            self._of = self.loaded, self.state.kernel
            self._fill()
        wanted = kernel_cases.case_name(self.state.chosen[:3]) if self.elsewhere() and self.state.chosen else ""
        if wanted in self._sweep.options:
            self._sweep.offer(self._sweep.options, wanted, anew=True)
        self.body.visible = self._swept
        if self._swept:
            self._draw()
        else:
            named = f"No configs of {self.state.kernel} were compared" if self.state.kernel else topic.ABOUT.title
            self.say_nothing(topic.ABOUT._replace(title=named))

    def _fill(self) -> None:
        """Offer the sweeps of the run that is shown."""
        kernel, table_of, loaded = self.state.kernel, self.state.table.head(0), self.loaded
        failures, target = [], ""
        if loaded:
            table_of = loaded.table[loaded.table["kernel"] == kernel]
            failures = loaded.run.failures_of(kernel)
            target = loaded.run.device.target
        self._cells = sweeps.configs(table_of, failures, target)
        self._defaults = sweeps.defaults(table_of)
        found, known = list(dict.fromkeys(sweeps.names(self._cells))), topic.colourings(self._cells)
        self._sweep.offer(found, next(iter(found), None))
        self._colouring.offer(known, topic.most_telling(self._cells, known.values()))
        names = topic.axes(self._cells, self._colouring.value)
        self._across.offer(names, next(iter(names), None))
        self._down.offer(names, next(iter(names[1:] or names), None))
        self._hold()
        self._swept = bool(names) and self._colouring.value is not None
        self.table = table(topic.columns(self._cells, names))
        self.table.picked = lambda _: self._offer()
        self._place.objects = [self.saved(self.table, "configs")]

    def _hold(self) -> None:
        """A selector for each varying parameter that is not an axis."""
        held = [n for n in sweeps.parameters(self._cells) if n not in (self._across.value, self._down.value)]
        column = self._colouring.value
        parts = topic.set_aside(self._cells, self._sweep.value, column, held) if column else (held, [])
        for place, names in zip((self._others, self._aside), parts, strict=True):
            place.objects = [self._selector(name) for name in names]
        count = len(self._aside.objects)
        self._more.param.update(label=f"{count} more parameters", visible=count > 0)
        self._unfold()

    def _selector(self, name: str) -> Choice:
        values = map(str, sorted(self._cells[name].dropna().unique()))
        return Choice(name, 140, self._draw, options=[_BEST, *values], value=_BEST)

    def _unfold(self, *_: Any) -> None:
        self._aside.visible = self._more.value and self._more.visible

    def _turn(self) -> None:
        """Draw over other parameters."""
        self._hold()
        self._draw()

    def _pick(self) -> None:
        """Take the sweep that a user chose, and its case for all views."""
        of = kernel_cases.named(self._sweep.value)
        parts = {name: value for name, value in of._asdict().items() if value} if of else {}
        self.choose(self._draw, **parts)

    def _draw(self) -> None:
        sweep, column, across, down = (
            choice.value for choice in (self._sweep, self._colouring, self._across, self._down)
        )
        held = {one.label: one.value for one in [*self._others, *self._aside] if one.value != _BEST}
        label, unit, less = sweeps.COLOURINGS[column]
        cells = sweeps.ranked(self._cells, sweep, held, column, less)
        shown = topic.grid(cells, across, down)
        own = self._defaults[sweeps.names(self._defaults) == sweep]
        won = sweeps.gain(cells, own) if column == "time" else None
        said = topic.sentence(cells, shown, label, unit, won)
        gone = self._no_answer() == topic.GONE.format(self.state.kernel)
        title = said.title + ", but the code has changed since" if gone else said.title
        self.say(said._replace(title=title, text=self._instead() + said.text))
        self.chart.visible = self._place.visible = len(shown) > 0
        self.chart.object = autotune(shown, across, down, unit, self.look)
        self._ranked = topic.listed(cells)
        self.table.fill(self._ranked)
        self._offer()

    def _instead(self) -> str:
        """Remarks that the page's case was not swept and another sweep is shown, and why no config is offered; empty otherwise."""
        asked = self.state.standing and kernel_cases.case_name(self.state.standing[:3])
        swept = set(sweeps.names(self._cells))
        said = f"{asked} was not swept; this is {self._sweep.value}. " if asked and asked not in swept else ""
        return said + self._no_answer()

    def _no_answer(self) -> str:
        """The reason why the sweep's configs are no answer for what the case launches today; empty where they are."""
        of = kernel_cases.named(self._sweep.value)
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
        return f"Those of {name} are being profiled: the progress stands above the views."
    implementations: Mapping[str, Mapping[str, Any]] = state.declared.get("implementations", {})
    if implementations and not any(known.get("configs") for known in implementations.values()):
        own = "In a file of yours <code>@tilescope.autotune(configs, key=[…])</code> declares and times them."
        return f"{name} declares no configs. {own}"
    by_form = f"press Profile and tick '{EVERY_CONFIG}', or " if state.may_launch else ""
    return f"There are no configs of {name}: {by_form}run <code>{escape(state.command('tune'))}</code>."


def sweeping(jobs: Iterable[JobState], kernel: str) -> JobState | None:
    """The running or waiting job that sweeps the kernel's configs; None without one."""
    return next((job for job in jobs if job.active and kernel in job.swept), None)
