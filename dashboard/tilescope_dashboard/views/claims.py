"""Claims: what is published of fused kernels, the traffic bound, and what the recordings measured."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pandas as pd
import panel as pn
from tilescope.models import claims as model

from tilescope_dashboard.components import html_text
from tilescope_dashboard.components.charts import chart
from tilescope_dashboard.components.tables import fill, table
from tilescope_dashboard.data.kernel_cases import case_name
from tilescope_dashboard.data.run_cache import claimed, has_claimed
from tilescope_dashboard.figures.claims import claims
from tilescope_dashboard.topics import claims as topic
from tilescope_dashboard.views.base import View


class Claims(View):
    """One row a kernel, pass and recorded size; clicking one opens its run."""

    name_in_address, title = "claims", "Claims"

    def build(self) -> list[Any]:
        self._head, self._chart, self._table = html_text.pane(), chart(), table(topic.COLUMNS)
        self._rows = pd.DataFrame(columns=list(model.COLUMNS))
        self._table.param.watch(self._open, "selection")
        self.state.param.watch(self._changed, "runs")
        shown = [self._chart, self.saved(self._table, origin=self._origin)]
        self._body = pn.Column(*shown, sizing_mode="stretch_width", margin=0)
        self._asked: list[Path] = []
        return [self._head, self._body]

    def update(self) -> None:
        self._asked = asked = [s.path for s in reversed(self.state.runs) if s.recorded and not s.error]
        if all(map(has_claimed, asked)):
            self._show(asked)
        else:
            self._head.object = html_text.heading(*topic.reading(len(asked)))
            self._body.visible = False
            self.gradually(self._read(asked))

    def _read(self, asked: Sequence[Path]) -> Iterator[None]:
        """Read one recording a step, then show them, unless others are asked for meanwhile."""
        for folder in asked:
            if asked is not self._asked:
                return
            claimed(folder)
            yield
        self._show(asked)

    def _show(self, asked: Sequence[Path]) -> None:
        said = [claimed(folder) for folder in asked]
        self._rows = model.best(row for rows, _ in said for row in rows)
        where = dict.fromkeys(line for _, lines in said for line in lines.splitlines())
        self._body.visible = True
        versions = html_text.more("with these versions", where) if len(self._rows) else ""
        self._head.object = html_text.heading(*topic.sentence(self._rows)) + versions
        self._chart.object = claims(self._rows, self.state.look_of(*self._origin()))
        fill(self._table, topic.listed(self._rows))

    def _origin(self) -> list[str]:
        """The runs and GPUs that the rows come from."""
        return [*dict.fromkeys(self._rows["run"]), *dict.fromkeys(self._rows["device"])]

    def _open(self, event: Any) -> None:
        if event.new:
            row = self._rows.iloc[event.new[0]]
            case = case_name(("triton", row["pass"], row["workload"]))
            self.state.param.update(run=row["run"], kernel=row["kernel"], case=case)
