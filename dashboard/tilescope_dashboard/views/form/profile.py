"""The profile form in the drawer: its fields, the button, and the outcome."""

from __future__ import annotations

import panel_material_ui as pmui
import param

from tilescope_dashboard.components import html_text, layout
from tilescope_dashboard.components.choice import Choice
from tilescope_dashboard.data.this_machine import Machine
from tilescope_dashboard.session import watching
from tilescope_dashboard.session.jobs import JobFollower, JobManager, JobState
from tilescope_dashboard.session.scheduling import next_tick
from tilescope_dashboard.session.state import WATCH, State
from tilescope_dashboard.views.form import choices
from tilescope_dashboard.views.form.fields import ProfileFields
from tilescope_dashboard.views.form.user_kernel import UserKernelField
from tilescope_dashboard.views.jobs.job_text import beside_the_button

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
        self._follower = JobFollower(jobs.watch, self._say)
        self._fill()
        # Messages stand above the button, which stays in sight: below it they would be off a phone's screen.
        foot = layout.column(self._trouble, self._button, self._watch, stylesheets=[_FOOT])
        self.layout = layout.column(self._kernel, self.own, self._fields, foot)

    def offer(self, machine: Machine) -> None:
        """Offer what can run on this machine."""
        self._fields.offer(machine)

    def _fill(self, *events: param.parameterized.Event) -> None:
        state = self.state
        self._kernel.offer(state.kernels, state.kernel or None, anew=True)
        entry = choices.entry_of(state.catalog, state.kernel)
        able = state.may_launch and entry is not None
        self._fields.enable(able)
        script = self.own.script if state.may_launch else None
        self._fields.layout.visible, self._watch.visible = script is None, script is not None
        self.own.field.disabled, self._button.disabled = not state.may_launch, not (able or script)
        # A job's message stays when another run is opened.
        if not able or [event.name for event in events] != ["loaded"]:
            said = choices.standing(state.may_launch, state.catalog_error, state.catalog, entry)
            self._trouble.object = "" if script else said
        if entry is not None:
            self._fields.fill(entry)

    def _choose(self) -> None:
        self.state.kernel = self._kernel.value

    def _begin(self) -> None:
        """Watch the script."""
        if self.own.script and self.state.may_launch:
            watching.shared().begin(str(self.own.script))
            self.state.param.update(view=WATCH, panel="")

    def _profile(self) -> None:
        entry = choices.entry_of(self.state.catalog, self.state.kernel)
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
