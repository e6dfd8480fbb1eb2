"""The activity of the chip over the time of a case's longest launch."""

from __future__ import annotations

from tilescope.runs.store import LoadedRun
from tilescope.table.case import Case

from tilescope_dashboard.components import html_text, layout
from tilescope_dashboard.components.charts import chart
from tilescope_dashboard.data import run_cache
from tilescope_dashboard.figures.activity import activity
from tilescope_dashboard.figures.style import Theme
from tilescope_dashboard.topics import activity as topic


class ActivityStrip(layout.Part):
    """Hidden where the run has no samples of the case."""

    def __init__(self) -> None:
        super().__init__()
        self.text, self.chart = html_text.pane(), chart()
        self.layout = layout.column(self.text, self.chart, visible=False)

    def show(self, loaded: LoadedRun, case: Case, look: Theme) -> None:
        """Draw the samples of this case."""
        samples = run_cache.kept(loaded, ("activity", case), lambda: topic.of_case(loaded, case))
        self.layout.visible = len(samples) > 0
        if len(samples):
            said = topic.sentence(samples)
            self.text.object = html_text.subheading(said.title, said.text)
            self.chart.object = activity(samples, look)
