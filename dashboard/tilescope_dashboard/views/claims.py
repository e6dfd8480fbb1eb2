"""Claims: what people are told of fused kernels, what the bytes allow, what the recordings measured."""

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
from tilescope_dashboard.data.run_cache import claimed, has_claimed
from tilescope_dashboard.figures.claims import claims
from tilescope_dashboard.views.base import View

_COLUMNS = {
    "kernel": ("kernel", "text"),
    "pass": ("pass", "text"),
    "workload": ("workload", "text"),
    "claim": ("people say", "text"),
    "claim_source": ("where", "text"),
    "verdict": ("by GPU time", "text"),
    "verdict_interval": ("by the interval", "text"),
    "bound": ("bytes allow", "times"),
    "over_eager": ("over eager", "times"),
    "low_eager": ("95 % from", "times"),
    "high_eager": ("to", "times"),
    "interval_eager": ("by the interval", "times"),
    "over_compile": ("over compile", "times"),
    "low_compile": ("95 % from", "times"),
    "high_compile": ("to", "times"),
    "interval_compile": ("by the interval", "times"),
    "over_library": ("over library", "times"),
    "low_library": ("95 % from", "times"),
    "high_library": ("to", "times"),
    "interval_library": ("by the interval", "times"),
    "library": ("library", "text"),
    "library_version": ("its version", "text"),
    "of_roof": ("of the roof", "ratio"),
    "roof": ("roof", "text"),
    "started": ("measured", "text"),
    "device": ("GPU", "text"),
}


_VERDICTS = {"holds": "hold", "more": "measured better", "less": "measured worse", "not measured": "not measured"}
_NOT_RECORDED = "not recorded"
_BOUND = "The bytes of the unfused operations over those of the fused kernel bound what moving less can win."
_NOTHING = "Nothing is recorded here: 'make record' on a machine with a GPU records the library."


class Claims(View):
    """One row a kernel, pass and recorded size; clicking one opens its run."""

    name_in_address, title = "claims", "Claims"

    def build(self) -> list[Any]:
        self._head, self._chart, self._table = html_text.pane(), chart(), table(_COLUMNS)
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
            self._head.object = html_text.heading("Claims", f"Reading {len(asked)} recordings …")
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
        judged = model.verdicts(self._rows)
        counts = judged.map(lambda words: _VERDICTS.get(words, "depend on the size")).value_counts()
        verdicts = ", ".join(f"{count} {html_text}" for html_text, count in counts.items())
        self._head.object = html_text.heading(
            f"Of {len(judged)} claims: {verdicts}" if verdicts else "Claims",
            f"{_measured_on(self._rows)} {_BOUND} {_clocks(self._rows)}" if len(self._rows) else _NOTHING,
        ) + (html_text.more("with these versions", where) if len(self._rows) else "")
        self._chart.object = claims(self._rows, self.state.look_of(*self._origin()))
        versions = self._rows["library_version"].mask(
            self._rows["library"].ne("") & self._rows["library_version"].eq(""), _NOT_RECORDED
        )
        fill(self._table, self._rows.assign(started=self._rows["started"] + earlier, library_version=versions))

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


def _clocks(rows: pd.DataFrame) -> str:
    """In how many comparisons the two clocks name another winner."""
    apart = sum(int(model.disagree(rows, other).sum()) for other in model.OVER)
    return (
        f"In {apart} comparisons GPU time and the interval, which the CPU's delays are part of, have another one ahead."
    )
