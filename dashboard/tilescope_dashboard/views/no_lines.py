"""Where to find what an open run does not know: a kernel's single lines. Another run has them, or one is to be made."""

from __future__ import annotations

from collections.abc import Iterable
from html import escape
from typing import Any

import panel as pn
import panel_material_ui as pmui
import param
from tilescope import store

from tilescope_dashboard import command_line, words
from tilescope_dashboard.opened import open_cached
from tilescope_dashboard.state import State, telling
from tilescope_dashboard.turns import in_turn

#: What knows lines without a GPU, and what adds stalls to it.
_ANYWHERE, _ON_GPU = "compiler,interpreter", "compiler,interpreter,ncu_source"


class NoLines(pn.viewable.Viewer):
    """A line, with a button where another run has what is missing; nothing where nothing is."""

    state = param.ClassSelector(class_=State)

    def __init__(self, state: State, **settings: Any) -> None:
        super().__init__(state=state, **settings)
        self._text = words.pane()
        self._button = pmui.Button(label="Open that run", variant="outlined", size="small", width=140)
        self._button.on_click(lambda _: in_turn(self._open))
        self._other: store.Summary | None = None
        # Put in and taken out: a change of ``visible`` alone may get lost.
        self._layout = pn.Column(sizing_mode="stretch_width", margin=0)

    def show(self, missing: bool) -> None:
        """Say where to find lines of the state's kernel, if they are ``missing``."""
        state = self.state
        self._other = with_lines(state.runs, state.kernel) if missing else None
        if self._other is not None:
            self._text.object = offered(self._other, state.kernel)
        elif missing:
            self._text.object = _made(state)
        self._layout.objects = [self._text, *([self._button] if self._other else [])] if missing else []

    def _open(self) -> None:
        if self._other is not None:
            self.state.param.update(run=self._other.id, kernel=self.state.kernel)

    def __panel__(self) -> pn.viewable.Viewable:
        return self._layout


def with_lines(runs: Iterable[store.Summary], kernel: str) -> store.Summary | None:
    """Of the runs with lines of the kernel the one that says most of it (``state.telling``); None where there is none."""
    left = [run for run in runs if (run.path / store.LINES).is_file()]
    while (found := telling(left, kernel)) is not None:
        try:
            if kernel in set(open_cached(found.path).lines["kernel"]):
                return found
        except (store.StoreError, OSError):
            pass  # a damaged run has none to show
        left.remove(found)
    return None


def offered(run: store.Summary, kernel: str) -> str:
    """What ``with_lines`` found, in words; escaped."""
    known = open_cached(run.path).lines
    sources = ", ".join(dict.fromkeys(known.loc[known["kernel"] == kernel, "source"]))
    kind = "recorded" if run.recorded else "made"
    return (
        f"<p>Another run has them: <b>{escape(run.title or run.id)}</b>, {kind} {escape(run.started[:10])} "
        f'<span class="quiet">({escape(run.device)}; lines from {escape(sources)})</span>.</p>'
    )


def _made(state: State) -> str:
    anywhere, on_gpu = (
        escape(command_line.about(state, "profile", "--collect", collectors)) for collectors in (_ANYWHERE, _ON_GPU)
    )
    return (
        f"<p>They come with the compiler and the interpreter, which need no GPU: <code>{anywhere}</code>. On a GPU "
        f"ncu_source adds the stalls of each line: <code>{on_gpu}</code>.</p>"
    )
