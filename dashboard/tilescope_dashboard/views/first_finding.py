"""The first finding of a case in one line, with a button that opens Advice."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import panel as pn
import panel_material_ui as pmui
import param
from tilescope.models.advice.finding import DISTANCE

from tilescope_dashboard.components import cards
from tilescope_dashboard.data import kernel_cases, run_cache
from tilescope_dashboard.session.scheduling import next_tick
from tilescope_dashboard.session.state import State


class FirstFinding(pn.viewable.Viewer):
    """A line and a button; empty without a finding."""

    state = param.ClassSelector(class_=State)

    def __init__(self, state: State, **settings: Any) -> None:
        super().__init__(state=state, **settings)
        self._text = cards.pane()
        self._button = pmui.Button(label="Open Advice", variant="outlined", size="small", width=120)
        self._button.on_click(lambda _: next_tick(self._open))
        self._case: Mapping[str, Any] = {}
        # Side by side if the page is wide enough, else the button below.
        self._line = pn.Column(self._text, styles={"flex": "0 1 880px"}, margin=0)
        self._layout = pn.FlexBox(sizing_mode="stretch_width", gap="4px", align_items="center")

    def show(self, case: Mapping[str, Any] | None) -> None:
        """Show the first finding of a row of ``tilescope.models.summary.summarise``, which belongs to the state's run, and the way
        to the Advice view on it.
        """
        self._case = case or {}
        loaded = self.state.loaded
        every = run_cache.findings(loaded, tuple(case[name] for name in run_cache.CASE)) if loaded and case else ()
        # The page has a diagnosis above; the finding that no rule applies would contradict it.
        found = [finding for finding in every if finding.rule != DISTANCE]
        self._text.object = cards.brief(found[0]) if found else ""
        # Add and remove it, as a change of ``visible`` alone may get lost.
        self._layout.objects = [self._line, self._button] if found else []

    def _open(self) -> None:
        name = kernel_cases.case_name(self._case[part] for part in kernel_cases.OF_KERNEL)
        self.state.param.update(kernel=self._case["kernel"], case=name, view="advice")

    def __panel__(self) -> pn.viewable.Viewable:
        return self._layout
