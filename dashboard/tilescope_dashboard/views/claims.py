"""Claims: what people are told of fused kernels, what the bytes allow, what the recordings measured."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pandas as pd
import panel as pn
from tilescope import claims as model

from tilescope_dashboard import words
from tilescope_dashboard.charts import chart
from tilescope_dashboard.figures.claims import claims
from tilescope_dashboard.opened import claimed, has_claimed
from tilescope_dashboard.tables import fill, table
from tilescope_dashboard.views.base import View

_COLUMNS = {
    "kernel": ("kernel", "text"),
    "pass": ("pass", "text"),
    "workload": ("workload", "text"),
    "claim_low": ("people say, from", "times"),
    "claim_high": ("to", "times"),
    "bound": ("bytes allow", "times"),
    "over_eager": ("over eager", "times"),
    "over_compile": ("over compile", "times"),
    "over_library": ("over library", "times"),
    "library": ("library", "text"),
    "of_roof": ("of the roof", "ratio"),
    "roof": ("roof", "text"),
    "verdict": ("the claim", "text"),
    "started": ("measured", "text"),
    "device": ("GPU", "text"),
}


_VERDICTS = {"holds": "hold", "more": "measured better", "less": "measured worse", "not measured": "not measured"}
_BOUND = "The bytes of the unfused operations over those of the fused kernel bound what moving less can win."
_NOTHING = "Nothing is recorded here: 'make record' on a machine with a GPU records the library."


class Claims(View):
    """One row a kernel and pass; clicking one opens its run."""

    name_in_address, title = "claims", "Claims"

    def build(self) -> list[Any]:
        self._head, self._chart, self._table = words.pane(), chart(), table(_COLUMNS)
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
            self._head.object = words.heading("Claims", f"Reading {len(asked)} recordings …")
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
        earlier = self._rows["changed"].map({True: " (an earlier version)", False: ""})
        judged = self._rows.loc[self._rows["verdict"] != "", "verdict"].value_counts()
        verdicts = ", ".join(f"{count} {_VERDICTS[verdict]}" for verdict, count in judged.items())
        self._head.object = words.heading(
            f"Of {judged.sum()} claims: {verdicts}" if verdicts else "Claims",
            f"{_measured_on(self._rows)} {_BOUND}" if len(self._rows) else _NOTHING,
        ) + (words.more("with these versions", where) if len(self._rows) else "")
        self._chart.object = claims(self._rows, self.state.look_of(*self._origin()))
        fill(self._table, self._rows.assign(started=self._rows["started"] + earlier))

    def _origin(self) -> list[str]:
        """The runs and GPUs that the rows come from."""
        return [*dict.fromkeys(self._rows["run"]), *dict.fromkeys(self._rows["device"])]

    def _open(self, event: Any) -> None:
        if event.new:
            row = self._rows.iloc[event.new[0]]
            self.state.param.update(run=row["run"], kernel=row["kernel"])


def _measured_on(rows: pd.DataFrame) -> str:
    """The GPUs and the days."""
    gpus, days = (sorted(set(rows[name])) for name in ("device", "started"))
    return f"Measured on {', '.join(gpus)}, {' to '.join(dict.fromkeys((days[0], days[-1])))}."
