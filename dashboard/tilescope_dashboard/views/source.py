"""Source: a kernel's code with what each line costs, beside what it was compiled to."""

from __future__ import annotations

from typing import Any

import panel as pn
import panel_material_ui as pmui
from tilescope import compiled_text, lines, listings
from tilescope.case import Case

from tilescope_dashboard import code_pair, frames, words
from tilescope_dashboard import source_lines as model
from tilescope_dashboard.tables import fill, table
from tilescope_dashboard.units import write
from tilescope_dashboard.views.base import View

_COLUMNS = {
    "line": ("line", "count"),
    "label": ("what", "text"),
    "value": ("value", "count"),
    "unit": ("unit", "text"),
    "source": ("source", "text"),
    "function": ("function", "text"),
    "file": ("file", "text"),
}
_NOTHING = (
    "This run knows nothing of single lines. They come with the compiler and the interpreter, which need no GPU "
    "('tilescope profile {} --collect compiler,interpreter'), and with ncu_source on a GPU, which adds stalls."
)
_READING = (
    "A bar is a line's share of the launch, solid where it was measured and hatched where it is predicted. {} "
    "Choose a line, here or there, to see what it became."
)
_CALLED = "What a line calls counts with it."
_APART = "What a line calls in other files is counted apart by ncu: it stands below the source."
_NO_TEXT = (
    "The source of {} was not kept with this run and is not here unchanged: its lines cannot be shown, only counted."
)
_NO_ASSEMBLY = (
    "No assembly of this case: a recording keeps the largest default case's, and a run those that it compiled."
)


class Source(View):
    """One launch of one case at a time; the columns are the person's choice, or else the most telling ones."""

    name_in_address, title = "source", "Source"

    def build(self) -> list[Any]:
        self._filling = self._chosen = False
        self._head, self._missing = words.pane(), words.pane()
        self._case = pmui.Select(label="case", options={}, size="small", width=360)
        self._launch = pmui.Select(label="launch", options={}, size="small", width=280)
        self._shown = pmui.MultiChoice(label="columns", options={}, sizing_mode="stretch_width", margin=(4, 8))
        self._code = code_pair.CodePair(sizing_mode="stretch_width", margin=(4, 8))
        self._table = table(_COLUMNS)
        self._case.param.watch(lambda _: self._filling or self._open(), "value")
        self._launch.param.watch(lambda _: self._filling or self._choose(), "value")
        self._shown.param.watch(lambda _: self._filling or self._pick(), "value")
        self._code.param.watch(lambda _: self._draw(), "stage")
        self._body = pn.Column(
            pn.FlexBox(self._case, self._launch, gap="8px"), self._shown, self._missing, self._code,
            self.saved(self._table, "lines"), sizing_mode="stretch_width", margin=0,
        )  # fmt: skip
        return [self._head, self._body]

    def update(self) -> None:
        loaded = self.state.loaded
        self._lines = loaded.lines[loaded.lines["kernel"] == self.state.kernel] if loaded else lines.frame([])
        self._body.visible = not self._lines.empty
        if self._lines.empty:
            self._head.object = words.heading("Source", _NOTHING.format(self.state.kernel or "softmax"))
            return
        options = model.cases(self._lines)
        workload, direction = frames.largest_problem(frames.default_configs(self.state.table))
        first = next((c for c in options.values() if c[1:] == (direction, workload, "")), next(iter(options.values())))
        self._set(self._case, options, first)
        self._open()

    def _open(self) -> None:
        """The chosen case's launches."""
        self._rows = model.of_case(self._lines, self._case.value)
        launches = {launch.label: launch for launch in model.launches(self._rows)}
        self._set(self._launch, launches, next(iter(launches.values())))
        self._choose()

    def _choose(self) -> None:
        """The chosen launch's columns, source and values."""
        self._own = model.of_launch(self._rows, self._launch.value)
        known = model.columns(self._own)
        kept = [column for column in self._shown.value if self._chosen and column in known]
        self._filling = True
        first = kept or model.first_columns(known, 1 if self.state.narrow else 3)
        self._shown.param.update(options={column.text: column for column in known}, value=first)
        self._filling = False
        texts = {file: self.state.loaded.source(self.state.kernel, file) for file in model.files(self._own)}
        self._file = next((file for file, text in texts.items() if text is not None), next(iter(texts)))
        self._text = texts[self._file]
        say = words.notice("warning", "No source text:", _NO_TEXT.format(self._file)) if self._text is None else ""
        self._missing.object = say
        fill(self._table, model.described(self._own))
        self._draw()

    def _pick(self) -> None:
        self._chosen = True
        self._draw()

    def _draw(self) -> None:
        """The source with the chosen columns, and the chosen stage."""
        columns, text = list(self._shown.value), self._text or ""
        hot = model.hottest(self._own, columns[0], self._file) if columns else None
        share = f"{write(hot[1], 'ratio')} of {columns[0].text}" if hot else ""
        own_lines = self._own.loc[self._own["file"] == self._file, "line"]
        left = code_pair.source(text, self._file, self._own, columns, model.excerpt(text, own_lines))
        others = code_pair.elsewhere(self._own, self._file, columns)
        markup = code_pair.pair(left + others, self._assembly(), self.state.look)
        title = f"Line {hot[0]} has {share}" if hot else self._launch.value.label
        self._head.object = words.heading(title, _READING.format(_APART if others else _CALLED))
        # A line that was chosen stays chosen as long as the launch has it.
        line = self._code.line if self._code.line in own_lines.array else hot[0] if hot else 0
        self._code.param.update(line=line, markup=markup)

    def _assembly(self) -> str:
        impl, direction, workload, config = self._case.value
        case, launch = Case(self.state.kernel, impl, direction, workload, config), self._launch.value
        found = listings.of_launch(self.state.loaded.folder, case, launch.function, launch.number)
        stages, stage = found.stages if found else {}, self._code.stage
        return code_pair.assembly(
            stage, stages, compiled_text.read(stage, stages.get(stage, ""), self._file), _NO_ASSEMBLY
        )

    def _set(self, widget: pmui.Select, options: dict[str, Any], first: Any) -> None:
        """New options; the person's choice stays where it is among them."""
        self._filling = True
        widget.param.update(options=options, value=widget.value if widget.value in options.values() else first)
        self._filling = False
