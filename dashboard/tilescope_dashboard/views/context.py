"""Line above every view: the selector of the run, notices about it, and the export."""

from __future__ import annotations

from typing import Any

import param
from tilescope.models.faults import plain
from tilescope.runs import journal
from tilescope.runs.store import LoadedRun
from tilescope.table.case import readable

from tilescope_dashboard.components import html_text, layout
from tilescope_dashboard.components.choice import Choice
from tilescope_dashboard.data.best_run import no_gpu
from tilescope_dashboard.data.run_cache import changed_sizes
from tilescope_dashboard.data.units import short
from tilescope_dashboard.session.state import OF_ALL, WHOLE_RUN, State
from tilescope_dashboard.views.export import Export

_CSS = ":host(.of-all) .of-run { display: none; }"
#: On a phone the run and its export share one row that scrolls sideways, like the bar above.
_ROW_CSS = """
@media (max-width: 640px) {
  :host { flex-flow: row nowrap !important; overflow: auto hidden !important; scrollbar-width: none; padding-top: 6px;
    mask-image: linear-gradient(to left, transparent, #000 24px); }
  .chosen-run { flex: none !important; width: 236px !important; min-width: 0 !important; }
}
"""


class Context(layout.Part):
    """Selector of the run, bound to the state both ways."""

    def __init__(self, state: State) -> None:
        super().__init__()
        self.state, self.notices, export = state, html_text.pane(), Export(state)
        wide: dict[str, Any] = {"sizing_mode": "stretch_width", "min_width": 240, "max_width": 460}
        self._run = Choice("run", 460, self._choose, css_classes=["chosen-run"], **wide)
        state.param.watch(self._fill, ["runs", "loaded", "kernel", "error", "ignored", "narrow"])
        state.param.watch(self._follow_view, "view")
        # A column that wraps its parts into rows keeps their widths.
        flow = {"flex-flow": "row wrap", "align-items": "flex-end", "gap": "4px"}
        chooser = layout.column(self._run, export, css_classes=["of-run"], styles=flow, stylesheets=[_ROW_CSS])
        # Why the last report was not saved stands below the row, which has no room for it.
        self.layout = layout.column(
            chooser, export.button.said, self.notices, margin=(8, 0, 0, 0), stylesheets=[_CSS],
            css_classes=_of(state.view),
        )  # fmt: skip
        self._fill()

    def _choose(self) -> None:
        # The list first reports the choice that it was made with: that is no change.
        if self._run.value != self.state.run:
            self.state.go_to(run=self._run.value)

    def _follow_view(self, event: param.parameterized.Event) -> None:
        if {event.old, event.new} & {*OF_ALL, WHOLE_RUN}:  # all others are of the same kernel
            self.layout.css_classes = _of(event.new)
            self._fill()

    def _fill(self, *_: param.parameterized.Event) -> None:
        state = self.state
        labels = {_label(s): s.id for s in state.runs if not s.error}
        if state.run and state.run not in labels.values():
            # Without a matching option the widget would choose another run itself.
            labels = {f"{short(state.run, 40)} · cannot be shown": state.run, **labels}
        self._run.offer(labels, state.run or None, anew=True)
        self.notices.object = html_text.notices(self._said())

    def _said(self) -> list[str]:
        state, said = self.state, []
        if state.error:
            said.append(html_text.notice("error", "This run cannot be shown.", state.error))
        if state.ignored:
            said.append(html_text.notice("warning", "In the address:", state.ignored))
        loaded = state.loaded
        if loaded is None:
            if not state.error:
                said.append(html_text.notice("info", "No run yet.", "Choose a kernel and press Profile."))
            return said
        if state.view in OF_ALL:
            # Remarks on one run do not belong to views of all runs.
            if no_gpu():
                what = "times below were measured on the GPUs that are named. The compiler and interpreter collectors work here."
                said.append(html_text.notice("info", "No GPU on this machine:", what))
            return said
        said += self._known(loaded)
        if not loaded.run.complete:
            cure = f" 'tilescope resume {loaded.run.id}' goes on with it." if journal.kept(loaded.folder) else ""
            what = f"it was cancelled or its worker died.{cure}"
            said.append(html_text.notice("warning", "This run is not complete:", what))
        for one in loaded.run.skipped:
            if one.limited and state.kernel in {case.name for case in one.cases}:
                cure = (
                    f"; 'tilescope resume {loaded.run.id}' allows ten times as much"
                    if journal.kept(loaded.folder)
                    else ""
                )
                said.append(html_text.notice("info", "Left out:", f"{one.note}{cure}"))
        # The list of runs says how many other kernels there are.
        failures = [f for f in loaded.run.failures if not f.case or f.concerns(state.kernel)]
        if failures:
            listed = [
                f"{f.collector} · {readable(f.case)}: {plain(f.message)}" if f.case else f"{f.collector}: {f.message}"
                for f in failures
            ]
            more = [*listed[:6], *([f"and {len(listed) - 6} more"] if len(listed) > 6 else [])]
            if len(listed) == 1:
                said.append(html_text.notice("warning", "1 failed in this run:", listed[0]))
            else:
                said.append(html_text.notice("warning", f"{len(listed)} failed in this run.", "", more))
        return said

    def _known(self, loaded: LoadedRun) -> list[str]:
        """Notices about the run, on every page. On a phone they are one line that unfolds."""
        found = []
        if no_gpu():
            what = (
                f"you are looking at a run recorded on a real {loaded.run.device.name}"
                if loaded.run.device.measured
                else f"this run was predicted for a GPU called {loaded.run.device.name}, not measured"
            )
            text = f"{what}. The compiler and interpreter collectors work here."
            found.append(("info", "No GPU on this machine", text))
        if changed := self._of_page(self.state.changed):
            found.append(("warning", "Changed since this run", _changed(loaded, changed)))
        if not self.state.narrow or not found:
            return [html_text.notice(kind, f"{title}:", text) for kind, title, text in found]
        (_, first, _), *others = found
        title = "; ".join([first, *(title[:1].lower() + title[1:] for _, title, _ in others)])
        return [html_text.notice(found[-1][0], title, "", [f"{title}: {text}" for _, title, text in found])]

    def _of_page(self, kernels: list[str]) -> list[str]:
        """The ones of the run's ``kernels`` that the page shows."""
        return [name for name in kernels if self.state.view == WHOLE_RUN or name == self.state.kernel]


def _of(view: str) -> list[str]:
    """CSS classes: a view of all kernels is of no run."""
    return ["of-all"] if view in OF_ALL else []


def _label(summary: Any) -> str:
    """Label of a run with the most distinctive part first, as a narrow selector cuts the end."""
    where = "recorded" if summary.recorded else ("predicted for" if not summary.measured else "on")
    started, device = summary.started[:16].replace("T", " "), summary.device.removeprefix("NVIDIA ")
    return short(f"{summary.title or summary.id} · {where} {device} · {started}", 76) + f" · {summary.id[-4:]}"


def _changed(loaded: LoadedRun, kernels: list[str]) -> str:
    """Says what of these kernels is not what was recorded: the sizes where it is not all."""
    sizes = {name: changed_sizes(loaded, name) for name in kernels}
    said = [
        f"what {name} launches at {', '.join(some)} is not what was recorded." for name, some in sizes.items() if some
    ]
    if whole := [name for name, some in sizes.items() if not some]:
        said.insert(0, f"the source of {', '.join(whole)} is not what was recorded.")
    return " ".join([said[0], *(one[:1].upper() + one[1:] for one in said[1:])])
