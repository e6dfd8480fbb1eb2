"""Selectors of a case, one of its launches, and the columns of values beside its lines."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pandas as pd
import panel_material_ui as pmui
from tilescope.table import line_values

from tilescope_dashboard.components import layout
from tilescope_dashboard.components.choice import Choice
from tilescope_dashboard.data.kernel_cases import KernelCase
from tilescope_dashboard.topics import source as topic
from tilescope_dashboard.topics.source import FunctionLaunch, LineColumn


class LineChoices(layout.Part):
    """Three selectors, each of which narrows the next. Columns are the user's choice, or the default ones.

    ``rows`` are the chosen launch's. ``launch_chosen`` is called when they are others, ``columns_chosen`` when a user
    chose columns of them, ``case_chosen`` when one chose another case, which ``open`` then shows. The selector ``first`` stands
    before the others.
    """

    def __init__(
        self, launch_chosen: Callable[[], Any], columns_chosen: Callable[[], Any], case_chosen: Callable[[], Any], first: Choice
    ) -> None:  # fmt: skip
        super().__init__()
        self.rows = self._of_case = self._found = line_values.frame([])
        self._launch_chosen, self._columns_chosen = launch_chosen, columns_chosen
        self._filling = self._picked = False
        self._most = 1
        self._case, self._launch = Choice("case", 320, case_chosen), Choice("launch", 220, self._choose)
        self._columns = pmui.MultiChoice(
            label="columns", options={}, styles={"flex": "1 1 400px"}, sizing_mode="stretch_width", margin=(4, 8)
        )
        self._columns.param.watch(lambda _: self._filling or self._pick(), "value")
        self.layout = layout.beside(first, self._case, self._launch, self._columns)

    @property
    def case(self) -> tuple[str, ...]:
        """The chosen case's values of ``topics.source.CASE``."""
        return tuple(self._case.value)

    @property
    def launch(self) -> FunctionLaunch:
        found: FunctionLaunch = self._launch.value
        return found

    @property
    def columns(self) -> list[LineColumn]:
        """The chosen columns in order of choice."""
        return list(self._columns.value)

    def fill(
        self, found: pd.DataFrame, problem: tuple[str, str], most: int, case: KernelCase | None = None, *, anew: bool = False
    ) -> None:  # fmt: skip
        """Offer what ``found``, lines of one kernel, knows; what was chosen stays where it is among that, unless ``anew``.

        Else it is ``case``, else the first one of its problem, else of ``problem``, a workload and a pass, without a config; and
        at most ``most`` columns.
        """
        self._found, self._most = found, most
        options = topic.cases(found)
        known = {(workload, direction) for _, direction, workload, _ in options.values()}
        of = case.problem if case and case.problem in known else problem
        first = tuple(case) if case and case in options.values() else topic.first_case(found, of)
        stays = self._case.value in options.values() and not anew
        self._case.offer(options, self._case.value if stays else first, anew=anew)
        self.open()

    def open(self) -> None:
        """The chosen case's launches."""
        self._of_case = topic.of_case(self._found, self.case)
        launches = {launch.label: launch for launch in topic.launches(self._of_case)}
        stays = self._launch.value in launches.values()
        self._launch.offer(launches, self._launch.value if stays else next(iter(launches.values())))
        self._choose()

    def _choose(self) -> None:
        """The chosen launch's rows and columns."""
        self.rows = topic.of_launch(self._of_case, self.launch)
        known = topic.line_columns(self.rows)
        kept = [column for column in self.columns if self._picked and column in known]
        value = kept or topic.first_columns(known, self._most)
        self._filling = True
        self._columns.param.update(options={column.text: column for column in known}, value=value)
        self._filling = False
        self._launch_chosen()

    def _pick(self) -> None:
        self._picked = True
        self._columns_chosen()
