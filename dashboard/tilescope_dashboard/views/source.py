"""Source: a kernel's code with what each line costs, beside what it was compiled to."""

from __future__ import annotations

from html import escape
from pathlib import PurePosixPath
from typing import Any

import panel_material_ui as pmui
from tilescope.collectors import compiled_text
from tilescope.runs import listings
from tilescope.table.case import Case

from tilescope_dashboard.components import code_pair, html_text, layout
from tilescope_dashboard.components.charts import chart
from tilescope_dashboard.components.choice import Choice
from tilescope_dashboard.components.tables import table
from tilescope_dashboard.data import frames, kernel_cases, recordings
from tilescope_dashboard.data.kernel_cases import KernelCase
from tilescope_dashboard.figures.layout import layout as draw_layout
from tilescope_dashboard.topics import layouts
from tilescope_dashboard.topics import source as topic
from tilescope_dashboard.views.base import View

_NO_ASSEMBLY = (
    "No assembly of this case: a recording keeps the largest default case's, and a run those that it compiled."
)


class Source(View):
    """One launch of one case at a time, with the chosen columns of values of its lines, else the default ones; below it the layout of
    a tile that it moves. A case with measured lines comes first, and a recording with such lines can be chosen.
    """

    name_in_address, title, question = "source", "Source", recordings.LINES
    collectors = ("compiler", "interpreter")

    def build(self) -> list[Any]:
        # Each selector narrows the next.
        self._recording, self._case = Choice("lines of", 280, self._fill), Choice("case", 320, self._pick)
        self._launch, self._picked, self._filling = Choice("launch", 220, self._open_launch), False, False
        self._columns = pmui.MultiChoice(
            label="columns", options={}, styles={"flex": "1 1 400px"}, sizing_mode="stretch_width", margin=(4, 8)
        )
        self._columns.param.watch(lambda _: self._filling or self._pick_columns(), "value")
        self.no_text, self.table = html_text.pane(), table(topic.COLUMNS)
        self.code = code_pair.CodePair(sizing_mode="stretch_width", margin=(4, 8))
        self.code.param.watch(lambda _: self._draw(), "stage")
        self.about_tile, self.tile = html_text.pane(), chart()
        self._transfer = Choice("transfer", 320, self._draw_tile)
        self.tiles = layout.column(self.about_tile, self._transfer, self.tile, visible=False)
        choices = layout.beside(self._recording, self._case, self._launch, self._columns)
        return [choices, self.no_text, self.code, self.caption, self.tiles, self.saved(self.table, "lines")]

    def otherwise(self) -> str:
        on_gpu = self.state.command("profile", "--collect", "compiler,interpreter,ncu_source")
        return f"{super().otherwise()} On a GPU ncu_source adds the stalls of each line: <code>{escape(on_gpu)}</code>."

    def update(self) -> None:
        if self.shown is None:
            self.say_nothing(topic.NOTHING)
            return
        measured = self.state.answer(recordings.MEASURED_LINES) or self.shown
        kernel = self.state.kernel
        known = {one.origin_of(kernel): one for one in (self.shown, measured)}
        self._recording.offer(known, self.shown)
        self._recording.visible = len(known) > 1
        self._fill()

    def _fill(self) -> None:
        """The cases of the chosen recording. The chosen one stays if it is among them, unless the page's case has changed."""
        self.shown = self._recording.value
        self.say_whose()
        lines, case, anew = self.loaded_run.lines, self.state.chosen, self.elsewhere()
        self._found = lines[lines["kernel"] == self.state.kernel]
        options, before = topic.cases(self._found), self._case.value
        problems = [KernelCase(*one).problem for one in options.values()]
        problem = frames.first_problem(self.usual, problems, case) or ("", "")
        first = tuple(case) if case and case in options.values() else topic.first_case(self._found, problem)
        self._case.offer(options, before if before in options.values() and not anew else first, anew=anew)
        self._open()

    def _pick(self) -> None:
        self.choose(self._open, **dict(zip(KernelCase._fields, self._case.value, strict=True)))

    def _open(self) -> None:
        """The chosen case's launches."""
        self._of_case = topic.of_case(self._found, self._case.value)
        launches, before = {launch.label: launch for launch in topic.launches(self._of_case)}, self._launch.value
        self._launch.offer(launches, before if before in launches.values() else next(iter(launches.values())))
        self._open_launch()

    def _open_launch(self) -> None:
        """The chosen launch's source, values and tiles."""
        launch, loaded = self._launch.value, self.loaded_run
        self._rows = rows = topic.of_launch(self._of_case, launch)
        known = topic.line_columns(rows)
        kept = [column for column in self._columns.value if self._picked and column in known]
        value = kept or topic.first_columns(known, 1 if self.state.narrow else 3)
        self._filling = True
        self._columns.param.update(options={column.text: column for column in known}, value=value)
        self._filling = False
        texts = {file: loaded.source_text(self.state.kernel, file) for file in topic.files(rows)}
        self._file = next((file for file, text in texts.items() if text is not None), next(iter(texts)))
        self._text = texts[self._file]
        missing = html_text.notice("warning", "No source text:", topic.NO_TEXT.format(self._file))
        self.no_text.object = missing if self._text is None else ""
        self.table.fill(topic.listed(rows))
        case = Case(self.state.kernel, *self._case.value)
        self._compiled = listings.of_launch(loaded.folder, case, launch.function, launch.number)
        transfers = layouts.options(self._compiled.transfers if self._compiled else ())
        self.tiles.visible = bool(transfers)
        self._transfer.offer(transfers, next(iter(transfers.values()), None))
        if transfers:
            self._draw_tile()
        self._draw()

    def _draw_tile(self) -> None:
        """The layout of the chosen tile between registers and shared memory."""
        said = layouts.sentence(self._transfer.value)
        self.about_tile.object = html_text.subheading(said.title, said.text)
        self.tile.object = draw_layout(layouts.elements(self._transfer.value), self.look)

    def _pick_columns(self) -> None:
        self._picked = True
        self._draw()

    def _draw(self) -> None:
        """The source with the chosen columns, and the chosen stage."""
        rows, columns, text, launch = self._rows, self._columns.value, self._text or "", self._launch.value
        hot, own_hot = (topic.hottest(rows, columns[0], file) if columns else None for file in ("", self._file))
        own_lines = rows.loc[rows["file"] == self._file, "line"]
        left = code_pair.source(text, self._file, rows, columns, topic.excerpt(text, own_lines))
        others = code_pair.elsewhere(rows, self._file, columns)
        markup = code_pair.pair(left + others, self._assembly(), self.look)
        column = columns[0].text if columns else ""
        asked, shown = self.state.standing, self._case.value
        launched = kernel_cases.functions(self.state.table, asked) if asked else ()
        self.say(
            topic.sentence(
                launch.label,
                hot,
                column,
                file=self._file,
                apart=bool(others),
                case=shown,
                asked=asked,
                launched=launched,
            )
        )
        # Keep the chosen line as long as the launch has it.
        line = self.code.line if self.code.line in own_lines.array else own_hot[1] if own_hot else 0
        self.code.param.update(line=line, markup=markup)

    def _assembly(self) -> str:
        stages, stage = self._compiled.stages if self._compiled else {}, self.code.stage
        code = compiled_text.read(stage, stages.get(stage, ""), PurePosixPath(self._file).name)
        return code_pair.assembly(stage, stages, code, _NO_ASSEMBLY)
