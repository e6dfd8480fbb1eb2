"""Overview: the chosen kernel's headline, every kernel's, every case of the run, and the runs there are."""

from __future__ import annotations

from collections.abc import Mapping
from html import escape
from typing import Any

import pandas as pd
import panel as pn
from tilescope import summary

from tilescope_dashboard import opened, words
from tilescope_dashboard.figures.overview import overview
from tilescope_dashboard.library import library
from tilescope_dashboard.tables import fill, table
from tilescope_dashboard.units import times, write
from tilescope_dashboard.views.base import View, chart, once_loaded

_HEADLINES = {
    "kernel": ("kernel", "text"),
    "impl": ("impl.", "text"),
    "pass": ("pass", "text"),
    "workload": ("workload", "text"),
    "gpu_time": ("GPU time", "second"),
    "floor_fraction": ("of the floor", "ratio"),
    "speedup_eager": ("over eager", "times"),
    "bytes_ratio": ("bytes", "times"),
    "registers": ("registers", "count"),
    "theoretical_occupancy": ("occupancy", "ratio"),
    "why": ("why", "text"),
}
_KERNELS = {
    "kernel": ("kernel", "text"),
    "workload": ("workload", "text"),
    "gpu_time": ("GPU time", "second"),
    "floor_fraction": ("of the floor", "ratio"),
    "speedup_eager": ("over eager", "times"),
    "speedup_compile": ("over compile", "times"),
    "bytes_ratio": ("bytes", "times"),
    "from_run": ("from", "text"),
    "why": ("why", "text"),
}
_RUNS = {
    "started": ("started (UTC)", "text"),
    "title": ("run", "text"),
    "device": ("GPU", "text"),
    "what": ("kind", "text"),
    "kernels": ("kernels", "text"),
    "sources": ("collectors", "text"),
    "cases": ("cases", "count"),
    "state": ("state", "text"),
}


class Overview(View):
    """Numbers first, then where they stand, then the tables behind them."""

    name_in_address, title = "overview", "Overview"

    def build(self) -> list[Any]:
        self._head, self._chart = words.pane(), chart()
        self._kernels, self._table = table(_KERNELS), table(_HEADLINES)
        self._runs = table(_RUNS)
        self._headlines = self._library = pd.DataFrame()
        self._kernels.param.watch(self._choose, "selection")
        self._table.param.watch(self._tell, "selection")
        self._runs.param.watch(self._open, "selection")
        self.state.param.watch(lambda _: self._list_runs(), "runs")
        below = pn.Column(sizing_mode="stretch_width", margin=0)
        # Off the screen at first: the page is there sooner without them.
        once_loaded(
            lambda: below.extend(
                [
                    self.saved(self._table, "cases"),
                    _text("Runs", "Click one to open it."),
                    self.saved(self._runs, "runs", tuple),
                ]
            )
        )
        return [
            self._head, _text("Kernels", "The largest forward case of each, from the run that says most of it. Click one to look at it."),
            self.saved(self._kernels, "kernels", tuple),
            _text("Every case of this run", "The dashed line is the floor: the algorithm's bytes or operations at the device's roofs. ∇ is the backward pass, +∇ both. Click a row to read it in full."),
            self._chart, below,
        ]  # fmt: skip

    def update(self) -> None:
        loaded = self.state.loaded
        headlines = self._headlines = pd.DataFrame() if loaded is None else opened.headlines(loaded)
        self._head.object = headline(headlines, self.state.kernel, str(self.state.facts.get("summary", "")))
        self._chart.object = overview(headlines, self.state.look, 22 if self.state.narrow else 34)
        fill(self._table, headlines)
        self._list_runs()

    def _list_runs(self) -> None:
        self._listed = list(self.state.runs)
        self._library = library(self._listed)
        fill(self._kernels, self._library)
        rows = [
            {
                "started": s.started[:16].replace("T", " ") or s.id,
                "title": s.title or s.id,
                "device": s.device,
                "what": "recorded" if s.recorded else "measured" if s.measured else "predicted",
                "kernels": ", ".join(s.kernels),
                "sources": ", ".join(s.sources),
                "cases": s.cases,
                "state": s.error
                or ("" if s.complete else "not complete ") + (f"{s.failures} failed" if s.failures else ""),
            }
            for s in self._listed
        ]
        fill(self._runs, pd.DataFrame(rows, columns=list(_RUNS)))

    def _tell(self, event: Any) -> None:
        """The chosen row's headline in full: its sentence is longer than a cell."""
        if event.new:
            row = self._headlines.iloc[event.new[0]].to_dict()
            self._head.object = words.heading(row["kernel"]) + case_headline(row)

    def _choose(self, event: Any) -> None:
        if event.new:
            row = self._library.iloc[event.new[0]]
            self.state.param.update(run=row["run"], kernel=row["kernel"])

    def _open(self, event: Any) -> None:
        if event.new and self._listed[event.new[0]].id != self.state.run:
            self.state.run = self._listed[event.new[0]].id


def _text(title: str, said: str) -> pn.pane.HTML:
    return words.pane(words.subheading(title, said))


def headline(headlines: pd.DataFrame, kernel: str, about: str) -> str:
    """The kernel's largest forward case: how fast, how near the floor, and why."""
    title = words.heading(kernel or "No kernel", about)
    case = summary.headline(headlines[headlines["kernel"] == kernel] if len(headlines) else headlines)
    if case is None:
        said = "No run says anything about it yet: profile it." if kernel else ""
        return title + (f"<p>{escape(said)}</p>" if said else "")
    return title + case_headline(case)


def case_headline(row: Mapping[str, Any]) -> str:
    """One case's numbers, and why they are what they are."""
    where = f"{row['impl']}, {row['workload']}, {row['pass']}"
    return f'{words.stats(_stats(row))}<p>{escape(row["why"])} <span class="quiet">({escape(where)})</span></p>'


def _stats(row: Mapping[str, Any]) -> list[tuple[str, str, str]]:
    spread = f"{write(row['gpu_time_low'], 'second')} – {write(row['gpu_time_high'], 'second')}, {row['time_source']}"
    found = [
        ("GPU time", write(row["gpu_time"], "second"), spread),
        ("of the floor's speed", write(row["floor_fraction"], "ratio"), f"floor {write(row['floor'], 'second')}"),
        ("over eager", times(row["speedup_eager"]), "GPU time"),
        ("over torch.compile", times(row["speedup_compile"]), "GPU time"),
        ("bytes over the algorithm's", times(row["bytes_ratio"]), row["bytes_source"]),
        ("registers", write(row["registers"], "count"), "per thread"),
        ("theoretical occupancy", write(row["theoretical_occupancy"], "ratio"), f"limited by {row['limiter']}"),
    ]
    if not row["measured"]:
        found.insert(0, ("floor", write(row["floor"], "second"), "predicted, not measured"))
    return [stat for stat in found if stat[1] != "–"][:6]
