"""Model: a step's ledger, its kernels by the time above their roof, its modules, and what to do next."""

from __future__ import annotations

from functools import partial
from html import escape
from typing import Any

from tilescope.hardware.roofs import all_roofs

from tilescope_dashboard.components import html_text
from tilescope_dashboard.components.charts import chart
from tilescope_dashboard.components.tables import table
from tilescope_dashboard.data import run_cache
from tilescope_dashboard.data.recordings import Recording
from tilescope_dashboard.figures.model import icicle, ledger, step_roofline
from tilescope_dashboard.session.scheduling import next_tick
from tilescope_dashboard.session.state import MODEL
from tilescope_dashboard.topics import model as topic
from tilescope_dashboard.views.base import View


class Model(View):
    """The step that the open run is of, else that of the newest run that has one."""

    name_in_address, title, of_other_runs = MODEL, "Model", True

    def build(self) -> list[Any]:
        self.chart, self.roofline, self.icicle, self.advice = chart(), chart(), chart(), html_text.pane()
        self.kernels = table((*topic.KERNELS, topic.FUNCTION), called="kernels", pagination="remote")
        self.modules = table(topic.MODULES, called="modules", pagination="remote")
        self.of_kernels = html_text.pane()
        modules = html_text.pane(
            html_text.subheading(
                "Modules",
                f"{topic.OF_MODULES} Click a module in the figure to zoom, and again to zoom out.",
            )
        )
        found = self.saved(self.kernels, "kernels"), self.saved(self.modules, "modules")
        return [self.chart, self.advice, self.of_kernels, self.roofline, found[0], modules, self.icicle, found[1]]

    def update(self) -> None:
        newest = None if self.state.of_step else next((run for run in self.state.runs if run.of_step), None)
        self.shown = Recording(newest, run_cache.open_cached(newest.path)) if newest else None
        self.origins = [self.shown.origin] if self.shown else []
        loaded = self.loaded
        model = run_cache.kept(loaded, "model", lambda: topic.of_run(loaded)) if loaded else None
        if model is None:
            self.say_nothing(topic.sentence(None))
            return
        self.say(topic.sentence(model))
        self.chart.object = ledger(model.ledger, self.look, predicted=not model.measured)
        lines = "".join(f"<li>{escape(line)}</li>" for line in model.advice)
        told = "".join(f"<p>{escape(line)}</p>" for line in [*model.costs, *model.trials])
        self.advice.object = html_text.subheading("What to do next") + f"<ol>{lines}</ol>{told}"
        self.of_kernels.object = html_text.subheading("Kernels", topic.of_kernels(model))
        self.roofline.object = step_roofline(
            model.kernels, all_roofs(self.loaded_run.run.device), self.look, predicted=not model.measured
        )
        drawn = self.roofline.object.select_one({"name": "points"})
        if drawn is not None:
            marks = drawn.data_source
            marks.selected.on_change("indices", lambda _, old, new: self._pick(marks, new))
        self.icicle.object = icicle(model.tree, self.look)
        self.kernels.hide([name for name in ("site",) if model.kernels[name].eq("").all()])
        self.kernels.fill(model.kernels)
        self.modules.fill(model.modules)

    def _pick(self, marks: Any, places: list[int]) -> None:
        """Choose the row of the mark that a user clicks."""
        if places:
            next_tick(partial(self.kernels.choose, int(marks.data["row"][places[0]])))
