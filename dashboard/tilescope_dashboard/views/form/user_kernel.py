"""Field for a person's own file: a kernel that is read into the catalog, or a script whose launches are profiled."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any

import panel as pn
import panel_material_ui as pmui
import param
from tilescope.jobs import questions
from tilescope.table.case import Case

from tilescope_dashboard.components import html_text, layout
from tilescope_dashboard.session.access import own_files, user_kernel, user_script
from tilescope_dashboard.session.scheduling import next_tick
from tilescope_dashboard.session.state import PROFILE, State


class UserKernelField(layout.Part):
    """A field for FILE.py:SPEC or FILE.py, and right below it what became of it: a refusal is read where one typed.

    ``script`` is the file that is to be run, None where none was given. ``why`` says why the field's text is not open, empty if it is.
    """

    script = param.ClassSelector(class_=Path, default=None)

    def __init__(self, state: State) -> None:
        super().__init__()
        self.state, self.said, self.why = state, html_text.pane(), ""
        self._reading: object = None
        self.field = pmui.AutocompleteInput(
            label="own kernel or script", helper_text="script.py, or file.py:SPEC", options=[], restrict=False,
            min_characters=0, search_strategy="includes", sizing_mode="stretch_width", size="small",
        )  # fmt: skip
        self.field.param.watch(self._read, "value")
        state.param.watch(self._offer, "panel")
        self._offer()
        self.layout = layout.column(self.field, self.said)

    def _offer(self, *_: param.parameterized.Event) -> None:
        """Offer the files that this server runs: those profiled before first, then by their last save."""
        if self.state.may_launch and self.state.panel == PROFILE:
            self.field.options = own_files({summary.title for summary in self.state.runs})

    def _say(self, notice: str) -> None:
        self.said.object = notice

    def _read(self, event: param.parameterized.Event) -> None:
        """Open what was typed. The answer to an earlier request is dropped."""
        if event.new is None:
            return  # the widget's own reset, where the text is none of its options
        self._reading, self.why = event, ""
        self._say("")
        self.script, given = None, event.new.strip()
        if not given or not self.state.may_launch:
            return
        try:
            if given.endswith(".py"):
                self.script = user_script(given)
                what = f"Start profiling runs {self.script.name} and profiles what it launches."
                self._say(html_text.notice("info", "A script:", what))
                return
            kernel = user_kernel(given)
        except ValueError as error:
            self._refuse(error)
            return
        self.why = f"{given} is being read."
        self._say(html_text.notice("info", "Reading", given))
        pn.state.execute(functools.partial(self._describe, kernel, event))

    async def _describe(self, kernel: str, asked: param.parameterized.Event) -> None:
        """Describe the kernel in a worker, and show the result at a tick, as a coroutine does not hold the document's lock."""
        file = Path(kernel.rpartition(":")[0]).name
        try:
            (entry,) = await questions.describe([kernel])
            show = functools.partial(self._open, kernel, entry)
        except ValueError as error:
            alone = f" {file} alone is run as a script, and what it launches is profiled."
            show = functools.partial(self._refuse, error, alone)
        if self._reading is asked:
            next_tick(show)

    def _refuse(self, error: ValueError, instead: str = "") -> None:
        self.why = f"{str(error).rstrip('.')}.{instead}"
        self._say(html_text.notice("error", "Not opened:", self.why))

    def _open(self, kernel: str, described: dict[str, Any]) -> None:
        name = Case(kernel, "", "", "").name  # its name in runs
        self.why = ""
        self._say("")
        others = [entry for entry in self.state.catalog if entry["name"] != name]
        self.state.param.update(catalog=[*others, {**described, "name": name}], kernel=name)
