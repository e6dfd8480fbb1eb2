"""Source: a kernel's code with what each line costs, beside what it was compiled to."""

from __future__ import annotations

from html import escape
from pathlib import PurePosixPath
from typing import Any

from tilescope.collectors import compiled_text
from tilescope.runs import listings
from tilescope.table.case import Case

from tilescope_dashboard.components import code_pair, html_text
from tilescope_dashboard.components.choice import Choice
from tilescope_dashboard.components.tables import table
from tilescope_dashboard.data import frames, kernel_cases, recordings
from tilescope_dashboard.data.kernel_cases import KernelCase
from tilescope_dashboard.topics import source as topic
from tilescope_dashboard.views.base import View
from tilescope_dashboard.views.line_choices import LineChoices
from tilescope_dashboard.views.tile_layout import TileLayout

_NO_ASSEMBLY = (
    "No assembly of this case: a recording keeps the largest default case's, and a run those that it compiled."
)


class Source(View):
    """One launch of one case at a time, with the values that ``LineChoices`` has of its lines.

    A user's own run comes first. For a recording, another recording with measured lines may be shown.
    """

    name_in_address, title, question = "source", "Source", recordings.LINES

    def build(self) -> list[Any]:
        self._recording = Choice("lines of", 280, self._fill)
        self._choices = LineChoices(self._open, self._draw, self._pick, self._recording)
        self.no_text, self.table = html_text.pane(), table(topic.COLUMNS)
        self.code = code_pair.CodePair(sizing_mode="stretch_width", margin=(4, 8))
        self.code.param.watch(lambda _: self._draw(), "stage")
        self.layouts = TileLayout()
        return [self._choices, self.no_text, self.code, self.caption, self.layouts, self.saved(self.table, "lines")]

    def otherwise(self) -> str:
        anywhere = self.state.command("profile", "--collect", "compiler,interpreter")
        on_gpu = self.state.command("profile", "--collect", "compiler,interpreter,ncu_source")
        return (
            f"<p>They come with the compiler and the interpreter, which need no GPU: <code>{escape(anywhere)}</code>. On a GPU "
            f"ncu_source adds the stalls of each line: <code>{escape(on_gpu)}</code>.</p>"
        )

    def update(self) -> None:
        if self.shown is None:
            self.say_nothing(topic.NOTHING)
            return
        measured = self.state.answer(recordings.MEASURED_LINES) or self.shown
        kernel = self.state.kernel
        own = self.shown.loaded is self.state.loaded and not self.shown.summary.recorded
        # Values of older code do not belong to today's lines.
        former = measured.changed(kernel) and not self.shown.changed(kernel)
        known = {one.origin_of(kernel): one for one in (self.shown, measured)}
        self._recording.offer(known, self.shown if own or former else measured)
        self._recording.visible = len(known) > 1
        self._fill()

    def _fill(self) -> None:
        """The lines of the chosen recording."""
        self.shown = self._recording.value
        self.say_whose()
        lines = self.loaded_run.lines
        found = lines[lines["kernel"] == self.state.kernel]
        problem, anew = frames.largest_problem(self.usual), self.elsewhere()
        self._choices.fill(found, problem, 1 if self.state.narrow else 3, self.state.chosen, anew=anew)

    def _pick(self) -> None:
        parts = dict(zip(KernelCase._fields, self._choices.case, strict=True))
        self.choose(self._choices.open, **parts)

    def _open(self) -> None:
        """The chosen launch's source and values."""
        rows, loaded = self._choices.rows, self.loaded_run
        texts = {file: loaded.source_text(self.state.kernel, file) for file in topic.files(rows)}
        self._file = next((file for file, text in texts.items() if text is not None), next(iter(texts)))
        self._text = texts[self._file]
        missing = html_text.notice("warning", "No source text:", topic.NO_TEXT.format(self._file))
        self.no_text.object = missing if self._text is None else ""
        self.table.fill(topic.listed(rows))
        impl, direction, workload, config = self._choices.case
        case, launch = Case(self.state.kernel, impl, direction, workload, config), self._choices.launch
        self._compiled = listings.of_launch(loaded.folder, case, launch.function, launch.number)
        self.layouts.show(self._compiled.transfers if self._compiled else (), self.look)
        self._draw()

    def _draw(self) -> None:
        """The source with the chosen columns, and the chosen stage."""
        rows, columns, text = self._choices.rows, self._choices.columns, self._text or ""
        hot = topic.hottest(rows, columns[0], self._file) if columns else None
        own_lines = rows.loc[rows["file"] == self._file, "line"]
        left = code_pair.source(text, self._file, rows, columns, topic.excerpt(text, own_lines))
        others = code_pair.elsewhere(rows, self._file, columns)
        markup = code_pair.pair(left + others, self._assembly(), self.look)
        column = columns[0].text if columns else ""
        shown, asked = self._choices, self.state.standing
        launched = kernel_cases.functions(self.state.table, asked) if asked else ()
        self.say(
            topic.sentence(
                shown.launch.label, hot, column, apart=bool(others), case=shown.case, asked=asked, launched=launched
            )
        )
        # Keep the chosen line as long as the launch has it.
        line = self.code.line if self.code.line in own_lines.array else hot[0] if hot else 0
        self.code.param.update(line=line, markup=markup)

    def _assembly(self) -> str:
        stages, stage = self._compiled.stages if self._compiled else {}, self.code.stage
        code = compiled_text.read(stage, stages.get(stage, ""), PurePosixPath(self._file).name)
        return code_pair.assembly(stage, stages, code, _NO_ASSEMBLY)
