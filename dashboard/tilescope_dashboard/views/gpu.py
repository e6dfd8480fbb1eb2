"""GPU: live readings of this machine's GPUs, and what holds their clocks down."""

from __future__ import annotations

from typing import Any

from tilescope_dashboard.components import cards, html_text
from tilescope_dashboard.components.charts import chart, side_by_side
from tilescope_dashboard.components.device_card import described
from tilescope_dashboard.components.tables import renew, table
from tilescope_dashboard.figures.gpu import FIGURES, readings
from tilescope_dashboard.session.telemetry import TelemetryStream, sampler
from tilescope_dashboard.topics import gpu as topic
from tilescope_dashboard.views.base import View


class GpuView(View):
    """Small figures that stream, and a table of the newest readings. It samples only while it is looked at."""

    name_in_address, title, live = "gpu", "GPU", True

    def build(self) -> list[Any]:
        self._stream = TelemetryStream(sampler(), self._tell)
        self._table, self._device = table(topic.COLUMNS), cards.pane()
        self._charts = {name: chart() for name in FIGURES}
        self._grid = side_by_side(self._charts.values(), 300)
        self._rows = self.saved(self._table, origin=lambda: [gpu.name for gpu in self._stream.sampler.gpus])
        self.state.param.watch(self._follow, "view")
        return [self._rows, self._grid, self._device]

    def _follow(self, event: Any) -> None:
        if event.new != self.name_in_address:
            self._stream.stop()
            # What was missed meanwhile is drawn anew when someone comes back.
            self.fresh = False

    def update(self) -> None:
        self._stream.start()
        sources, look = self._stream.sources(self._stream.sampler.gpus), self.state.look_of(*self._names())
        for name, place in self._charts.items():
            place.object = readings(name, sources, look) if sources else None
        self._grid.visible = self._rows.visible = bool(sources)
        self._device.object = described(self.state.device)
        self._tell()

    def _names(self) -> list[str]:
        return list(dict.fromkeys(gpu.name for gpu in self._stream.sampler.gpus))

    def _tell(self) -> None:
        """The newest readings in words and in the table."""
        error = self._stream.sampler.error
        if error:
            said = html_text.notice("info", "No readings of a GPU here:", f"{error}.")
            self._head.object = html_text.heading(*topic.ABOUT) + said
            return
        known = [(gpu, sample) for gpu in self._stream.sampler.gpus if (sample := self._stream.last(gpu))]
        self._head.object = html_text.heading(*topic.sentence(known))
        if known:
            renew(self._table, topic.listed(known))
