"""Live GPU readings in a session: the process's samples, streamed into the figures' data sources."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import panel as pn
from bokeh.models import ColumnDataSource

from tilescope_dashboard.data.telemetry import KEPT, Gpu, Sample, Sampler
from tilescope_dashboard.figures.gpu import columns

#: Milliseconds between two ticks.
_PERIOD = 1000


def sampler() -> Sampler:
    """The process's sampler."""
    return pn.state.as_cached("tilescope-telemetry", Sampler)


class TelemetryStream:
    """Streams samples while it is on. ``heard`` is called after each tick with new samples.

    Uses the document's periodic callback, as Panel's mark every page busy.
    """

    def __init__(self, sampler: Sampler, heard: Callable[[], None]) -> None:
        self.sampler, self._heard, self._doc = sampler, heard, pn.state.curdoc
        self._ticking: Any = None
        self._unwatch: Callable[[], None] | None = None
        self._sources: dict[int, ColumnDataSource] = {}
        if self._doc is not None:
            pn.state.on_session_destroyed(lambda _: self._leave())

    @property
    def on(self) -> bool:
        """Whether it streams."""
        return self._unwatch is not None

    def start(self) -> None:
        """Begin to stream, unless it does."""
        if self._unwatch is None:
            self._unwatch = self.sampler.watch()
            if self._doc is not None and not self.sampler.error:
                self._ticking = self._doc.add_periodic_callback(self.tick, _PERIOD)

    def stop(self) -> None:
        """Stop streaming."""
        if self._ticking is not None:
            self._doc.remove_periodic_callback(self._ticking)
            self._ticking = None
        self._leave()

    def _leave(self) -> None:
        if self._unwatch is not None:
            self._unwatch()
            self._unwatch = None

    def sources(self, gpus: Sequence[Gpu]) -> dict[str, ColumnDataSource]:
        """New data sources by GPU label, filled with the samples so far. Earlier ones are no longer updated."""
        self._sources = {gpu.index: ColumnDataSource(columns(self.sampler.samples(gpu.index), gpu)) for gpu in gpus}
        return {gpu.label: self._sources[gpu.index] for gpu in gpus}

    def last(self, gpu: Gpu) -> Sample | None:
        """The newest sample of a GPU."""
        found = self.sampler.samples(gpu.index)
        return found[-1] if found else None

    def tick(self) -> None:
        """Stream new samples."""
        fresh = False
        for gpu in self.sampler.gpus:
            source = self._sources.get(gpu.index)
            if source is None:
                continue
            known = source.data["time"]
            new = self.sampler.samples(gpu.index, known[-1] / 1000 if len(known) else 0.0)
            if new:
                source.stream(columns(new, gpu), rollover=KEPT)
                fresh = True
        if fresh or self.sampler.error:
            self._heard()
