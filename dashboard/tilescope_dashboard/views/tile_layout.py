"""The layout of a tile that moves between registers and shared memory, of one launch."""

from __future__ import annotations

from collections.abc import Sequence

from tilescope.runs.listings import Transfer

from tilescope_dashboard.components import html_text, layout
from tilescope_dashboard.components.charts import chart
from tilescope_dashboard.components.choice import Choice
from tilescope_dashboard.figures.layout import layout as draw
from tilescope_dashboard.figures.style import Theme
from tilescope_dashboard.topics import layouts as topic


class TileLayout(layout.Part):
    """Hidden where the launch has no such transfer."""

    def __init__(self) -> None:
        super().__init__()
        self.text, self.chart, self.transfer = html_text.pane(), chart(), Choice("transfer", 320, self._draw)
        self.layout = layout.column(self.text, self.transfer, self.chart, visible=False)

    def show(self, transfers: Sequence[Transfer], look: Theme) -> None:
        """Offer these transfers, and draw the one with the most conflicts."""
        known = topic.options(transfers)
        self._look, self.layout.visible = look, bool(known)
        self.transfer.offer(known, next(iter(known.values()), None))
        if known:
            self._draw()

    def _draw(self) -> None:
        one = self.transfer.value
        said = topic.sentence(one)
        self.text.object = html_text.subheading(said.title, said.text)
        self.chart.object = draw(topic.elements(one), self._look)
