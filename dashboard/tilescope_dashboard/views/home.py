"""Home: the library and its claims. Opens when the address names nothing."""

from __future__ import annotations

import functools
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any

import pandas as pd
import panel_material_ui as pmui
import param
from bokeh.models.widgets.tables import HTMLTemplateFormatter
from tilescope.models import claims as model
from tilescope.models import faults
from tilescope.models.baseline import declarations
from tilescope.runs import store
from tilescope.table.case_table import gather

from tilescope_dashboard.components import html_text, layout
from tilescope_dashboard.components.choice import FIELD, standings
from tilescope_dashboard.components.tables import link_table
from tilescope_dashboard.data import catalog
from tilescope_dashboard.data.kernel_cases import case_name
from tilescope_dashboard.data.run_cache import Written, best_claims, has_claimed, open_cached, written
from tilescope_dashboard.session.scheduling import AfterPaint
from tilescope_dashboard.session.state import HOME
from tilescope_dashboard.topics import claims as claims_topic
from tilescope_dashboard.topics import home as topic
from tilescope_dashboard.views.base import View

_ALL = "all families"
#: A share of the roofline with a bar behind the number.
_BAR = HTMLTemplateFormatter(
    template="""<% if (value == null || value !== value) { %>–<% } else { %>
    <div style="background: linear-gradient(to right, color-mix(in srgb, #2a8ac6 34%, transparent) <%= Math.min(100, 100 * value) %>%,
    transparent 0); border-radius: 2px; padding: 1px 4px 1px 0"><%= (100 * value).toPrecision(3) %> %</div><% } %>"""
)


