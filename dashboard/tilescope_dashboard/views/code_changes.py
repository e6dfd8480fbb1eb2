"""The code of the state's case beside that of another run, kernel or implementation: its source with the findings, and what it was
compiled to."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape
from itertools import zip_longest

import pandas as pd
from tilescope.collectors.compiled_text import STAGES
from tilescope.models import baseline, code_change, compare
from tilescope.models.code_change import Launch, LineCode
from tilescope.runs import store

from tilescope_dashboard.components import html_text, layout, version_panels
from tilescope_dashboard.components.choice import Choice
from tilescope_dashboard.data import run_cache
from tilescope_dashboard.session.state import State
from tilescope_dashboard.topics import baselines, changed_findings, versions
from tilescope_dashboard.topics.changed_findings import Side
from tilescope_dashboard.topics.versions import MOVED, WORSE, Value


class ChangedCode(layout.Part):
    """The source's difference where both runs kept it, and the findings that came or went."""

    def __init__(self, state: State) -> None:
        super().__init__()
        self.state, self.layout = state, html_text.pane("", version_panels.CSS)

    def show(self, tokens: Sequence[str]) -> str:
        """Show the findings against the first of ``tokens`` that has the case. Returns a summary of the changes.

        An implementation without code of its own, such as PyTorch's, has none to compare.
        """
        loaded, case = self.state.loaded, self.state.standing
        self.layout.visible = False
        if loaded is None or case is None:
            return ""
        own = Side(loaded, self.state.kernel, case)
        for side, token in changed_findings.sides(own, tokens, run_cache.open_cached):
            if side.case in run_cache.cases_of(side.loaded, side.kernel):
                return self._compare(side, own, token)
        return ""

    def _compare(self, side: Side, own: Side, token: str) -> str:
        before, after = changed_findings.code(side, own)
        other = side.case.impl != own.case.impl
        found = [run_cache.findings(one.loaded, (one.kernel, *one.case)) for one in (side, own)]
        if not (before and after) and (other or not any(found)):
            return ""
        names = baselines.declared(own.loaded, own.kernel)
        name = baselines.name_of(token, self.state.runs, names)
        same = baselines.name_of(own.loaded.run.id, self.state.runs, {})
        now = baseline.called(own.case.impl, names) if other else own.kernel if side.kernel != own.kernel else same
        files = None if not (before and after) else {} if before == after else versions.source(before, after, {})
        head = f"{name} → {now}", "the same source" if before == after else "source"
        self.layout.object = version_panels.panels(files, head, found, self.state.theme == "dark")
        self.layout.visible = True
        return changed_findings.count(changed_findings.changed(*found))


#: The most rows of code that the page holds.
_ROWS = 600
_READING = "A count is how often an operation stands in the code. Source lines whose operations differ follow, with both codes."


class CompiledChange(layout.Part):
    """Hidden where the case has no other compilation, or the same one."""

    def __init__(self, state: State) -> None:
        super().__init__()
        self.state, self.counts, self.code = (
            state,
            html_text.pane("", version_panels.CSS),
            html_text.pane("", version_panels.CSS),
        )
        self.launch, self.stage = Choice("launch", 320, self._draw), Choice("stage", 120, self._draw)
        self._launches = list[Launch]()
        self.layout = layout.column(self.counts, layout.beside(self.launch, self.stage), self.code)

    def show(self, rows: pd.DataFrame) -> str:
        """Show the first of ``rows`` (those of ``compare.compare``) that is of the state's case and of other code.

        Returns a summary of the change.
        """
        own = baselines.of_case(rows, self.state.standing)
        apart = own["baseline_run"].ne(own["run"]) | own["baseline_impl"].ne(own["impl"])
        compiled = (self._compiled(own.loc[[place]]) for place in own.index[apart])
        self._launches = next(filter(None, compiled), [])
        for part in (self.layout, self.counts, self.code):
            part.visible = bool(self._launches)
        if self._launches:
            names = {f"{n + 1}. {one.candidate.function}": n for n, one in enumerate(self._launches)}
            self.launch.offer(names, 0, anew=True)
            self._draw()
        return code_change.sentence(self._launches) if self._launches else ""

    def _compiled(self, row: pd.DataFrame) -> list[Launch]:
        """The launches of the row's case whose code differs, cached with the open run."""
        loaded = self.state.loaded
        if loaded is None:
            return []

        def found() -> list[Launch]:
            other = run_cache.open_cached(store.find(row["baseline_run"].iloc[0]))
            return [one for one in code_change.launches(compare.Side(other), compare.Side(loaded), row) if one.moved]

        named = tuple(row[["baseline_run", "baseline_kernel", "baseline_impl"]].iloc[0]), self.state.standing
        try:
            return run_cache.kept(loaded, ("compiled", *named), found)
        except (ValueError, OSError):  # a notice of Compare says why the other run cannot be read
            return []

    def _draw(self) -> None:
        one, dark = self._launches[self.launch.value or 0], self.state.theme == "dark"
        values = []
        for change in one.moved:
            before, now, moved = change.texts()
            said = ", ".join(filter(None, [moved, f"line {change.line}" if change.line else ""]))
            values.append(Value(change.label, now, before, said, WORSE if change.worse else MOVED))
        title = f"Compiled code: {code_change.sentence(self._launches)}"
        self.counts.object = html_text.subheading(title, _READING) + version_panels.values(values, dark)
        known = {
            label: stage
            for stage, label in STAGES.items()
            if one.baseline.stages.get(stage) and one.candidate.stages.get(stage)
        }
        self.stage.offer(known, "sass" if "sass" in known.values() else next(iter(known.values()), None))
        lines = list(code_change.side_by_side(one.baseline, one.candidate, self.stage.value)) if known else []
        text = self.state.loaded.source_text(self.state.kernel, one.candidate.file) if self.state.loaded else None
        same = f"No source line has other operations in {STAGES[self.stage.value]}." if known else ""
        self.code.object = _sides(lines, (text or "").splitlines()) if lines else html_text.paragraph(same)


def _sides(lines: Iterable[LineCode], source: list[str]) -> str:
    """Both codes of each source line beside each other, below the line and its operations."""
    rows = list[str]()
    for one in lines:
        text = source[one.line - 1].strip() if one.line <= len(source) else ""
        said = ", ".join(f"{name} {old} → {new}" for name, old, new in one.operations)
        rows.append(
            f'<tr class="gap"><th scope="row">{one.line}</th><td></td><td colspan="2"><code>{escape(text)}</code><br>{escape(said)}</td></tr>'
        )
        rows += [
            f"<tr><td></td><td></td><td><code>{escape(old)}</code></td><td><code>{escape(new)}</code></td></tr>"
            for old, new in zip_longest(one.baseline, one.candidate, fillvalue="")
        ]
    left = f"<p>{len(rows) - _ROWS} more rows: tilescope compare --stage has them.</p>" if rows[_ROWS:] else ""
    return (
        '<section class="panel"><h3>Code by source line</h3>'
        '<div class="lines" role="region" tabindex="0" aria-label="Compiled code"><table aria-label="Code by source line"><thead><tr>'
        '<th scope="col">line</th><td></td><th scope="col">baseline</th><th scope="col">candidate</th></tr></thead>'
        f"<tbody>{''.join(rows[:_ROWS])}"
        f"</tbody></table>{left}</div></section>"
    )
