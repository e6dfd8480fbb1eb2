"""Model: a step's ledger, its kernels by the time above their roof, its modules, and what to do next."""

from __future__ import annotations

from html import escape
from typing import Any

from tilescope_dashboard.components import html_text
from tilescope_dashboard.components.charts import chart
from tilescope_dashboard.components.tables import table
from tilescope_dashboard.data import run_cache
from tilescope_dashboard.figures.ledger import ledger
from tilescope_dashboard.topics import model as topic
from tilescope_dashboard.views.base import View


class Model(View):
    """The step that the open run is of."""

    name_in_address, title = "model", "Model"

    def build(self) -> list[Any]:
        self.chart, self.advice = chart(), html_text.pane()
        self.kernels, self.modules = (
            table(topic.KERNELS, pagination="remote"),
            table(topic.MODULES, pagination="remote"),
        )
        kernels = html_text.pane(html_text.subheading("Kernels", "The most time above the roof comes first."))
        modules = html_text.pane(
            html_text.subheading("Modules", "The backward pass of an operator counts to its module.")
        )
        found = self.saved(self.kernels, "kernels"), self.saved(self.modules, "modules")
        return [self.chart, self.advice, kernels, found[0], modules, found[1]]

    def update(self) -> None:
        loaded = self.loaded
        model = run_cache.kept(loaded, "model", lambda: topic.of_run(loaded)) if loaded else None
        if model is None:
            self.say_nothing(topic.sentence(None))
            return
        self.body.visible = True
        self.say(topic.sentence(model))
        self.chart.object = ledger(model.ledger, self.look)
        lines = "".join(f"<li>{escape(line)}</li>" for line in topic.advice(model))
        self.advice.object = f"<p>What to do next:</p><ul>{lines}</ul>"
        self.kernels.fill(model.kernels)
        self.modules.fill(model.modules)
