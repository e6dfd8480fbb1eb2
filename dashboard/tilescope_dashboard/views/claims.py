"""Claims: what is published of fused kernels, the traffic ratio, and what the recordings measured."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pandas as pd
import panel_material_ui as pmui
from tilescope.models import claims as model
from tilescope.models.baseline import declarations

from tilescope_dashboard.components import html_text, layout
from tilescope_dashboard.components.charts import chart
from tilescope_dashboard.components.choice import standings
from tilescope_dashboard.components.tables import link_table
from tilescope_dashboard.data.kernel_cases import case_name
from tilescope_dashboard.data.run_cache import best_claims, claimed, has_claimed, written
from tilescope_dashboard.figures.claims import claims
from tilescope_dashboard.session.scheduling import AfterPaint
from tilescope_dashboard.session.state import CLAIMS
from tilescope_dashboard.topics import claims as topic
from tilescope_dashboard.views.base import View


class Claims(View):
    """A row for each kernel, pass and recorded size that passes the filters. A click opens the kernel's page."""

    name_in_address, title = CLAIMS, "Claims"
    of_other_runs = True

    def build(self) -> list[Any]:
        self.chart, self.table = chart(), link_table(topic.COLUMNS, self._open, ["kernel", "pass", "workload"])
        self._rows = self._shown = pd.DataFrame(columns=list(model.COLUMNS)).astype(model.COLUMNS)
        self._text = pmui.TextInput(label="kernel or family contains", size="small", width=220)
        self._standing, self._count = standings(), html_text.pane(styles={"flex": "1 1 320px"})
        redraw = AfterPaint(self._draw)  # once for several letters typed quickly
        self._text.param.watch(lambda _: redraw.due(), "value_input")
        self._standing.param.watch(lambda _: redraw.due(), "value")
        self.state.param.watch(self._learn, "catalog")
        self._found = layout.column(self.chart, self.saved(self.table, origin=self._origin))
        return [layout.beside(self._text, self._standing, self._count), self._found]

    def update(self) -> None:
        asked = [s.path for s in reversed(self.state.runs) if s.recorded and not s.error]
        if not all(map(has_claimed, asked)):
            self.say_nothing(topic.reading(len(asked)))
        self.read_claims(asked, self._show)

    def _show(self, asked: Sequence[Path]) -> None:
        self._rows = best_claims(written(asked))
        where = dict.fromkeys(line for folder in asked for line in claimed(folder)[1].splitlines())
        self.body.visible = True
        self.say(topic.sentence(self._rows), html_text.more("with these versions", where) if len(self._rows) else "")
        self._draw()

    def _draw(self) -> None:
        """Show the rows that pass the filters."""
        text, standing = self._text.value_input or "", self._standing.value or ""
        families = {entry["name"]: entry.get("family", "") for entry in self.state.catalog}
        declared = {entry["name"]: declarations(entry) for entry in self.state.catalog}
        self._shown = shown = topic.named(topic.chosen(self._rows, text, standing, families), declared)
        said = topic.count(shown, self._rows, text, standing) if len(self._rows) else ""
        self._count.object = html_text.status(said)
        self._found.visible = not shown.empty or self._rows.empty
        self.chart.object = claims(shown, self.state.look_of(*self._origin()))
        self.table.show(shown, topic.listed(shown))

    def _learn(self, _: Any) -> None:
        """Draw again once the catalog has the kernels' families and declarations."""
        if len(self._rows):
            self._draw()

    def _origin(self) -> list[str]:
        """The runs and GPUs of the rows."""
        return [*dict.fromkeys(self._shown["run"]), *dict.fromkeys(self._shown["device"])]

    def _open(self, row: pd.Series) -> None:
        case = case_name(("triton", row["pass"], row["workload"]))
        self.state.go_to(run=row["run"], kernel=row["kernel"], case=case)
