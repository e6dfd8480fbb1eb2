"""GPU: the dialog that the bar opens: the run's GPU, others there are runs on, and live readings of this machine's."""

from __future__ import annotations

from collections.abc import Sequence

import panel_material_ui as pmui
import param

from tilescope_dashboard.components import cards, html_text, layout
from tilescope_dashboard.components.choice import Choice
from tilescope_dashboard.components.device_card import described
from tilescope_dashboard.components.tables import downloads, table
from tilescope_dashboard.data.best_run import best_run
from tilescope_dashboard.data.exports import stem
from tilescope_dashboard.data.telemetry import Gpu, Sample
from tilescope_dashboard.figures.gpu import FIGURES
from tilescope_dashboard.session.scheduling import next_tick
from tilescope_dashboard.session.state import GPU, State
from tilescope_dashboard.topics import gpu as topic
from tilescope_dashboard.views.jobs.readings import Readings

_SX = {"& .MuiDialog-paper": {"margin": "12px", "width": "calc(100% - 24px)", "backgroundImage": "none"}}


class GpuDialog(layout.Part):
    """Open as the state says. Built when first opened; samples only while open. The focus comes back to the ``opener``."""

    def __init__(self, state: State, opener: pmui.Button) -> None:
        super().__init__()
        self.state, self._opener, self._made = state, opener, False
        self.layout = pmui.Dialog(
            title="GPU", title_variant="h6", width_option="md", show_close_button=True, close_on_click=True,
            sizing_mode="stretch_width", sx=_SX,
        )  # fmt: skip
        state.param.watch(lambda _: next_tick(self.follow), "panel")
        state.param.watch(lambda *_: self._made and self._fill(), ["runs", "loaded", "kernel"])
        self.layout.param.watch(self._closed, "open")
        if state.panel == GPU:
            self.follow()

    @property
    def sampling(self) -> bool:
        """Whether it watches NVML."""
        return self._made and self.readings.on

    def follow(self) -> None:
        """Show and sample while the state says so."""
        opens = self.state.panel == GPU
        if opens and not self._made:
            self._make()
        if self._made:
            self.readings.follow(opens)
        self.layout.open = opens

    def _closed(self, event: param.parameterized.Event) -> None:
        if not event.new:
            next_tick(self._opener.focus)
            if self.state.panel == GPU:
                next_tick(lambda: setattr(self.state, "panel", ""))

    def _make(self) -> None:
        self._made = True
        self.choice = Choice("recordings on", 220, self._choose, margin=(10, 8))
        self.head, self.device, self.table = html_text.pane(), cards.pane(), table(topic.COLUMNS)
        self.readings = Readings(self.state, FIGURES, 150, self._tell)
        links = downloads(
            self.table, lambda: stem("gpu", *dict.fromkeys(gpu.name for gpu in self.readings.sampler.gpus))
        )
        self.rows = layout.column(self.table, links, visible=False)
        self.layout.objects = [self.choice, self.head, self.readings, self.rows, self.device]
        self._fill()

    def _fill(self) -> None:
        """The run's GPU and the GPUs of the kernel's other runs."""
        state, own = self.state, self.state.device.name if self.state.device else ""
        others = (run.device for run in state.runs if not run.error and state.kernel in run.kernels)
        named = {name.removeprefix("NVIDIA "): name for name in dict.fromkeys([own, *others]) if name}
        self.choice.offer(named, own or None, anew=True)
        self.choice.visible = len(named) > 1
        self.device.object = described(state.device)

    def _choose(self) -> None:
        """Open the best run of the kernel on that GPU."""
        found = best_run([run for run in self.state.runs if run.device == self.choice.value], self.state.kernel)
        if found is not None:
            self.state.param.update(run=found.id, kernel=self.state.kernel)

    def _tell(self, known: Sequence[tuple[Gpu, Sample]]) -> None:
        """Show the newest readings in the headline and the table."""
        self.rows.visible = bool(known)
        if self.readings.sampler.error:
            self.head.object = html_text.notice("info", "No readings of a GPU here:", f"{self.readings.sampler.error}.")
            return
        self.head.object = html_text.subheading(*topic.sentence(known))
        if known:
            self.table.renew(topic.listed(known))
