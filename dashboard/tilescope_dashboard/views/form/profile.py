"""The profile form in the drawer: its fields, a field for a person's own file, the button, and the outcome."""

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
from tilescope_dashboard.components.choice import CHOOSE, Choice
from tilescope_dashboard.data.this_machine import Machine
from tilescope_dashboard.session import watching
from tilescope_dashboard.session.access import own_files, user_kernel, user_script
from tilescope_dashboard.session.jobs import Follower, JobManager, JobState
from tilescope_dashboard.session.scheduling import next_tick
from tilescope_dashboard.session.state import PROFILE, WATCH, State
from tilescope_dashboard.views.form.fields import ProfileFields, entry_of, standing
from tilescope_dashboard.views.jobs.job_text import beside_the_button


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


_FOOT = ":host { position: sticky; bottom: 0; z-index: 2; background: var(--mui-palette-background-default, inherit); }"


class ProfileForm(layout.Part):
    """Choices for the chosen kernel. ``started`` is the last job that the button began."""

    started = param.ClassSelector(class_=JobState, default=None)

    def __init__(self, state: State, jobs: JobManager) -> None:
        super().__init__()
        self.state, self._jobs = state, jobs
        self._followed: JobState | None = None
        self._kernel = Choice("kernel", 300, self._choose, sizing_mode="stretch_width")
        self._fields, self._trouble = ProfileFields(), html_text.pane()
        self.own = UserKernelField(state)
        self._button = pmui.Button(label="Start profiling", sizing_mode="stretch_width", disabled=True)
        self._button.on_click(lambda _: self._profile())
        self._watch = pmui.Button(label="Watch", variant="outlined", sizing_mode="stretch_width", visible=False)
        self._watch.description = "Run it again at every save, and show what changed"
        self._watch.on_click(lambda _: next_tick(self._begin))
        self.own.param.watch(self._fill, "script")
        state.param.watch(self._fill, ["catalog", "catalog_error", "kernel", "loaded", "may_launch"])
        self._follower = Follower(jobs.watch, self._say)
        self._fill()
        # Messages stand above the button, which stays in sight: below it they would be off a phone's screen.
        foot = layout.column(self._trouble, self._button, self._watch, stylesheets=[_FOOT])
        self.layout = layout.column(self._kernel, self.own, self._fields, foot)

    def offer(self, machine: Machine) -> None:
        """Offer what can run on this machine."""
        self._fields.offer(machine)

    def _fill(self, *events: param.parameterized.Event) -> None:
        state = self.state
        # Without a chosen one the browser would choose the first.
        named = state.kernels if state.kernel else ["", *state.kernels]
        self._kernel.offer({name or CHOOSE: name for name in named}, state.kernel, anew=True)
        entry = entry_of(state.catalog, state.kernel)
        able = state.may_launch and entry is not None
        self._fields.enable(able)
        script = self.own.script if state.may_launch else None
        self._fields.layout.visible, self._watch.visible = script is None, script is not None
        self.own.field.disabled, self._button.disabled = not state.may_launch, not (able or script)
        # A job's message stays when another run is opened.
        if not able or [event.name for event in events] != ["loaded"]:
            said = standing(state.may_launch, state.catalog_error, state.catalog, entry if state.kernel else {})
            self._trouble.object = "" if script else said
        if entry is not None:
            self._fields.fill(entry)

    def _choose(self) -> None:
        if self._kernel.value:
            self.state.kernel = self._kernel.value

    def _begin(self) -> None:
        """Watch the script."""
        if self.own.script and self.state.may_launch:
            watching.shared().begin(str(self.own.script))
            self.state.param.update(view=WATCH, panel="")

    def _profile(self) -> None:
        entry = entry_of(self.state.catalog, self.state.kernel)
        if not self.state.may_launch:
            return
        if self.own.why:
            # Do not start a job with the previous choice.
            self._trouble.object = html_text.notice("error", "Nothing was started:", self.own.why)
            return
        try:
            if self.own.script:
                job = self._jobs.start_script(self.own.script)
            elif entry:
                job = self._jobs.start(self._fields.request(entry))
            else:
                return
        except ValueError as error:
            self._trouble.object = html_text.notice("error", "Nothing was started:", str(error))
            return
        self.started = self._followed = job
        self._say()

    def _say(self) -> None:
        """Show the state of the job started here until its end, as on a phone the form covers the job panel."""
        job = self._followed
        if job is not None:
            self._trouble.object = beside_the_button(job)
            self._followed = job if job.active else None
