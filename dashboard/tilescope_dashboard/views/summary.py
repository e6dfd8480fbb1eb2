"""Summary: the verdict on one case of the kernel, and its evidence. The view that opens first."""

from __future__ import annotations

import functools
from typing import Any

import pandas as pd
from tilescope.hardware.roofs import all_roofs
from tilescope.models import roofline as model
from tilescope.runs.store import LoadedRun

from tilescope_dashboard.components import cards, html_text
from tilescope_dashboard.components.charts import chart, side_by_side
from tilescope_dashboard.data import recordings, run_cache
from tilescope_dashboard.data.kernel_cases import KernelCase
from tilescope_dashboard.figures.roofline import roofline
from tilescope_dashboard.figures.speed_of_light import speed_of_light
from tilescope_dashboard.figures.style import heading
from tilescope_dashboard.session.scheduling import once_loaded
from tilescope_dashboard.topics import baselines
from tilescope_dashboard.topics import roofline as roofline_topic
from tilescope_dashboard.topics import summary as topic
from tilescope_dashboard.views.base import View

#: Most causes shown; Advice has all.
_MOST = 3


class Summary(View):
    """The verdict, numbers, bars, a small roofline and the first causes. Bars from another recording name it."""

    name_in_address, title, question = "summary", "Summary", recordings.ANYTHING
    collectors = ("compiler", "interpreter")
    of_other_runs = True

    def build(self) -> list[Any]:
        self.causes = html_text.pane("", cards.CSS)
        self.light, self.roofline = chart(330), chart(330)
        self._causes = ""
        self.state.param.watch(self._changed, "compared")
        return [side_by_side([self.light, self.roofline]), self.causes]

    def update(self) -> None:
        state, loaded, case = self.state, self.state.loaded, self.state.standing
        if loaded is None or case is None:
            self.say_nothing(topic.verdict(state.kernel, None, ()))
            return
        kernel, compared = state.kernel, tuple(state.compared)
        row = run_cache.kept(loaded, ("row", kernel, case), lambda: _row(loaded, kernel, case))
        row = row and {**row, "impl": self.look.called(row["impl"])}
        found = run_cache.findings(loaded, (kernel, *case))
        if found and found[0].fault:
            self.body.visible = False
            self.say(topic.verdict(kernel, row, found))
            return
        usual = tuple(baselines.usual(loaded, kernel, state.runs))
        against, said = run_cache.kept_against(
            loaded, compared or usual, ("baseline", kernel, case, compared, usual),
            lambda: topic.baseline(loaded, kernel, case, compared, run_cache.open_cached, usual=usual),
        )  # fmt: skip
        notices = "".join(html_text.notice("info", "Baseline:", line) for line in said)
        stats = html_text.stats(topic.stats(row, against, found)) if row else ""
        self.say(topic.verdict(kernel, row, found, against=against), stats=stats + notices)
        self._draw_roofline(loaded, case)
        left = f" These are {_MOST} of {len(found)}: Why has them all." if len(found) > _MOST else ""
        text = f"Estimates are upper limits: fix one, then measure again.{left}"
        head = html_text.subheading("Causes, by potential speedup", text)
        self._causes = head + cards.cards(found[:_MOST]) if found else ""
        # Bars of the open run, else of the best recording with counters, which may have to be read first.
        shares = _shares(loaded, kernel, case)
        self._show_light(shares)
        if shares.empty:
            once_loaded(functools.partial(self._borrow, case))

    def _draw_roofline(self, loaded: LoadedRun, case: KernelCase) -> None:
        kernel, look = self.state.kernel, self.state.look
        points = run_cache.kept(loaded, ("roofline", kernel, case), lambda: _points(loaded, kernel, case))
        # A kernel that computes nothing has no point.
        self.roofline.visible = len(points) > 0 and bool(points["intensity"].gt(0).any())
        if self.roofline.visible:
            plot = roofline(points, all_roofs(loaded.run.device), look)
            # Lower by a fixed amount: the height that the legend's rows added stays, or a phone had no room for the points.
            plot.height -= 160
            heading(plot, look, "Roofline")
            self.roofline.object = plot

    def _borrow(self, case: KernelCase) -> None:
        state = self.state
        if state.standing != case or state.loaded is None:
            return
        best = state.answer(recordings.COUNTERS)
        shares = _shares((best.loaded if best else state.loaded), state.kernel, case)
        whose = html_text.whose(f"{best.origin_of(state.kernel)} (speed of light)" if best else "")
        command = state.command("profile", "--collect", "ncu")
        how = f" '{command}' counts them there." if command else ""
        self._show_light(shares, html_text.paragraph(topic.NOT_COUNTED + how) if shares.empty else whose)

    def _show_light(self, shares: pd.DataFrame, whose: str = "") -> None:
        self.light.visible = len(shares) > 0
        if self.light.visible:
            self.light.object = speed_of_light(shares, topic.PARTS, self.state.look)
        self.causes.object = whose + self._causes


def _row(loaded: LoadedRun, kernel: str, case: KernelCase) -> dict[str, Any] | None:
    """The case's row of ``summary.summarise``. One config of a sweep is none of the run's summary: it is summarised alone."""
    rows = run_cache.summaries(loaded)
    here = rows[(rows[list(run_cache.CASE)] == [kernel, *case]).all(axis="columns")]
    found = here if len(here) else topic.alone(loaded, kernel, case)
    return {str(name): value for name, value in found.iloc[0].items()} if len(found) else None


def _points(loaded: LoadedRun, kernel: str, case: KernelCase) -> pd.DataFrame:
    """Points of the roofline through HBM: of the case's problem, all implementations, the case's own last, which lies on top."""
    rows = loaded.table
    rows = rows[rows["kernel"].eq(kernel) & rows["workload"].eq(case.workload) & rows["pass"].eq(case.direction)]
    points = model.points(rows[rows["config"].eq(case.config)], loaded.run.device, loaded.run.kernels)
    shown = points[roofline_topic.chosen(points)] if len(points) else points
    return shown.sort_values("impl", key=lambda impl: impl.eq(case.impl), kind="stable").reset_index(drop=True)


def _shares(loaded: LoadedRun, kernel: str, case: KernelCase) -> pd.DataFrame:
    return run_cache.kept(
        loaded, ("speed of light", kernel, case),
        lambda: topic.speed_of_light(topic.values(loaded, kernel, case), loaded.run.device),
    )  # fmt: skip
