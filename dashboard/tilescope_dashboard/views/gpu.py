"""GPU: what opens over the views from the bar: the run's GPU, others there are runs on, and live readings of this machine's."""

from __future__ import annotations

from typing import Any

import panel as pn
import panel_material_ui as pmui
import param

from tilescope_dashboard.components import cards, html_text
from tilescope_dashboard.components.charts import chart, side_by_side
from tilescope_dashboard.components.device_card import described
from tilescope_dashboard.components.tables import downloads, renew, table
from tilescope_dashboard.data.best_run import best_run
from tilescope_dashboard.data.exports import stem
from tilescope_dashboard.figures.gpu import FIGURES, readings
from tilescope_dashboard.session.scheduling import next_tick
from tilescope_dashboard.session.state import GPU, State
from tilescope_dashboard.session.telemetry import TelemetryStream, sampler
from tilescope_dashboard.topics import gpu as topic

_CSS = """
:host { position: absolute; z-index: 21; top: calc(100% - 2px); left: clamp(8px, calc(100% - 748px), 690px); width: min(740px, 100% - 16px);
  max-height: calc(100vh - 150px); overflow: auto; box-sizing: border-box; padding: 12px 8px; border-radius: 6px;
  background: var(--mui-palette-background-default, inherit); box-shadow: 0 8px 32px rgb(0 0 0 / .28);
  border: 1px solid color-mix(in srgb, currentColor 22%, transparent); }
:host(.closed) { display: none; }
"""
_HEIGHT = 150


class GpuPopover(pn.viewable.Viewer):
    """The popover, bound to the state both ways. Built when first opened; samples only while open."""

    state = param.ClassSelector(class_=State)

    def __init__(self, state: State, **settings: Any) -> None:
        super().__init__(state=state, **settings)
        self._filling, self._made = False, False
        self._place = pn.Column(
            margin=0, sizing_mode="stretch_width", css_classes=["gpu-popover", "closed"], stylesheets=[_CSS]
        )
        state.param.watch(lambda _: next_tick(self.follow), "panel")
        state.param.watch(lambda *_: self._made and self._fill(), ["runs", "loaded", "kernel"])
        state.param.watch(lambda _: self.open and self._draw(), "theme")
        if self.open:
            self.follow()

    @property
    def open(self) -> bool:
        """Whether it is to be seen."""
        return self.state.panel == GPU

    @property
    def sampling(self) -> bool:
        """Whether it watches NVML."""
        return self._made and self._stream.on

    def follow(self) -> None:
        """Show and sample while the state says so."""
        if not self.open:
            if self._made:
                self._stream.stop()
            self._place.param.update(objects=[], css_classes=["gpu-popover", "closed"])
            return
        if self._place.objects:
            return  # a repeated event: new figures would replace those that the browser is just given
        if not self._made:
            self._make()
        self._stream.start()
        self._draw()
        self._place.param.update(objects=[self._layout], css_classes=["gpu-popover"])

    def _make(self) -> None:
        self._made = True
        self._stream = TelemetryStream(sampler(), self._tell)
        self.choice = pmui.Select(label="recordings on", options={}, size="small", width=220, margin=(10, 8))
        self.choice.param.watch(lambda event: self._filling or self._choose(event.new), "value")
        close = pmui.Button(label="Close", variant="text", size="small", width=72, margin=(6, 4), align="center")
        close.on_click(lambda _: next_tick(self._close))
        self.head, self.device, self.table = html_text.pane(), cards.pane(), table(topic.COLUMNS)
        self.charts = {name: chart() for name in FIGURES}
        self.grid = side_by_side(self.charts.values(), 210, "4px")
        links = downloads(
            self.table, lambda: stem("gpu", *dict.fromkeys(gpu.name for gpu in self._stream.sampler.gpus))
        )
        self.rows = pn.Column(self.table, links, sizing_mode="stretch_width", margin=0)
        title = html_text.pane(html_text.heading("GPU"))
        top = pn.Row(title, self.choice, close, sizing_mode="stretch_width", margin=0)
        self._layout = pn.Column(
            top, self.head, self.grid, self.rows, self.device, sizing_mode="stretch_width", margin=0
        )
        self._fill()

    def _fill(self) -> None:
        """The run's GPU and the GPUs of the kernel's other runs."""
        state, own = self.state, self.state.device.name if self.state.device else ""
        others = (run.device for run in state.runs if not run.error and state.kernel in run.kernels)
        named = {name.removeprefix("NVIDIA "): name for name in dict.fromkeys([own, *others]) if name}
        self._filling = True
        try:
            self.choice.param.update(options=named, value=own or None, visible=len(named) > 1)
        finally:
            self._filling = False
        self.device.object = described(state.device)

    def _choose(self, name: str | None) -> None:
        """Open the best run of the kernel on that GPU."""
        found = best_run([run for run in self.state.runs if run.device == name], self.state.kernel)
        if found is not None:
            self.state.param.update(run=found.id, kernel=self.state.kernel)

    def _close(self) -> None:
        self.state.panel = ""

    def _draw(self) -> None:
        gpus = self._stream.sampler.gpus
        sources = self._stream.sources(gpus)
        look = self.state.look_of(*dict.fromkeys(gpu.name for gpu in gpus))
        for name, place in self.charts.items():
            place.object = readings(name, sources, look, _HEIGHT) if sources else None
        self.grid.visible = self.rows.visible = bool(sources)
        self._tell()

    def _tell(self) -> None:
        """Show the newest readings in the headline and the table."""
        error = self._stream.sampler.error
        if error:
            self.head.object = html_text.notice("info", "No readings of a GPU here:", f"{error}.")
            return
        known = [(gpu, sample) for gpu in self._stream.sampler.gpus if (sample := self._stream.last(gpu))]
        self.head.object = html_text.subheading(*topic.sentence(known))
        if known:
            renew(self.table, topic.listed(known))

    def __panel__(self) -> pn.viewable.Viewable:
        return self._place
