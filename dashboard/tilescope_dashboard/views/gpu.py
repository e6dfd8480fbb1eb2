"""GPU: what the GPUs of this machine are doing now, and what holds their clocks down."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

import pandas as pd

from tilescope_dashboard.components import cards, html_text
from tilescope_dashboard.components.charts import chart, side_by_side
from tilescope_dashboard.components.tables import renew, table
from tilescope_dashboard.data.telemetry import Gpu, Sample, held, slowed
from tilescope_dashboard.data.units import write
from tilescope_dashboard.figures.gpu import FIGURES, readings
from tilescope_dashboard.session.telemetry import TelemetryFeed, label, sampler
from tilescope_dashboard.topics.device import described
from tilescope_dashboard.views.base import View

_COLUMNS = {
    "gpu": ("GPU", "text"),
    "utilization": ("busy", "ratio"),
    "memory_used": ("memory (B)", "byte"),
    "sm_clock": ("SM clock", "hertz"),
    "memory_clock": ("memory clock", "hertz"),
    "power": ("power", "watt"),
    "power_limit": ("limit", "watt"),
    "temperature": ("temp.", "celsius"),
    "pcie_received": ("PCIe in", "byte/second"),
    "pcie_sent": ("PCIe out", "byte/second"),
    "held": ("clocks held by", "text"),
}
_ABOUT = (
    "NVML's readings of this machine, once a second while someone looks. Dotted: the limit; ringed: a clock held down."
)


class GpuView(View):
    """Small figures that stream, and a table of the newest readings. It samples only while it is looked at."""

    name_in_address, title, live = "gpu", "GPU", True

    def build(self) -> list[Any]:
        self._feed = TelemetryFeed(sampler(), self._tell)
        self._head, self._table, self._device = html_text.pane(), table(_COLUMNS), cards.pane()
        self._charts = {name: chart() for name in FIGURES}
        self._grid = side_by_side(self._charts.values(), 300)
        self._rows = self.saved(self._table, origin=lambda: [gpu.name for gpu in self._feed.sampler.gpus])
        self.state.param.watch(self._follow, "view")
        return [self._head, self._rows, self._grid, self._device]

    def _follow(self, event: Any) -> None:
        if event.new != self.name_in_address:
            self._feed.stop()
            # What was missed meanwhile is drawn anew when someone comes back.
            self.fresh = False

    def update(self) -> None:
        self._feed.start()
        sources, look = self._feed.sources(self._feed.sampler.gpus), self.state.look_of(*self._names())
        for name, place in self._charts.items():
            place.object = readings(name, sources, look) if sources else None
        self._grid.visible = self._rows.visible = bool(sources)
        self._device.object = described(self.state.device)
        self._tell()

    def _names(self) -> list[str]:
        return list(dict.fromkeys(gpu.name for gpu in self._feed.sampler.gpus))

    def _tell(self) -> None:
        """The newest readings in words and in the table."""
        error = self._feed.sampler.error
        if error:
            said = html_text.notice("info", "No readings of a GPU here:", f"{error}.")
            self._head.object = html_text.heading("GPU", _ABOUT) + said
            return
        known = [(gpu, sample) for gpu in self._feed.sampler.gpus if (sample := self._feed.last(gpu))]
        self._head.object = html_text.heading(headline(known), _ABOUT)
        rows = [{**asdict(sample), "gpu": label(gpu), "held": held(sample.reasons)} for gpu, sample in known]
        if rows:
            renew(self._table, pd.DataFrame(rows, columns=list(_COLUMNS)))


def headline(known: list[tuple[Gpu, Sample]]) -> str:
    """The busiest GPU in one line."""
    if not known:
        return "Waiting for the first reading…"
    gpu, sample = max(known, key=lambda pair: pair[1].utilization or 0.0)
    said = [f"{label(gpu)}: {write(sample.utilization, 'ratio')} busy"]
    if sample.power is not None:
        limit = f" of {write(sample.power_limit, 'W')}" if sample.power_limit else ""
        said.append(f"{write(sample.power, 'W')}{limit}")
    if slowed(sample.reasons):
        said.append(f"clocks held by {held(sample.reasons)}")
    return ", ".join(said)