class Home(View):
    """A row for each kernel that passes the filters. A click opens its page."""

    name_in_address, title = HOME, "Kernels"

    def build(self) -> list[Any]:
        self.rows = pd.DataFrame(columns=list(model.COLUMNS)).astype(model.COLUMNS)
        self._said: pd.Series = pd.Series(dtype="object")
        self.stats, self.count = html_text.pane(), html_text.pane(styles={"flex": "1 1 320px"})
        # Side by side on a phone.
        beside: dict[str, Any] = {"size": "small", "width": 166, "margin": (10, 8)}
        self._text = pmui.TextInput(label="kernel contains", **beside)
        self._family = pmui.Select(label="family", options={_ALL: ""}, value="", sx=FIELD, **beside)
        self._standing = standings()
        self.table = link_table(topic.COLUMNS, self._open, ["kernel"], page_size=15)
        self.table.widths = {**self.table.widths, "quickest": 100}
        self.table.widest["state"] = 340
        self.table.formatters = {**self.table.formatters, "of_roof": _BAR}
        self._wanted: dict[str, str] = {}
        self._reflecting = False
        self._asks = AfterPaint(self._take)  # once for several letters typed quickly
        fields = {"find": self._text, "family": self._family, "outcome": self._standing}
        for name, field in fields.items():
            field.param.watch(functools.partial(self._ask, name), "value_input" if name == "find" else "value")
        self.state.param.watch(self._follow, list(fields))
        self._reflect()
        self.state.param.watch(self._changed, "catalog")
        asked = layout.beside(self._text, self._family, self._standing, self.count)
        return [self.stats, asked, self.saved(self.table, "kernels", tuple)]

    def _changed(self, *events: param.parameterized.Event) -> None:
        # Home does not depend on the chosen kernel.
        if any(event.name in ("runs", "catalog") for event in events):
            self.fresh = False
        if self.state.view == self.name_in_address:
            self.refresh()

    def update(self) -> None:
        runs = [run for run in self.state.runs if run.measured and not run.error]
        asked = [run.path for run in reversed(runs)]
        unread = {name for run in runs if not has_claimed(run.path) for name in run.kernels}
        if unread:
            self._show(asked, unread)
        self.read_claims(asked, self._show)

    def _show(self, folders: Sequence[Path], unread: Collection[str] = ()) -> None:
        entries = self.state.catalog or catalog.known()
        families = tuple((entry["name"], entry.get("family", "")) for entry in entries)
        declared = tuple((entry["name"], tuple(declarations(entry).items())) for entry in entries)
        read = written(folder for folder in folders if has_claimed(folder))
        self.rows, self._said = _kernels(read, tuple(self.state.runs), families, frozenset(unread), declared)
        named = list(dict.fromkeys(filter(None, self.rows["family"])))
        self._family.param.update(options={_ALL: "", **{name: name for name in named}})
        self._reflect()
        self.table.hide([] if self.rows["state"].any() else ["state"])
        self.say(topic.sentence(self.rows))
        self.stats.object = "" if unread else html_text.stats(topic.stats(self.rows, self._said))
        self._draw()

    def _ask(self, name: str, event: param.parameterized.Event) -> None:
        """Put the filters into the state, and so into the address."""
        if not self._reflecting:
            self._wanted[name] = (event.new or "").strip()
            self._asks.due()

    def _take(self) -> None:
        wanted, self._wanted = self._wanted, {}
        self.state.param.update(**wanted)

    def _follow(self, *_: param.parameterized.Event) -> None:
        self._reflect()
        self._draw()

    def _reflect(self) -> None:
        """Fill the filters from the state, but leave a text that is being typed."""
        state, options = self.state, self._family.options.values()
        self._reflecting = True
        try:
            if "find" not in self._wanted and (self._text.value_input or "").strip() != state.find:
                self._text.param.update(value=state.find, value_input=state.find)
            self._family.value = state.family if state.family in options else ""
            self._standing.value = state.outcome if state.outcome in claims_topic.STANDINGS else ""
        finally:
            self._reflecting = False

    def _draw(self) -> None:
        """Show the rows that pass the filters."""
        text, family, standing = self.state.find, self._family.value or "", self._standing.value or ""
        shown = topic.chosen(self.rows, text, family, standing)
        said = topic.count(shown, self.rows, [f"“{text}”" if text else "", family, standing])
        self.count.object = html_text.status(said)
        self.table.show(shown)

    def _open(self, row: pd.Series) -> None:
        case = case_name(("triton", row["pass"], row["workload"])) if isinstance(row["pass"], str) else ""
        self.state.go_to(kernel=row["kernel"], case=case, **({"run": row["run"]} if row["run"] else {}))


@functools.lru_cache(maxsize=8)
def _kernels(
    read: Written,
    runs: tuple[store.Summary, ...],
    families: tuple[tuple[str, str], ...],
    unread: frozenset[str],
    declared: tuple[tuple[str, tuple[tuple[str, str], ...]], ...],
) -> tuple[pd.DataFrame, pd.Series]:
    """``topic.kernels`` and the verdicts on claims: for all sessions, as it is half of the time that a page takes the server."""
    recorded = {run.path for run in runs if run.recorded}
    rows, own = (
        best_claims(tuple(one for one in read if (one[0] in recorded) == of_recordings))
        for of_recordings in (True, False)
    )
    names, known = {kernel: dict(known) for kernel, known in declared}, dict(families)
    # Until the catalog is known, no kernel can be called the user's own.
    newest = topic.newest(runs, known) if known else {}
    failed = {name: (run.id, _failed(run, name)) for name, run in newest.items() if run.failures}
    return topic.kernels(rows, runs, known, own, unread, declared=names, failed=failed), model.verdicts(rows)


def _failed(run: store.Summary, kernel: str) -> str:
    """What failed of the kernel in the run, and where; empty where nothing did."""
    try:
        loaded = open_cached(run.path)
    except (store.StoreError, OSError):
        return ""  # a damaged run
    fault = faults.of_kernel(loaded.run, kernel, gather(loaded.table[loaded.table["kernel"] == kernel]))
    return fault.title.removeprefix(f"{kernel} ") if fault else ""
