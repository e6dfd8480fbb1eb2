"""The sidebar: what to profile, with what, for which GPU; and the button."""

from __future__ import annotations

import asyncio
from html import escape
from typing import Any

import panel as pn
import panel_material_ui as pmui
import param
from tilescope import ceilings, collectors, device, supervisor
from tilescope.plan import DEFAULT_TARGET, Request

from tilescope_dashboard import words
from tilescope_dashboard.access import own_kernel
from tilescope_dashboard.jobs import JobManager, JobState
from tilescope_dashboard.state import State

#: Ticked at first, where they can run: quick, and useful together.
_USUAL = ("compiler", "interpreter", "events", "torch_profiler", "ncu")


class ProfileForm(pn.viewable.Viewer):
    """Choices for the state's kernel. ``started`` is the job that the button began last."""

    state = param.ClassSelector(class_=State)
    started = param.ClassSelector(class_=JobState, default=None)

    def __init__(self, state: State, jobs: JobManager, **settings: Any) -> None:
        super().__init__(state=state, **settings)
        self._jobs, self._filled = jobs, None
        wide = {"sizing_mode": "stretch_width", "size": "small"}
        self._kernel = pmui.Select(label="kernel", options=[], **wide)
        self._own = pmui.TextInput(label="your own kernel", placeholder="path/to/file.py:SPEC", **wide)
        self._workloads = pmui.MultiChoice(label="workloads", options={}, sizing_mode="stretch_width")
        self._size = pmui.TextInput(label="another size", placeholder="1823x781-fp32", **wide)
        self._passes = pmui.CheckBoxGroup(label="pass", options=[], inline=True)
        self._impls = pmui.CheckBoxGroup(label="implementations", options=[], inline=True)
        self._every = pmui.Checkbox(label="every config (autotune)", value=False)
        self._collectors = pmui.CheckBoxGroup(label="collectors", options=[], inline=False)
        self._reasons, self._trouble = words.pane(), words.pane()
        self._target = pmui.Select(label="target GPU", options=list(ceilings.targets()), value=DEFAULT_TARGET, **wide)
        self._button = pmui.Button(
            label="Profile", color="primary", variant="contained", sizing_mode="stretch_width", disabled=True
        )
        self._button.on_click(self._profile)
        self._kernel.param.watch(self._chosen, "value")
        self._own.param.watch(self._load_own, "value")
        state.param.watch(self._fill, ["catalog", "catalog_error", "kernel", "loaded", "may_launch"])
        self._fill()
        self._layout = pn.Column(
            words.pane(words.heading("Profile")), self._kernel, self._own, self._workloads, self._size, self._passes,
            self._impls, self._every, self._collectors, self._reasons, self._target, self._button, self._trouble,
            sizing_mode="stretch_width",
        )  # fmt: skip

    async def load(self) -> None:
        """Find out which collectors can run here; some ask the driver, so not while the page is being built."""
        found = await asyncio.gather(*(asyncio.to_thread(_unavailable, name) for name in collectors.COLLECTORS))
        reasons = dict(zip(collectors.COLLECTORS, found, strict=True))
        able = [name for name, reason in reasons.items() if reason is None]
        self._collectors.param.update(options=able, value=[name for name in able if name in _USUAL])
        by_reason: dict[str, list[str]] = {}
        for name, reason in reasons.items():
            if reason:
                by_reason.setdefault(reason, []).append(name)
        self._reasons.object = "".join(
            f'<p class="small quiet"><b>{escape(", ".join(names))}</b>: {escape(reason)}</p>'
            for reason, names in by_reason.items()
        )
        here = await asyncio.to_thread(device.detect)
        if here:
            self._target.param.update(options=[*dict.fromkeys([here.target, *ceilings.targets()])], value=here.target)

    def _fill(self, *_: param.parameterized.Event) -> None:
        state = self.state
        self._kernel.param.update(options=state.kernels, value=state.kernel or None)
        entry = next((e for e in state.catalog if state.kernel in (e["name"], e["kernel"])), None)
        for widget in (self._own, self._size, self._workloads, self._passes, self._impls, self._every, self._button):
            widget.disabled = not state.may_launch or (entry is None and widget is not self._own)
        if not state.may_launch:
            said = words.notice(
                "info", "Read only.", "Profiling can be started only from the machine this server runs on."
            )
        elif state.catalog_error:
            said = words.notice("error", "The kernel library cannot be read.", state.catalog_error)
        elif not state.catalog:
            said = words.notice("info", "Reading the kernel library…")
        elif entry is None:
            said = words.notice("info", "Not in the library:", "give its file above to profile it again.")
        else:
            said = ""
        self._trouble.object = said
        if entry is None or entry is self._filled:
            return
        # What the person has chosen stays until it is about another kernel.
        self._filled = entry
        options = {f"{w['label']} · {w['id']}" if w["label"] else w["id"]: w["id"] for w in entry["workloads"]}
        # The quickest to run that has anything to say: an empty problem has not.
        filled = sorted((w for w in entry["workloads"] if w["elements"]), key=lambda w: w["elements"])
        self._workloads.param.update(options=options, value=[w["id"] for w in filled[:1]])
        self._passes.param.update(options=entry["passes"], value=entry["passes"])
        able = [name for name, facts in entry["implementations"].items() if facts["available"]]
        self._impls.param.update(options=able, value=able)
        self._every.visible = any(facts["configs"] for facts in entry["implementations"].values())

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
        state = self.state
        entry = next((e for e in state.catalog if state.kernel in (e["name"], e["kernel"])), None)
        chosen = {
            "a workload": [*self._workloads.value, *filter(None, [self._size.value.strip()])],
            "a pass": self._passes.value,
            "an implementation": self._impls.value,
            "a collector": self._collectors.value,
        }
        missing = [what for what, values in chosen.items() if not values]
        if not state.may_launch or entry is None or missing:
            self._trouble.object = words.notice("error", "Nothing was started:", f"choose {' and '.join(missing)}.")
            return
        self._trouble.object = ""
        workloads, passes, impls, with_ = chosen.values()
        self.started = self._jobs.start(
            Request(
                kernels=(entry["kernel"],),
                implementations=tuple(impls),
                workloads=tuple(workloads),
                directions=tuple(passes),
                collectors=tuple(with_),
                target=self._target.value,
                configs=("all",) if self._every.visible and self._every.value else (),
                title=entry["name"],
            )
        )

    def __panel__(self) -> pn.viewable.Viewable:
        return self._layout


def _unavailable(name: str) -> str | None:
    try:
        return collectors.load(name).unavailable()
    except ImportError as error:
        return f"does not import: {error}"
