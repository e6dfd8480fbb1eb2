"""Compare: speedup of the open run over baselines, other runs or implementations."""

from __future__ import annotations

from typing import Any

import pandas as pd
import panel_material_ui as pmui
from tilescope.models.compare import WRONG

from tilescope_dashboard.components import html_text, layout
from tilescope_dashboard.components.charts import chart
from tilescope_dashboard.components.tables import table
from tilescope_dashboard.data import run_cache, url_state
from tilescope_dashboard.data.recordings import Recording
from tilescope_dashboard.figures.compare import compare
from tilescope_dashboard.session.scheduling import next_tick
from tilescope_dashboard.topics import baselines
from tilescope_dashboard.topics import compare as topic
from tilescope_dashboard.topics.sentence import Sentence
from tilescope_dashboard.views.base import View
from tilescope_dashboard.views.code_changes import ChangedCode, CompiledChange


class Compare(View):
    """The address holds what is compared: runs, or ``RUN:IMPLEMENTATION``, which is compared with the run's ``triton``; where it
    names none, that is the usual one. The findings stand beside those of a baseline run.
    """

    name_in_address, title = "compare", "Compare"
    of_other_runs = True

    def build(self) -> list[Any]:
        self.said, self.changes, self.compiled = html_text.pane(), ChangedCode(self.state), CompiledChange(self.state)
        self._others = pmui.MultiChoice(
            label="Compare with", options={}, sizing_mode="stretch_width", styles={"flex": "1 1 400px"}, margin=(4, 8)
        )
        # The button that was pressed keeps the focus and also leads back.
        self._earlier = pmui.Button(variant="outlined", size="small", width=230, margin=(4, 8), visible=False)
        self._earlier.on_click(lambda _: next_tick(self._choose_earlier))
        self.chart, self.table = chart(), table(topic.COLUMNS)
        self.table.picked = self._pick
        self._filling = False
        self._others.param.watch(lambda event: self._filling or self._choose(list(event.new)), "value")
        self.state.param.watch(self._changed, "compared")
        self.drawn = layout.column(self.chart)
        self.results = layout.column(self.changes, self.compiled, self.saved(self.table))
        return [layout.beside(self._others, self._earlier), self.said, self.drawn, self.caption, self.results]

    def _against(self, chosen: list[str]) -> tuple[pd.DataFrame, list[str]]:
        """The comparison with the baselines, cached for the next page."""
        loaded, kernel = self.state.loaded, self.state.kernel

        def found() -> tuple[pd.DataFrame, list[str]]:
            return topic.against(loaded, kernel, chosen, run_cache.open_cached)

        return run_cache.kept_against(loaded, chosen, ("against", kernel, *chosen), found) if loaded else found()

    def update(self) -> None:
        state = self.state
        options = baselines.possible(state.loaded, state.kernel, state.runs, state.catalog)
        known = set(options.values())
        asked = {
            token: token if token in known else baselines.meant(token, state.loaded, state.kernel)
            for token in state.compared
        }
        chosen = list(dict.fromkeys(token for token in asked.values() if token in known))
        usual = baselines.usual(state.loaded, state.kernel, state.runs)
        declared = baselines.declared(state.loaded, state.kernel)
        chosen = chosen or [token for token in usual if token in known]
        self._filling = True
        self._others.param.update(options=options, value=chosen)
        self._filling = False
        earlier, shown = baselines.before(state.loaded, state.kernel, state.runs), ""
        if earlier and earlier not in chosen:
            shown = "Compare with the run before"
        elif earlier and usual and usual != [earlier]:
            shown = f"Compare with {baselines.name_of(usual[0], (), declared)} again"
        self._earlier.param.update(label=shown, visible=bool(shown))
        origins = (Recording(run, state.loaded).origin for run in state.runs if state.loaded and run.id == state.run)
        self.origins = [next(origins, "")]
        rows, said = self._against(chosen)
        lacking = [run.id for run in state.runs if run.id in asked and asked[run.id] not in known]
        said = [*said, *(f"Not compared: {run} has no {state.kernel}." for run in lacking)]
        renamed = [url_state.parts(token)[2] for run, token in asked.items() if run != token in known]
        names = [baselines.name_of(token, state.runs, declared) for token in chosen]
        changed = [self.changes.show(chosen), self.compiled.show(rows)]
        alone = topic.ALONE if usual == [earlier] else ""
        alone += "".join(f"{name} has the same cases there: taken as renamed. " for name in renamed)
        about = alone + baselines.explained(names, declared) + baselines.said(rows, state.chosen, declared)
        title, text = topic.sentence(state.kernel, names, rows, about)
        # Without times, the findings and the code tell whether a change helped.
        more = [] if rows["speedup"].notna().any() else filter(None, changed)
        # What is wrong with the candidate comes first.
        parts = [title, *more] if rows["verdict"].eq(WRONG).any() else [*more, title]
        self.say(Sentence("; ".join(parts), text))
        # Without a baseline the text says what to do.
        self.drawn.visible = bool(chosen) and (bool(rows["speedup"].notna().any()) or not self.changes.layout.visible)
        notes = [line.partition(": ") for line in said]
        self.said.object = "".join(html_text.notice("info", f"{head}:", rest) for head, _, rest in notes)
        self.results.visible = bool(chosen)
        self.chart.object = compare(rows, state.look)
        self._rows = rows
        # Leave out the column of runs if there is one, and columns without times, to give the others room.
        own = ["baseline_run"] if rows["baseline_run"].eq(rows["run"]).all() else []
        self.table.hide(own + [name for name in topic.TIMES if rows[name].isna().all()])
        self.table.fill(rows)
        self.table.choose(next(map(int, baselines.of_case(rows, state.chosen).index), None))

    def _choose(self, tokens: list[str]) -> None:
        """Compare with these; with the default baseline if there is none."""
        if tokens:
            self.state.compared = tokens
        else:
            next_tick(self._choose_none)

    def _choose_none(self) -> None:
        self.state.compared, self.fresh = [], False
        self._changed()

    def _choose_earlier(self) -> None:
        earlier = baselines.before(self.state.loaded, self.state.kernel, self.state.runs)
        if earlier in self.state.compared:
            self._choose_none()
        else:
            self.state.compared = [earlier]

    def _pick(self, place: int | None) -> None:
        """Choose the row's case for all views."""
        if place is not None:
            self.choose(lambda: None, **baselines.of_row(self._rows.iloc[place]))
