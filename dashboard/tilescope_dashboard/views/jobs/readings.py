"""Small figures of live GPU readings."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import panel as pn
from bokeh.models import ColumnDataSource
from tilescope.hardware import device

from tilescope_dashboard.components import html_text, layout
from tilescope_dashboard.components.charts import chart, side_by_side
from tilescope_dashboard.data.telemetry import KEPT, Gpu, Sample, Sampler, held
from tilescope_dashboard.figures.gpu import columns, readings
from tilescope_dashboard.session.jobs import Follower
from tilescope_dashboard.session.state import State


def sampler() -> Sampler:
    return pn.state.as_cached("tilescope-telemetry", Sampler)


class Readings(layout.Part):
    """A figure for each of ``names`` (``figures.gpu.FIGURES``), of the GPUs that ``used`` chooses. ``told`` is called with the newest
    readings when there are new ones. Visible and sampling only while followed, if NVML gives readings.
    """

    def __init__(
        self, state: State, names: Iterable[str], height: int, told: Callable[[list[tuple[Gpu, Sample]]], object],
        used: Callable[[Sequence[Gpu]], Sequence[Gpu]] = lambda gpus: gpus,
    ) -> None:  # fmt: skip
        super().__init__()
        self.state, self.sampler, self._height, self._told, self._used = state, sampler(), height, told, used
        self._follower = Follower(lambda _: self._leave, self.tick)
        self._unwatch: Callable[[], None] | None = None
        #: By GPU, what its figures draw.
        self._sources: dict[Gpu, ColumnDataSource] = {}
        self.charts = {name: chart(210) for name in names}
        self.layout = side_by_side(self.charts.values(), "4px")
        self.layout.visible = False
        state.param.watch(lambda _: self.on and self.draw(), "theme")

    @property
    def on(self) -> bool:
        return self._unwatch is not None

    def follow(self, wanted: bool) -> None:
        """Sample and show, or stop."""
        if wanted and not self.on:
            self._unwatch = self.sampler.watch()
            self._follower.each_second(not self.sampler.error)
            self.draw()
        elif not wanted:
            self._follower.each_second(False)
            self._leave()

    def _leave(self) -> None:
        if self._unwatch is not None:
            self._unwatch()
            self._unwatch = None

    def draw(self) -> None:
        """Draw new figures of the samples so far."""
        gpus = [] if self.sampler.error else self._used(self.sampler.gpus)
        self._sources = {gpu: ColumnDataSource(columns(self.sampler.samples(gpu.index), gpu)) for gpu in gpus}
        named = {gpu.label: source for gpu, source in self._sources.items()}
        look = self.state.look_of(*dict.fromkeys(gpu.name for gpu in gpus))
        for name, place in self.charts.items():
            place.object = readings(name, named, look, self._height) if named else None
        self.layout.visible = bool(named)
        self._tell()

    def tick(self) -> None:
        """Stream new samples into the figures."""
        fresh = False
        for gpu, source in self._sources.items():
            known: Any = source.data["time"]
            new = self.sampler.samples(gpu.index, known[-1] / 1000 if len(known) else 0.0)
            if new:
                source.stream(columns(new, gpu), rollover=KEPT)
                fresh = True
        if fresh or self.sampler.error:
            self._tell()

    def _tell(self) -> None:
        found = {gpu: self.sampler.samples(gpu.index) for gpu in self._sources}
        self._told([(gpu, samples[-1]) for gpu, samples in found.items() if samples])


class JobReadings(layout.Part):
    """Clock, power and temperature of the GPU while a job runs, and the reasons for a lower clock."""

    def __init__(self, state: State) -> None:
        super().__init__()
        self.said = html_text.pane()
        self.readings = Readings(state, ("sm_clock", "power", "temperature"), 130, self._tell, _of_jobs)
        self.layout = layout.column(self.said, self.readings, visible=False)

    def follow(self, active: bool) -> None:
        """Show and sample while a job is ``active``."""
        self.readings.follow(active)
        self.layout.visible = active and not self.readings.sampler.error

    def _tell(self, known: Sequence[tuple[Gpu, Sample]]) -> None:
        said = "; ".join(f"{gpu.label}: clocks {_why(sample.reasons)}" for gpu, sample in known)
        self.said.object = f'<p class="small">{html_text.plain(said)}</p>'


def _of_jobs(gpus: Sequence[Gpu]) -> Sequence[Gpu]:
    """The GPU that jobs run on; all GPUs if that is unknown."""
    uuid = device.lock_name()
    return [gpu for gpu in gpus if gpu.uuid == uuid] or gpus


def _why(reasons: int | None) -> str:
    return {None: "not told", 0: "not held"}.get(reasons) or f"held by {held(reasons)}"
