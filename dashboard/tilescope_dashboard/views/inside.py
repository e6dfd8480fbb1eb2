"""Inside: what each warp of a program does, what it waits for, the critical path, and the time of each source line."""

from __future__ import annotations

from typing import Any

import pandas as pd
import panel as pn
import panel_material_ui as pmui
from tilescope.files.bounded_reading import Unreadable
from tilescope.models import lanes as model
from tilescope.table.case import Case

from tilescope_dashboard.components import html_text, layout
from tilescope_dashboard.components.charts import chart
from tilescope_dashboard.components.choice import Choice
from tilescope_dashboard.components.tables import table
from tilescope_dashboard.components.trace_links import kept
from tilescope_dashboard.data import kernel_cases, run_cache
from tilescope_dashboard.data.recordings import Question, rows_of
from tilescope_dashboard.figures import lanes as figures
from tilescope_dashboard.topics import baselines
from tilescope_dashboard.topics import lanes as topic
from tilescope_dashboard.topics.changed_findings import Side, sides
from tilescope_dashboard.topics.sentence import Sentence
from tilescope_dashboard.views.activity_strip import ActivityStrip
from tilescope_dashboard.views.base import View

#: What the lanes are drawn along.
_TIME, _STEPS = "time", "steps of the loop"
_Lanes = tuple[model.Lanes, Side]
#: A launch's programs, lines and headline.
_Made = tuple[dict[int, model.Program], pd.DataFrame, Sentence]


class Inside(View):
    """The lanes of one sampled program of a launch, of the case nearest to the state's; those of the baseline's first program below."""

    name_in_address, title, question = "inside", "Inside", Question(rows_of(topic.NEEDED))
    collectors = ("lanes",)

    def build(self) -> list[Any]:
        self.chart, self.other, self.traces = chart(), chart(), layout.column()
        self.beside, self.activity = html_text.pane(), ActivityStrip()
        self.table = table(topic.LINES, pagination="remote")
        self._program, self._along = Choice("program", 260, self._draw), Choice("along", 150, self._draw)
        self._filter = pmui.TextInput(label="operation or line contains", size="small", width=210)
        self._filter.param.watch(lambda _: self._draw(self.chart.object and self.chart.object.x_range), "value")
        self.state.param.watch(self._changed, "compared")
        choices = pn.FlexBox(self._program, self._along, self._filter, gap="6px")
        below = [self.beside, self.other, self.traces, self.saved(self.table, "lines")]
        return [self.activity, choices, self.chart, self.caption, *below]

    def update(self) -> None:
        self._found = self._lanes_of(self.loaded, self.state.kernel, self.state.standing)
        if self._found is None:
            rows = self.usual
            self.say_nothing(topic.GONE if rows["metric"].isin(topic.NEEDED).any() else topic.NOTHING)
            return
        lanes, own = self._found
        self.activity.show(own.loaded, Case(own.kernel, *own.case), self.look)
        tokens = self.state.compared if self.loaded is self.state.loaded else ()
        self._baseline, self.beside.object = None, ""
        for side, token in sides(own, tokens, run_cache.open_cached):
            try:
                found = self._lanes_of(*side)
            except Unreadable as error:
                self.beside.object = html_text.notice("warning", f"{token} cannot be read.", str(error))
                continue
            if found:
                self._baseline = found, token
                break
        programs = lanes.spans[["launch", "function", "program"]].drop_duplicates()
        several = programs["launch"].nunique() > 1
        labels = {
            (f"{row.function}: " if several else "") + f"program {row.program}": (row.launch, row.program)
            for row in programs.itertuples()
        }
        self._program.offer(labels, next(iter(labels.values())))
        self._program.visible = len(labels) > 1
        self._along.offer([_STEPS, _TIME] if self._baseline else [_TIME], _STEPS if self._baseline else _TIME)
        self._along.visible = self._baseline is not None
        self._draw()

    def _lanes_of(self, loaded: Any, kernel: str, case: kernel_cases.KernelCase | None) -> _Lanes | None:
        """The lanes of the kernel's case that is nearest to this one, cached with the run; None where it has none."""
        if loaded is None:
            return None
        rows = loaded.table[(loaded.table["kernel"] == kernel) & loaded.table["metric"].isin(topic.NEEDED)]
        known = list(kernel_cases.cases(rows).values())
        nearest = kernel_cases.closest(known, case or next(iter(known), kernel_cases.KernelCase("", "", "")))
        if nearest is None:
            return None
        of = Case(kernel, nearest.impl, nearest.direction, nearest.workload, nearest.config)
        found = run_cache.kept(loaded, ("lanes", of), lambda: model.of_case(loaded, of))
        return (found, Side(loaded, kernel, nearest)) if found is not None and len(found.spans) else None

    def _draw(self, seen: Any = None) -> None:
        """Draw the chosen program, zoomed to the ``seen`` range where there is one."""
        if self._found is None or self._program.value is None:
            return
        (_, own), (launch, number) = self._found, self._program.value
        (programs, lines, said), before = self._made(self._found, launch), None
        standing = self.state.standing
        if standing is not None and own.case.problem != standing.problem:
            said = said._replace(text=f"These are the lanes of {own.case.workload}, {own.case.direction}. {said.text}")
        self.say(said)
        plot = self._picture(programs[number])
        if seen:  # before the browser has the figure
            whole = plot.x_range.start, plot.x_range.end
            plot.x_range.update(start=seen.start, end=seen.end, reset_start=whole[0], reset_end=whole[1])
        self.chart.object = plot
        self.other.visible = self._baseline is not None
        if self._baseline:
            found, token = self._baseline
            others, before, said = self._made(found, int(found[0].spans["launch"].iloc[0]))
            name = baselines.name_of(token, self.state.runs, {})
            self.beside.object = html_text.heading(f"{name}: {said.title}") + html_text.paragraph(said.text)
            self.other.object = self._picture(next(iter(others.values())), self.chart.object.x_range)
        self.beside.visible = bool(self.beside.object)
        self.traces.objects = kept(self.loaded, model.COLLECTOR, Case(own.kernel, *own.case), self.origin)
        self.table.hide([] if self._baseline else list(topic.BEFORE))
        found_lines = topic.listed(lines, before)
        self.table.fill(found_lines[self._chosen(found_lines)])

    def _made(self, found: _Lanes, launch: int) -> _Made:
        """What is made of a launch, cached with the run."""
        (lanes, side), key = found, ("lanes drawn", *found[1][1:], launch)

        def made() -> _Made:
            programs = model.programs(lanes.spans, launch)
            lines = model.by_line(programs.values())
            return programs, lines, topic.sentence(lanes, launch, lines)

        return run_cache.kept(side.loaded, key, made)

    def _picture(self, program: model.Program, along: Any = None) -> Any:
        """The figure of a program, ``along`` another's range of times."""
        steps = self._along.value == _STEPS
        shown = model.by_step(program) if steps else program
        shown = shown._replace(spans=shown.spans.assign(chosen=self._chosen(shown.spans)))
        plot = figures.lanes(shown, self.look, steps=steps)
        plot.x_range = along or plot.x_range
        figures.follow(plot, shown)
        return plot

    def _chosen(self, rows: pd.DataFrame) -> pd.Series:
        """Whether the name of an operation, or its line, has the text."""
        text = self._filter.value or ""
        if not text:
            return pd.Series(True, rows.index)
        named = rows["name"].str.contains(text, case=False, regex=False) | rows["awaits"].str.contains(
            text, case=False, regex=False
        )
        return named | (rows["line"].map(lambda line: f"{line:.0f}" if pd.notna(line) else "") == text)
