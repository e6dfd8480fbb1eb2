"""Memory and stalls: what one launch moved between the levels of memory, and what its warps waited for."""

from __future__ import annotations

from typing import Any

from tilescope.table.case_table import CaseValues, gather

from tilescope_dashboard.components.charts import chart, side_by_side
from tilescope_dashboard.components.choice import Choice
from tilescope_dashboard.components.tables import table
from tilescope_dashboard.data import kernel_cases, recordings
from tilescope_dashboard.data.kernel_cases import KernelCase
from tilescope_dashboard.figures.counters import memory, stalls
from tilescope_dashboard.topics import counters as topic
from tilescope_dashboard.views.base import View


class Counters(View):
    """The memory chart and the warps' states of one launch, and a table of all its counters.

    Of the chosen case, or the one that is most like it among those whose launches were counted.
    """

    name_in_address, title, question = "counters", "Memory and stalls", recordings.COUNTERS
    collectors = ("ncu",)

    def build(self) -> list[Any]:
        self._launch = Choice("launch", 330, self._draw)
        self.memory, self.stalls, self.table = chart(330), chart(330), table(topic.COLUMNS)
        if self.state.narrow:  # a phone has no room for a value beside a longer name
            self.table.widest["label"] = 240
        self._of: tuple[Any, ...] = ()
        return [self._launch, side_by_side([self.memory, self.stalls]), self.saved(self.table, "counters")]

    def update(self) -> None:
        found = self._counted()
        if not found:
            self.say_nothing(topic.NOTHING)
            return
        standing = self.state.standing
        self._case = (standing and kernel_cases.closest(found, standing)) or next(iter(found))
        self._values = found[self._case]
        launches, of = topic.launches(self._values), (self.loaded, self.state.kernel, self._case)
        self._launch.offer(launches, self._values.main_launch(self._values.counted_by), anew=self._of != of)
        self._launch.visible = len(launches) > 1
        self._of = of
        self._draw()

    def _counted(self) -> dict[KernelCase, CaseValues]:
        """Cases of the recording that were counted."""
        counted = [case for case in (gather(self.usual) if self.shown else []) if case.launches(case.counted_by)]
        return {KernelCase(*(case.key[name] for name in kernel_cases.OF_KERNEL)): case for case in counted}

    def _draw(self) -> None:
        launch, look = self._launch.value, self.look
        moved, waited = topic.memory(self._values, launch), topic.stalls(self._values, launch)
        self.say(topic.sentence(self._case._replace(impl=look.called(self._case.impl)), moved, waited))
        self.memory.object, self.stalls.visible = memory(moved, look), bool(waited["cycles"].gt(0).any())
        if self.stalls.visible:
            self.stalls.object = stalls(waited, look)
        self.table.fill(topic.listed(self._values, launch))
