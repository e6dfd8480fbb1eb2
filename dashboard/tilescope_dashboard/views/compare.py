"""Compare: what changed from the open run to others, or from one implementation of it to another."""

from __future__ import annotations

import functools
from typing import Any

import pandas as pd
import panel as pn
import panel_material_ui as pmui
from tilescope.models import compare as model
from tilescope.runs import store

from tilescope_dashboard.components import html_text
from tilescope_dashboard.components.charts import chart
from tilescope_dashboard.components.tables import fill, table
from tilescope_dashboard.data.run_cache import open_cached
from tilescope_dashboard.figures.compare import compare
from tilescope_dashboard.session.scheduling import in_turn
from tilescope_dashboard.topics.compare import headline
from tilescope_dashboard.views.base import View

_COLUMNS = {
    "pass": ("pass", "text"),
    "workload": ("workload", "text"),
    "impl": ("implementation", "text"),
    "other_impl": ("baseline", "text"),
    "other_run": ("its run", "text"),
    "time": ("GPU time", "second"),
    "other_time": ("baseline's", "second"),
    "ratio": ("speedup", "times"),
    "ratio_low": ("95 %, from", "times"),
    "ratio_high": ("to", "times"),
    "verdict": ("the baseline is", "text"),
    "bytes": ("HBM bytes", "byte"),
    "other_bytes": ("baseline's", "byte"),
    "registers": ("registers", "count"),
    "other_registers": ("baseline's", "count"),
    "shared_memory": ("shared", "byte"),
    "other_shared_memory": ("baseline's", "byte"),
    "theoretical_occupancy": ("occupancy", "ratio"),
    "other_theoretical_occupancy": ("baseline's", "ratio"),
    "source": ("clock", "text"),
}
#: How many runs are offered to compare with in one click.
_OFFERED = 4


class Compare(View):
    """The address holds what is compared: runs, or ``RUN:IMPLEMENTATION``, which is held against the run's ``triton``."""

    name_in_address, title = "compare", "Compare"

    def build(self) -> list[Any]:
        self._head, self._said = html_text.pane(), html_text.pane()
        self._others = pmui.MultiChoice(label="Compare with", options={}, sizing_mode="stretch_width", margin=(4, 8))
        self._chart, self._table = chart(), table(_COLUMNS)
        self._first = pn.FlexBox(sizing_mode="stretch_width", margin=0)
        self._others.param.watch(lambda event: self.state.param.update(compared=list(event.new)), "value")
        self.state.param.watch(self._changed, ["compared", "runs"])
        self._body = pn.Column(self._chart, self.saved(self._table), sizing_mode="stretch_width", margin=0)
        return [self._head, self._others, self._first, self._said, self._body]

    def update(self) -> None:
        options = self._options()
        chosen = [token for token in self.state.compared if token in options.values()]
        self._others.param.update(options=options, value=chosen)
        frames, said = [], []
        for token in chosen:
            rows, lines = self._against(token)
            frames.append(rows)
            said += lines
        rows = pd.concat(frames, ignore_index=True) if frames else pd.DataFrame(columns=list(model.COLUMNS))
        rows = rows.sort_values("ratio", ascending=False, kind="stable", na_position="last", ignore_index=True)
        self._head.object = headline(self.state.kernel, [self._name(token) for token in chosen], rows)
        self._said.object = "".join(
            html_text.notice("info", line.partition(": ")[0] + ":", line.partition(": ")[2]) for line in said
        )
        self._body.visible = bool(chosen)
        # Implementations of this run, where there are any: other runs may hold other cases.
        offered = [option for option in options.items() if ":" in option[1]] or list(options.items())[:_OFFERED]
        self._first.objects = [] if chosen else [self._offer(*option) for option in offered]
        self._chart.object = compare(rows, self.state.look, of_base=True)
        fill(self._table, rows)

    def _offer(self, name: str, token: str) -> pmui.Button:
        """A comparison in one click, where nothing is compared yet."""
        button = pmui.Button(label=f"with {name}", variant="outlined", size="small", margin=(4, 8))
        button.on_click(lambda _: in_turn(functools.partial(self.state.param.update, compared=[token])))
        return button

    def _options(self) -> dict[str, str]:
        """What can be compared, as people read it, by what the address holds."""
        loaded, kernel = self.state.loaded, self.state.kernel
        if loaded is None or kernel not in loaded.run.kernels:
            return {}
        mine = self.state.table
        impls = sorted(set(mine.loc[mine["config"] == "", "impl"]) - {"triton"})
        own = {f"{impl}, in this run": f"{loaded.run.id}:{impl}" for impl in impls if "triton" in set(mine["impl"])}
        others = [s for s in self.state.runs if s.id != loaded.run.id and not s.error and kernel in s.kernels]
        return own | {f"{s.started[:16].replace('T', ' ')} {s.title} ({s.device})": s.id for s in others}

    def _name(self, token: str) -> str:
        """What a title calls the other side: an implementation, or a run."""
        run, _, impl = token.partition(":")
        return impl or next((s.title for s in self.state.runs if s.id == run and s.title), run)

    def _against(self, token: str) -> tuple[pd.DataFrame, list[str]]:
        run, _, impl = token.partition(":")
        base = model.Side(self.state.loaded, "triton" if impl else "")
        nothing = pd.DataFrame(columns=list(model.COLUMNS)).astype(model.COLUMNS)
        try:
            other = model.Side(open_cached(store.find(run)), impl)
            rows = model.compare(base, other, self.state.kernel)
        except (store.StoreError, model.CompareError, OSError) as error:
            return nothing, [f"{token}: {error}"]
        said = [f"{other.name}: no times are compared, {line}" for line in model.obstacles(base, other)]
        return rows, said + [f"{other.name}: {line}" for line in model.changes(base, other)]
