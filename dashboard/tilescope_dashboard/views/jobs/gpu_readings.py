"""Clock, power and temperature of the GPU while a job runs, and the reasons for a lower clock."""

from __future__ import annotations

from typing import Any

import panel as pn
import param
from tilescope.hardware import device

from tilescope_dashboard.components import html_text
from tilescope_dashboard.components.charts import chart, side_by_side
from tilescope_dashboard.data.telemetry import Gpu, held
from tilescope_dashboard.figures.gpu import readings
from tilescope_dashboard.session.state import State
from tilescope_dashboard.session.telemetry import TelemetryStream, sampler

_SHOWN = ("sm_clock", "power", "temperature")
_HEIGHT = 130


class GpuReadings(pn.viewable.Viewer):
    """A row of small figures of the GPU that jobs run on. Visible and sampling only while ``follow`` says so."""

    state = param.ClassSelector(class_=State)

    def __init__(self, state: State, **settings: Any) -> None:
        super().__init__(state=state, **settings)
        self._stream, self._on = TelemetryStream(sampler(), self._tell), False
        self._said, self._charts = html_text.pane(), {name: chart() for name in _SHOWN}
        row = side_by_side(self._charts.values(), 220, "4px")
        self._layout = pn.Column(self._said, row, sizing_mode="stretch_width", margin=0, visible=False)
        state.param.watch(lambda _: self._on and self._draw(), "theme")

    def follow(self, active: bool) -> None:
        """Show and sample while ``active``, if NVML gives readings."""
        if active == self._on:
            return
        self._on = active
        if active:
            self._stream.start()
            self._draw()
        else:
            self._stream.stop()
        self._layout.visible = active and not self._stream.sampler.error

    def _used(self) -> list[Gpu]:
        """The GPU that jobs run on; all GPUs if that is unknown."""
        gpus, uuid = self._stream.sampler.gpus, device.lock_name()
        return [gpu for gpu in gpus if gpu.uuid == uuid] or gpus

    def _draw(self) -> None:
        self._gpus = [] if self._stream.sampler.error else self._used()
        sources = self._stream.sources(self._gpus)
        for name, place in self._charts.items():
            place.object = readings(name, sources, self.state.look, _HEIGHT) if sources else None
        self._tell()

    def _tell(self) -> None:
        lasts = [(gpu, self._stream.last(gpu)) for gpu in self._gpus]
        said = "; ".join(f"{gpu.label}: clocks {_why(sample.reasons)}" for gpu, sample in lasts if sample)
        self._said.object = f'<p class="small">{html_text.plain(said)}</p>'

    def __panel__(self) -> pn.viewable.Viewable:
        return self._layout


def _why(reasons: int | None) -> str:
    return {None: "not told", 0: "not held"}.get(reasons) or f"held by {held(reasons)}"
