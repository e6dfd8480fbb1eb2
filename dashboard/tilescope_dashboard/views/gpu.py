"""GPU: the dialog that the bar opens: the run's GPU, others there are runs on, and live readings of this machine's."""

from __future__ import annotations

import math
from collections.abc import Sequence
from html import escape
from typing import Any

from tilescope.hardware.ceilings import MEASURED
from tilescope.table.run import Ceiling, Device

from tilescope_dashboard.components import cards, html_text, layout
from tilescope_dashboard.components.choice import Choice
from tilescope_dashboard.components.panel_dialog import PanelDialog
from tilescope_dashboard.components.tables import downloads, table
from tilescope_dashboard.data.best_run import best_run
from tilescope_dashboard.data.exports import stem
from tilescope_dashboard.data.telemetry import Gpu, Sample
from tilescope_dashboard.data.units import ABSENT, moments, write
from tilescope_dashboard.figures.gpu import FIGURES
from tilescope_dashboard.session.state import GPU
from tilescope_dashboard.topics import gpu as topic
from tilescope_dashboard.views.jobs.readings import Readings

_ROOFS = {"hbm": "HBM", "hbm_read": "HBM, reading", "l2": "L2", "l1": "L1"}


def described(device: Device | None) -> str:
    """A heading, four sizes (0 is unknown) and a table of roofs with their sources, as HTML; nothing without a device."""
    if device is None:
        return ""
    if not device.measured:
        kind = "Predicted without this GPU, from published figures."
    elif any(roof.origin == MEASURED for roof in device.ceilings):
        kind = "All runs on this GPU and driver share these measured roofs."
    else:
        kind = "Its roofs were not measured: they are published figures."
    sizes = [
        ("architecture", device.target or ABSENT, ""),
        ("SMs", write(device.multiprocessors or math.nan, "count"), ""),
        ("L2", write(device.l2_bytes or math.nan, "byte"), ""),
        ("memory", write(device.memory_bytes or math.nan, "byte"), ""),
    ]
    names = dict.fromkeys(roof.name for roof in device.ceilings)
    pairs = [(name, device.ceiling(name, "measured"), device.ceiling(name, "datasheet")) for name in names]
    notes = list(dict.fromkeys(roof.provenance for _, *pair in pairs for roof in pair if roof and roof.provenance))
    rows = "".join(_row(name, measured, published, notes) for name, measured, published in pairs)
    head = "".join(f"<th>{title}</th>" for title in ("roof", "measured", "datasheet", "reached"))
    table = (
        f'<table class="answer" aria-label="Roofs"><thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table>'
        if rows
        else ""
    )
    origins = "".join(f"<li>{escape(moments(note))}</li>" for note in notes)
    listed = f'<ol class="notes quiet small">{origins}</ol>' if notes else ""
    return html_text.subheading(f"The open run's GPU: {device.name}", kind) + html_text.stats(sizes) + table + listed


def _row(name: str, measured: Ceiling | None, published: Ceiling | None, notes: Sequence[str]) -> str:
    reached = write(measured.value / published.value, "ratio") if measured and published and published.value else "–"
    cells = "".join(f"<td>{cell}</td>" for cell in (_value(measured, notes), _value(published, notes), reached))
    return f"<tr><th>{escape(_ROOFS.get(name, name))}</th>{cells}</tr>"


def _value(roof: Ceiling | None, notes: Sequence[str]) -> str:
    """The roof's height, and the index of the note on its source."""
    if roof is None:
        return "–"
    mark = f' <sup class="quiet">{notes.index(roof.provenance) + 1}</sup>' if roof.provenance else ""
    # On one line: a mark that wraps below its number is not understood.
    return f'<span class="value">{escape(write(roof.value, roof.unit))}{mark}</span>'


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
        self.head, self.device, self.table = html_text.pane(), html_text.pane("", cards.CSS), table(topic.COLUMNS)
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
