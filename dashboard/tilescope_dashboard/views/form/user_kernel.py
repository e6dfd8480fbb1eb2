"""Field for a person's own kernel file, which is read into the catalog and profiled as the library's kernels are."""

from __future__ import annotations

from typing import Any

import panel as pn
import panel_material_ui as pmui
import param
from tilescope.jobs import questions
from tilescope.table.case import Case

from tilescope_dashboard.components import html_text
from tilescope_dashboard.session.access import user_kernel
from tilescope_dashboard.session.latest_request import LatestRequest
from tilescope_dashboard.session.state import State


class UserKernelField(pn.viewable.Viewer):
    """A field for FILE.py:SPEC, and right below it what became of it: a refusal is read where one typed."""

    state = param.ClassSelector(class_=State)

    def __init__(self, state: State, **settings: Any) -> None:
        super().__init__(state=state, **settings)
        self.said, self._latest, self._opened = html_text.pane(), LatestRequest(), ""
        pn.state.on_session_destroyed(lambda _: self._latest.close())
        self.field = pmui.TextInput(
            label="own kernel or captured launch", placeholder="file.py:SPEC or captured_launches.py:NAME", sizing_mode="stretch_width",
            size="small",
        )  # fmt: skip
        self.field.param.watch(self._read, "value")
        self._layout = pn.Column(self.field, self.said, sizing_mode="stretch_width", margin=0)

    @property
    def unopened(self) -> str:
        """What stands in the field and was not opened, because it was refused or is being read; empty where nothing does."""
        return "" if self.field.value == self._opened else self.field.value

    def _say(self, notice: str) -> None:
        self.said.object = notice

    async def _read(self, event: param.parameterized.Event) -> None:
        self._say("")
        if not event.new or not self.state.may_launch:
            return
        self._say(html_text.notice("info", "Reading", event.new))
        try:
            kernel = user_kernel(event.new)
            # A worker for each: one at a time, and none for what nobody asks any more.
            entries = await self._latest.of(lambda: questions.describe([kernel]))
        except ValueError as error:
            self._say(html_text.notice("error", "Not opened:", str(error)))
            return
        if entries is None:
            return
        name = Case(kernel, "", "", "").name  # as a run calls it
        self._say("")
        entry = {**entries[0], "name": name}
        others = [e for e in self.state.catalog if e["name"] != name]
        self._opened = event.new
        self.state.param.update(catalog=[*others, entry], kernel=name)

    def __panel__(self) -> pn.viewable.Viewable:
        return self._layout
