"""What is to be known about the open run: a line beside the tabs, and notices below them."""

from __future__ import annotations

from itertools import chain

import param
from tilescope.models import faults
from tilescope.models.faults import plain
from tilescope.runs import journal
from tilescope.runs.store import LoadedRun
from tilescope.table.case import Case, readable
from tilescope.table.units import several

from tilescope_dashboard.components import html_text, layout
from tilescope_dashboard.data.best_run import no_gpu
from tilescope_dashboard.data.run_cache import changed_sizes
from tilescope_dashboard.session.state import OF_ALL, TELL_FAULTS, WHOLE_RUN, State

#: Most failures listed.
_MOST = 6

_BRIEF_CSS = """
:host { flex: 0 9 auto; min-width: 60px; } details.more { position: relative; margin: 0; }
details.more > summary { width: auto; overflow: hidden; text-overflow: ellipsis; white-space: nowrap; }
ul { position: absolute; right: 0; z-index: 10; width: min(420px, 90vw); margin: 0; padding: 10px 14px 12px 30px; text-align: left;
  background: var(--mui-palette-background-default, #fff); border: 1px solid; border-radius: 4px; }
@media (max-width: 640px) { :host { flex: 1 1 0; } ul { left: 0; right: auto; } }
"""


class Context(layout.Part):
    """``brief`` is the line, which unfolds. That this machine has no GPU is said until another view or kernel is opened."""

    def __init__(self, state: State) -> None:
        super().__init__()
        self.state, self.notices, self._new = state, html_text.pane(), True
        self.brief = html_text.Html(stylesheets=[html_text.CSS, _BRIEF_CSS], margin=(8, 8))
        state.param.watch(self._fill, ["loaded", "kernel", "error", "ignored", "gone", "view", "catalog"])
        self.layout = self.notices
        self._fill()

    def _fill(self, *events: param.parameterized.Event) -> None:
        self._new = self._new and not any(event.name in ("kernel", "view") for event in events)
        known = self._known()
        self.brief.object = html_text.more("; ".join(known), chain.from_iterable(known.values())) if known else ""
        self.notices.object = html_text.notices(self._said())

    def _said(self) -> list[str]:
        state, said = self.state, []
        if state.error and state.view in OF_ALL:
            said.append(html_text.notice("error", "This run cannot be shown:", state.error))
        if state.gone:
            said.append(html_text.notice("info", "Deleted:", state.gone))
        if state.ignored:
            said.append(html_text.notice("warning", "In the address:", state.ignored))
        loaded = state.loaded
        # Where no run is open the views say so, and remarks on one run do not belong to views of all runs.
        if loaded is None or state.view in OF_ALL:
            return said
        if not loaded.run.complete:
            cure = f" 'tilescope resume {loaded.run.id}' goes on with it." if journal.kept(loaded.folder) else ""
            what = f"it was cancelled or its worker died.{cure}"
            said.append(html_text.notice("warning", "This run is not complete:", what))
        if state.view not in TELL_FAULTS and state.standing and (wrong := state.fault):
            title = f"{wrong.title.rstrip('.')}:"
            said.append(html_text.notice("warning", title, "ignore the other numbers until this is fixed"))
        return said

    def _missing(self, loaded: LoadedRun) -> dict[str, list[str]]:
        """Results that the run lacks: what failed of the kernel, apart from the fault of the shown case, and what was left out."""
        kernel, case = self.state.kernel, self.state.standing
        told = Case(kernel, *case).id if case and self.state.fault else "" if case else _titled(loaded, kernel)
        failed = [
            f"{one.collector} · {readable(one.case)}: {plain(one.message)}"
            if one.case
            else f"{one.collector}: {one.message}"
            for one in loaded.run.failures
            if not one.case or (one.concerns(kernel) and readable(one.case) != told)
        ]
        kept = f"; 'tilescope resume {loaded.run.id}' takes them up" if journal.kept(loaded.folder) else ""
        left = [
            one.note + kept for one in loaded.run.skipped if one.limited and kernel in {case.name for case in one.cases}
        ]
        more = [f"and {len(failed) - _MOST} more"] if len(failed) > _MOST else []
        found = {f"{len(failed)} failed": [*failed[:_MOST], *more], several(len(left), "result") + " left out": left}
        return {short: lines for short, lines in found.items() if lines}

    def _known(self) -> dict[str, list[str]]:
        """Remarks on the run by their short forms."""
        loaded, of_all = self.state.loaded, self.state.view in OF_ALL
        found = self._missing(loaded) if loaded and not of_all else {}
        if self._new and (loaded or of_all) and no_gpu():
            device = loaded.run.device if loaded and not of_all else None
            brief, what = "times are recorded ones", "the page names the GPU of each time"
            if device and device.measured:
                what = f"this run was recorded on {device.name}"
            elif device:
                brief, what = "times are predicted", f"this run was predicted for {device.name}, not measured"
            text = f"No GPU on this machine: {what}. The compiler and interpreter collectors work here."
            found[f"No GPU here: {brief}"] = [text]
        changed = self.state.changed if loaded and not of_all else []
        here = [name for name in changed if self.state.view == WHOLE_RUN or name == self.state.kernel]
        if loaded and here:
            found["* Measured before the kernel's latest change"] = [_changed(loaded, here)]
        return found


def _titled(loaded: LoadedRun, kernel: str) -> str:
    """The failed case that is the title of a kernel without any other; empty without one."""
    of = {faults.of_failure(one): readable(one.case) for one in loaded.run.failures_of(kernel)}
    first = faults.first(list(of))
    return of[first] if first else ""


def _changed(loaded: LoadedRun, kernels: list[str]) -> str:
    """Says what of these kernels is not what was recorded: the sizes where it is not all."""
    sizes = {name: changed_sizes(loaded, name) for name in kernels}
    said = [
        f"{name} launches other code at {', '.join(some)} than this run measured."
        for name, some in sizes.items()
        if some
    ]
    if whole := [name for name, some in sizes.items() if not some]:
        said.insert(0, f"the source of {', '.join(whole)} has changed since this run measured it.")
    return " ".join([said[0], *(one[:1].upper() + one[1:] for one in said[1:])])
