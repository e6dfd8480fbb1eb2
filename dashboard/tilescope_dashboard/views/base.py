"""Base class of the views: built once, and updated when looked at."""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable, Sequence
from html import escape
from pathlib import Path
from typing import Any

import pandas as pd
import panel as pn
import param
from tilescope.files.bounded_reading import printable
from tilescope.models.headline import headline
from tilescope.runs.store import LoadedRun
from tilescope.table.sources import KNOWN

from tilescope_dashboard.components import html_text, layout
from tilescope_dashboard.components.charts import Chart
from tilescope_dashboard.components.choice import Choice
from tilescope_dashboard.components.tables import Table, downloads
from tilescope_dashboard.data import run_cache, this_machine
from tilescope_dashboard.data.exports import stem
from tilescope_dashboard.data.recordings import Question, Recording
from tilescope_dashboard.figures.style import Theme
from tilescope_dashboard.session.scheduling import beside, in_session
from tilescope_dashboard.session.state import MODEL, OF_ALL, WHOLE_RUN, State
from tilescope_dashboard.topics import model
from tilescope_dashboard.topics.sentence import Sentence

LOG = logging.getLogger(__name__)


class View(layout.Part):
    """A view of the state. A subclass has ``name_in_address``, ``title``, ``build()`` and ``update()``.

    ``build`` makes the parts below the title, the ``body``, once. ``update`` says the title (``say``) and fills the parts from the
    state; an error in it is shown in the view. A view with a ``question`` shows the recording that answers it, ``shown``: the open
    run, else the kernel's best recording. Its caption names the recording. Where there is nothing to show, a line below the title says
    what is missing, and which ``collectors`` make it (``say_nothing``). A view that is ``of_other_runs`` also updates when runs are added or removed. A view of one case shows the
    state's (``elsewhere``, ``choose``). The title of a ``live`` view is announced when it changes, and is not the text alternative of its figures.
    """

    name_in_address = ""
    title = ""
    live = False
    of_other_runs = False
    question: Question | None = None
    collectors: tuple[str, ...] = ()

    def __init__(self, state: State) -> None:
        super().__init__()
        self.state, self.fresh, self._followed = state, False, ""
        self._asked: Sequence[Path] = []
        #: Tables still to be added to the view, where a browser is to draw its figures first; None once it is ``complete``.
        self._late: list[Callable[[], object]] | None = [] if in_session() else None
        self.shown: Recording | None = None
        self.head = html_text.pane(kind=html_text.Spoken if self.live else html_text.Html)
        #: The text of the title, and where the numbers are from.
        self.caption, self.origins = html_text.pane(), list[str]()
        self.body = layout.column(*self.build())
        if not self.body.select(lambda part: part is self.caption):
            with_charts = [place for place, part in enumerate(self.body) if part.select(Chart)]
            self.body.insert(with_charts[0] + 1 if with_charts else 0, self.caption)
        self.layout = layout.column(self.head, self.body)
        for place in self.body.select(Chart):
            place.about = self.about
        state.param.watch(self._changed, ["loaded", "kernel", "error", "theme", "narrow", "view", "case", "runs"])

    def build(self) -> list[Any]:
        """The view's parts below its title, from top to bottom."""
        raise TypeError(f"{type(self).__name__} has no build")

    def update(self) -> None:
        """Update every part from the state."""
        raise TypeError(f"{type(self).__name__} has no update")

    def otherwise(self) -> str:
        """What makes what the view lacks, as HTML."""
        state, machine = self.state, this_machine.known()
        command = state.command("profile", "--collect", ",".join(self.collectors))
        if not state.kernel or not command:
            return ""
        missing = [machine.unavailable.get(name, name) for name in self.collectors] if machine else self.collectors
        declared = any(state.kernel == entry["name"] for entry in state.catalog)
        of_form = state.may_launch and declared and not any(missing)
        where = " on a GPU" if any(KNOWN[name].on_gpu for name in self.collectors) else ""
        return f"{'Press Profile, or run' if of_form else 'Run'} <code>{escape(command)}</code>{where}."

    def say(self, said: Sentence, more: str = "", stats: str = "") -> None:
        """Set the title, with ``stats`` as HTML; and its text, ``more`` as HTML and the origins below the first figure, else below
        the title.
        """
        text = html_text.paragraph(said.text) + more + html_text.whose(*self.origins)
        self.head.object = html_text.heading(said.title) + stats + ("" if self.body.visible else text)
        self.caption.object = text

    def say_nothing(self, said: Sentence, *, keeps: bool = False) -> None:
        """Set the title of a view that has nothing to show, what is missing, and what makes it: where the kernel failed, its correction.
        The body stays where the view ``keeps`` other parts in it.
        """
        fault, loaded = self.state.fault, self.state.loaded
        self.body.visible = keeps
        if not self.collectors:
            self.say(said)
        elif fault and self.state.standing is None:
            self.say(fault)
        else:
            tool = escape(str(loaded.run.settings.get("tool", ""))) if loaded else ""
            of_file = f"This run is a file of {tool}, which does not have it." if tool else ""
            todo = "Correct the kernel, then profile it again." if fault else of_file or self.otherwise()
            self.say(said._replace(text=""), f'<p class="quiet">{escape(said.text)} {todo}</p>')
        if keeps:
            self.head.object, self.caption.object = self.head.object + self.caption.object, ""

    def say_apart(self) -> None:
        """Say that the open run is a model's step, with a link to it where the page has other views."""
        self.say(model.APART, html_text.link("Open Model", view=MODEL, run=self.state.run) if self.state.bar else "")

    def __repr__(self) -> str:
        """The view as text, for plain Python: the kernel's most important finding, its own sentence, its notes and its tables."""
        loaded = self.loaded
        first = [headline(loaded, self.state.kernel)] if loaded else []
        panes = [self.head, *(pane for pane in self.body.select(html_text.Html) if pane.visible)]
        told = [html_text.text_of(str(pane.object or "")) for pane in panes]
        tables = [table.filled.to_string(index=False) for table in self.body.select(Table) if len(table.filled)]
        return printable("\n".join(filter(None, dict.fromkeys([*first, *told, *tables]))))

    __str__ = __repr__

    @property
    def loaded(self) -> LoadedRun | None:
        return self.shown.loaded if self.shown else self.state.loaded

    @property
    def loaded_run(self) -> LoadedRun:
        """``loaded``, where a run is shown. Raises ValueError otherwise."""
        if self.loaded is None:
            raise ValueError("no run is shown")
        return self.loaded

    @property
    def usual(self) -> pd.DataFrame:
        """Its rows of the chosen kernel, without sweeps. They must not be changed."""
        return run_cache.usual(self.loaded, self.state.kernel) if self.loaded else self.state.table

    @property
    def origin(self) -> tuple[str, ...]:
        """Origin of the shown numbers, for names of saved files (``State.origin``)."""
        run = self.shown.loaded.run if self.shown else None
        return (self.state.kernel, run.id, run.device.name) if run else self.state.origin

    @property
    def look(self) -> Theme:
        """Colours of the chosen theme, for figures of what is shown."""
        return self.state.look_of(*self.origin)

    def elsewhere(self) -> bool:
        """Whether the state's case has changed since the last call, so that selectors should follow it."""
        before, self._followed = self._followed, self.state.case
        return before != self.state.case

    def choose(self, draw: Callable[[], object], **parts: str) -> None:
        """Choose the case with these fields of a ``KernelCase`` for all views, and ``draw`` unless the change already did."""
        before = self.state.case
        self.state.choose(**parts)
        if self.state.case == before or not self.fresh:
            draw()

    def hide_like_bar(self, choice: Choice, case: object) -> None:
        """Hide the view's selector while it shows what the page's bar shows of the ``case``, or has nothing else to choose."""
        choice.visible = len(choice.options) > 1 and not (self.state.bar and choice.value == case)

    def saved(self, shown: Table, what: str = "", origin: Callable[[], Sequence[str]] | None = None) -> pn.Column:
        """The table and, below it, links that save it, in a session once ``complete``: it takes as long as a figure.

        File names have the view, ``what`` the table holds, and the origin of its numbers: the shown kernel, run and GPU, or
        ``origin``.
        """

        def name() -> str:
            return stem(self.name_in_address, what, *(origin() if origin else self.origin))

        shown.declared = lambda: dict(self.look.declared)
        place = layout.column()
        put = functools.partial(setattr, place, "objects", [shown, downloads(shown, name)])
        if self._late is None:
            put()
        else:
            self._late.append(put)
        return place

    @property
    def waits(self) -> bool:
        """Whether the view is not ``complete`` yet."""
        return self._late is not None

    def complete(self) -> None:
        """Add the tables below the figures."""
        late, self._late = self._late or [], None
        for put in late:
            self._attempt(put)

    def about(self) -> str:
        """Text alternative of this view's figures."""
        return ". ".join(filter(None, [self.title, "" if self.live else html_text.title_of(self.head.object)]))

    def clear(self) -> None:
        """Clear the selection of every table."""
        for shown in self.body.select(Table):
            shown.selection = []

    def refresh(self) -> None:
        """Update if something changed since the view was last looked at."""
        if not self.fresh:
            self.fresh = True
            # After a failure the other parts still hold what was shown before.
            self._attempt(self._bring_up, keeps=False)

    def _bring_up(self) -> None:
        of_step = self.state.of_step and self.name_in_address not in (*OF_ALL, WHOLE_RUN, MODEL)
        trouble = None if self.name_in_address in OF_ALL else self.state.trouble
        if trouble or of_step:
            self.origins, self.body.visible = [], False
            self.say(trouble) if trouble else self.say_apart()
            return
        self.body.visible = True
        if self.question:
            self.shown = self.state.answer(self.question)
            self.say_whose()
        self.update()

    def say_whose(self) -> None:
        """Note the shown recording's origin."""
        self.origins = []
        if self.shown:
            # For the open run, the line beside the tabs has the remark on changed code.
            borrowed = self.shown.loaded is not self.state.loaded
            self.origins = [self.shown.origin_of(self.state.kernel) if borrowed else self.shown.origin]

    def read_claims(self, folders: Sequence[Path], show: Callable[[Sequence[Path]], object]) -> None:
        """Read the claims of the runs that are not cached, beside the sessions, then ``show`` all; unless others are requested meanwhile."""
        self._asked = folders
        unread = [folder for folder in folders if not run_cache.has_claimed(folder)]
        if not unread:
            show(folders)
            return

        def shown() -> None:
            if folders is self._asked:
                self._attempt(lambda: show(folders))

        beside(functools.partial(run_cache.read_claims, unread), shown)

    def _attempt(self, action: Callable[[], object], keeps: bool = True) -> None:
        """Call ``action``. An error is shown in the view, above the rest if it ``keeps`` that."""
        try:
            action()
        except Exception as error:
            LOG.exception("view %s", self.name_in_address)
            said = f"{type(error).__name__}: {error}"
            trouble = html_text.notice("error", "This view could not be drawn.", said)
            self.head.object = trouble + (self.head.object if keeps else "")
            self.body.visible = self.body.visible and keeps

    def _changed(self, *events: param.parameterized.Event) -> None:
        # A new run may answer a question that the open one does not.
        unanswered = self.question and (self.shown is None or self.shown.loaded is not self.state.loaded)
        others = self.of_other_runs or unanswered
        if any(event.name != "view" and (event.name != "runs" or others) for event in events):
            self.fresh = False
        if self.state.view == self.name_in_address:
            self.refresh()
