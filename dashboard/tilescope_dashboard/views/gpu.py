"""GPU: the dialog that the bar opens: the run's GPU, others there are runs on, and live readings of this machine's."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tilescope_dashboard.components import cards, html_text, layout
from tilescope_dashboard.components.choice import Choice
from tilescope_dashboard.components.device_card import described
from tilescope_dashboard.components.panel_dialog import PanelDialog
from tilescope_dashboard.components.tables import downloads, table
from tilescope_dashboard.data.best_run import best_run
from tilescope_dashboard.data.exports import stem
from tilescope_dashboard.data.telemetry import Gpu, Sample
from tilescope_dashboard.figures.gpu import FIGURES
from tilescope_dashboard.session.state import GPU
from tilescope_dashboard.topics import gpu as topic
from tilescope_dashboard.views.jobs.readings import Readings


class GpuDialog(PanelDialog):
    """Built when first opened; samples only while open."""

    name_of_panel, title, size = GPU, "GPU", "md"

    @property
    def sampling(self) -> bool:
        """Whether it watches NVML."""
        return self.made and self.readings.on

    def follow(self) -> None:
        super().follow()
        if self.made:
            self.readings.follow(self.state.panel == GPU)

    def make(self) -> list[Any]:
        self.choice = Choice("recordings on", 220, self._choose, margin=(10, 8))
        self.head, self.device, self.table = html_text.pane(), cards.pane(), table(topic.COLUMNS)
        self.readings = Readings(self.state, FIGURES, 150, self._tell)
        links = downloads(
            self.table, lambda: stem("gpu", *dict.fromkeys(gpu.name for gpu in self.readings.sampler.gpus))
        )
        self.rows = layout.column(self.table, links, visible=False)
        return [self.choice, self.head, self.readings, self.rows, self.device]

    def fill(self) -> None:
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
