"""Source: a kernel's code with what each line costs, beside what it was compiled to."""

from __future__ import annotations

from pathlib import PurePosixPath
from typing import Any

import pandas as pd
import panel as pn
from tilescope.collectors import compiled_text
from tilescope.runs import listings
from tilescope.runs.store import LoadedRun
from tilescope.table import line_values
from tilescope.table.case import Case

from tilescope_dashboard.components import code_pair, html_text
from tilescope_dashboard.components.tables import fill, table
from tilescope_dashboard.data import frames, recordings, run_cache
from tilescope_dashboard.data.kernel_cases import KernelCase
from tilescope_dashboard.topics import source as topic
from tilescope_dashboard.views.base import View
from tilescope_dashboard.views.line_choices import LineChoices
from tilescope_dashboard.views.missing_lines import MissingLines

_NO_ASSEMBLY = (
    "No assembly of this case: a recording keeps the largest default case's, and a run those that it compiled."
)


class Source(View):
    """One launch of one case at a time, with the values that ``LineChoices`` has of its lines: of the open run, else of the best
    recording that has some.
    """

    name_in_address, title = "source", "Source"

    def build(self) -> list[Any]:
        self._head, self._missing, self._no_text = html_text.pane(), MissingLines(self.state), html_text.pane()
        self._choices = LineChoices(self._open, self._draw, self._pick)
        self._whose, self._loaded = html_text.pane(), self.state.loaded
        self._code = code_pair.CodePair(sizing_mode="stretch_width", margin=(4, 8))
        self._table = table(topic.COLUMNS)
        self._code.param.watch(lambda _: self._draw(), "stage")
        self._body = pn.Column(
            self._whose, self._choices, self._no_text, self._code, self.saved(self._table, "lines", self._origin),
            sizing_mode="stretch_width", margin=0,
        )  # fmt: skip
        return [self._head, self._missing, self._body]

    def update(self) -> None:
        state = self.state
        self._loaded, found = state.loaded, self._lines(state.loaded)
        own = next((run for run in state.runs if run.id == state.run), None)
        whose = recordings.origin(own) if own else ""
        best = self._best() if found.empty else None
        if best:
            self._loaded, found, whose = best.loaded, self._lines(best.loaded), best.origin
            self._missing.say("")
        else:
            self._missing.show(found)
        self._body.visible = not found.empty
        self._whose.object = html_text.whose(whose)
        if found.empty:
            self._head.object = html_text.heading(*topic.NOTHING)
        else:
            problem = frames.largest_problem(run_cache.usual(self._loaded, self.state.kernel))
            chosen, anew = self.state.chosen, self.elsewhere()
            self._choices.fill(found, problem, 1 if self.state.narrow else 3, chosen, anew=anew)

    def _lines(self, loaded: LoadedRun | None) -> pd.DataFrame:
        return loaded.lines[loaded.lines["kernel"] == self.state.kernel] if loaded else line_values.frame([])

    def _best(self) -> recordings.Recording | None:
        """The best recording of lines: measured ones before predicted ones."""
        state = self.state
        gpu = state.device.name if state.device else ""
        asked = (recordings.best(state.runs, state.kernel, what, gpu) for what in ("measured lines", "lines"))
        return next(filter(None, asked), None)

    def _origin(self) -> tuple[str, ...]:
        run = self._loaded.run if self._loaded else None
        return (self.state.kernel, run.id, run.device.name) if run else self.state.origin

    def _pick(self) -> None:
        parts = dict(zip(KernelCase._fields, self._choices.case, strict=True))
        self.choose(self._choices.open, **parts)

    def _open(self) -> None:
        """The chosen launch's source and values."""
        rows, loaded = self._choices.rows, self._loaded
        texts = {file: loaded.source_text(self.state.kernel, file) for file in topic.files(rows)}
        self._file = next((file for file, text in texts.items() if text is not None), next(iter(texts)))
        self._text = texts[self._file]
        missing = html_text.notice("warning", "No source text:", topic.no_text(self._file))
        self._no_text.object = missing if self._text is None else ""
        fill(self._table, topic.listed(rows))
        self._draw()

    def _draw(self) -> None:
        """The source with the chosen columns, and the chosen stage."""
        rows, columns, text = self._choices.rows, self._choices.columns, self._text or ""
        hot = topic.hottest(rows, columns[0], self._file) if columns else None
        own_lines = rows.loc[rows["file"] == self._file, "line"]
        left = code_pair.source(text, self._file, rows, columns, topic.excerpt(text, own_lines))
        others = code_pair.elsewhere(rows, self._file, columns)
        markup = code_pair.pair(left + others, self._assembly(), self.state.look_of(*self._origin()))
        column = columns[0].text if columns else ""
        said = topic.sentence(self._choices.launch.label, hot, column, apart=bool(others))
        self._head.object = html_text.heading(*said)
        # A line that was chosen stays chosen as long as the launch has it.
        line = self._code.line if self._code.line in own_lines.array else hot[0] if hot else 0
        self._code.param.update(line=line, markup=markup)

    def _assembly(self) -> str:
        impl, direction, workload, config = self._choices.case
        case, launch = Case(self.state.kernel, impl, direction, workload, config), self._choices.launch
        found = listings.of_launch(self._loaded.folder, case, launch.function, launch.number)
        stages, stage = found.stages if found else {}, self._code.stage
        code = compiled_text.read(stage, stages.get(stage, ""), PurePosixPath(self._file).name)
        return code_pair.assembly(stage, stages, code, _NO_ASSEMBLY)
