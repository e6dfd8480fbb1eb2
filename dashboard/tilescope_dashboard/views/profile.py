"""The sidebar: what to profile, with what, for which GPU; the button, and what became of it."""

from __future__ import annotations

from typing import Any

import panel as pn
import panel_material_ui as pmui
import param
from tilescope import supervisor

from tilescope_dashboard import choices, words
from tilescope_dashboard.access import own_kernel
from tilescope_dashboard.job_text import beside_the_button
from tilescope_dashboard.jobs import JobManager, JobState
from tilescope_dashboard.state import State
from tilescope_dashboard.views.profile_fields import ProfileFields


class ProfileForm(pn.viewable.Viewer):
    """Choices for the state's kernel. ``started`` is the job that the button began last."""

    state = param.ClassSelector(class_=State)
    started = param.ClassSelector(class_=JobState, default=None)

    def __init__(self, state: State, jobs: JobManager, **settings: Any) -> None:
        super().__init__(state=state, **settings)
        self._jobs, self._doc, self._followed = jobs, pn.state.curdoc, None
        wide = {"sizing_mode": "stretch_width", "size": "small"}
        self._kernel = pmui.Select(label="kernel", options=[], **wide)
        self._own = pmui.TextInput(label="your own kernel, FILE.py:SPEC", placeholder="path/to/file.py:SPEC", **wide)
        self._fields, self._trouble = ProfileFields(), words.pane()
        self._button = pmui.Button(
            label="Profile", color="primary", variant="contained", sizing_mode="stretch_width", disabled=True
        )
        self._button.on_click(self._profile)
        self._kernel.param.watch(self._chosen, "value")
        self._own.param.watch(self._load_own, "value")
        state.param.watch(self._fill, ["catalog", "catalog_error", "kernel", "loaded", "may_launch"])
        unwatch = jobs.watch(self._follow)
        pn.state.on_session_destroyed(lambda _: unwatch())
        self._fill()
        # What is said stands above the button: below it, it would be off a phone's screen.
        self._layout = pn.Column(
            words.pane(words.heading("Profile")), self._kernel, self._own, self._fields, self._trouble, self._button,
            sizing_mode="stretch_width",
        )  # fmt: skip

    async def load(self) -> None:
        """Find out what can run here."""
        await self._fields.load()

    def _fill(self, *events: param.parameterized.Event) -> None:
        state = self.state
        self._kernel.param.update(options=state.kernels, value=state.kernel or None)
        entry = choices.entry_of(state.catalog, state.kernel)
        able = state.may_launch and entry is not None
        self._fields.enable(able)
        self._own.disabled, self._button.disabled = not state.may_launch, not able
        # What was said of a job stays when only another run is opened.
        if not able or [event.name for event in events] != ["loaded"]:
            self._trouble.object = choices.standing(state.may_launch, state.catalog_error, state.catalog, entry)
        if entry is not None:
            self._fields.fill(entry)

    def _chosen(self, event: param.parameterized.Event) -> None:
        if event.new:
            self.state.kernel = event.new

    async def _load_own(self, event: param.parameterized.Event) -> None:
        if not event.new or not self.state.may_launch:
            return
        self._trouble.object = words.notice("info", "Reading", event.new)
        try:
            kernel = own_kernel(event.new)
            entries = await supervisor.describe([kernel])
        except ValueError as error:
            self._trouble.object = words.notice("error", "Not opened:", str(error))
            return
        name = kernel.rpartition(":")[2]
        # A run names such a kernel by its variable.
        entry = {**entries[0], "name": name}
        others = [e for e in self.state.catalog if e["name"] != name]
        self.state.param.update(catalog=[*others, entry], kernel=name)

    def _profile(self, _: Any) -> None:
        entry = choices.entry_of(self.state.catalog, self.state.kernel)
        if not self.state.may_launch or entry is None:
            return
        try:
            request = self._fields.request(entry)
        except ValueError as error:
            self._trouble.object = words.notice("error", "Nothing was started:", str(error))
            return
        self.started = self._followed = self._jobs.start(request)
        self._say()

    def _follow(self) -> None:
        """Called in the server's loop after each change of any job: said in this session's turn."""
        if self._followed is not None and self._doc is not None:
            self._doc.add_next_tick_callback(self._say)

    def _say(self) -> None:
        """How the job that was started here stands, up to its end: on a phone the form lies over its progress."""
        job = self._followed
        if job is not None:
            self._trouble.object = beside_the_button(job)
            self._followed = job if job.active else None

    def __panel__(self) -> pn.viewable.Viewable:
        return self._layout
