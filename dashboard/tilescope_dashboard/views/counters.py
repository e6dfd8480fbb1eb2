"""Memory and stalls: what one launch moved between the levels of memory, and what its warps waited for."""

from __future__ import annotations

from typing import Any

import panel as pn
from tilescope.table.case_table import CaseValues, gather

from tilescope_dashboard.components import html_text
from tilescope_dashboard.components.charts import chart, side_by_side
from tilescope_dashboard.components.tables import fill, table
from tilescope_dashboard.data import kernel_cases, recordings
from tilescope_dashboard.data.kernel_cases import KernelCase
from tilescope_dashboard.figures.memory import memory
from tilescope_dashboard.figures.stalls import stalls
from tilescope_dashboard.topics import counters as topic
from tilescope_dashboard.views.base import View
from tilescope_dashboard.views.choice import Choice


class Counters(View):
    """The memory chart and the warps' states of one launch, and a table of all its counters.

    Of the chosen case, or the one that is most like it among those whose launches were counted.
    """

    name_in_address, title, question = "counters", "Memory and stalls", recordings.COUNTERS

    def build(self) -> list[Any]:
        self._launch = Choice("launch", 330, self._draw)
        self._memory, self._stalls, self._table = chart(), chart(), table(topic.COLUMNS)
        if self.state.narrow:  # a phone has no room for a value beside a longer name
            self._table.widest["label"] = 240
        self._of: tuple[Any, ...] = ()
        self._body = pn.Column(
            self._launch.widget, side_by_side([self._memory, self._stalls], 330), self.saved(self._table, "counters"),
            sizing_mode="stretch_width", margin=0,
        )  # fmt: skip
        return [self._body]

    def update(self) -> None:
        found = self._counted()
        self._body.visible = bool(found)
        if not found:
            self._head.object = html_text.heading(*topic.NOTHING)
            return
        standing = self.state.standing
        known = (standing and kernel_cases.closest(found, standing)) or next(iter(found))
        self._case, self._values = known, found[known]
        launches, of = topic.launches(self._values), (self.loaded, self.state.kernel, known)
        self._launch.offer(launches, self._values.main_launch(self._values.counted_by), anew=self._of != of)
        self._launch.widget.visible = len(launches) > 1
        self._of = of
        self._draw()

    def _counted(self) -> dict[KernelCase, CaseValues]:
        """Cases of the recording that were counted."""
        cases = gather(self.usual) if self.shown else []
        return {
            KernelCase(*(case.key[name] for name in kernel_cases.OF_KERNEL)): case
            for case in cases
            if case.launches(case.counted_by)
        }

    def _draw(self) -> None:
        launch, look = self._launch.value, self.look
        moved, waited = topic.memory(self._values, launch), topic.stalls(self._values, launch)
        self._head.object = html_text.heading(*topic.sentence(self._case, moved, waited))
        self._memory.object, self._stalls.object = memory(moved, look), stalls(waited, look)
        fill(self._table, topic.listed(self._values, launch))
