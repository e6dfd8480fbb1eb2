"""Every figure over whatever a frame may hold: recorded rows, two, very many, absent numbers, names of 300 characters."""

import functools
import json
from collections.abc import Callable

import numpy as np
import pandas as pd
import pytest
from bokeh.embed import json_item
from bokeh.models import Label
from bokeh.plotting import figure
from tilescope.hardware.roofs import all_roofs
from tilescope.models import claims as claims_model
from tilescope.models import compare as compare_model
from tilescope.models import roofline as roofline_model
from tilescope.models import summary, sweeps
from tilescope.models import timeline as timeline_model
from tilescope.models import traffic as traffic_model
from tilescope.runs import store
from tilescope_dashboard.data import frames
from tilescope_dashboard.data.run_cache import claimed
from tilescope_dashboard.figures.autotune import autotune
from tilescope_dashboard.figures.claims import claims
from tilescope_dashboard.figures.compare import compare
from tilescope_dashboard.figures.occupancy import occupancy
from tilescope_dashboard.figures.overview import overview
from tilescope_dashboard.figures.roofline import roofline
from tilescope_dashboard.figures.style import LIGHT, Theme, columns, distinct, theme
from tilescope_dashboard.figures.timeline import timeline
from tilescope_dashboard.figures.traffic import MOST, speedup, traffic
from tilescope_dashboard.topics import occupancy as topic

from .recordings import recorded

PHONE = theme(True, narrow=True)


@functools.cache
def norms() -> store.LoadedRun:
    """The one of the norms."""
    of_norms = (store.open_run(found.path) for found in recorded() if "rms_norm" in found.kernels)
    return next(run for run in of_norms if run.table["impl"].nunique() > 1)


def rows_of_norm() -> pd.DataFrame:
    """What it says of one kernel."""
    return frames.default_configs(norms().table.query("kernel == 'rms_norm'"))


def launches(model: Callable[[pd.DataFrame], pd.DataFrame]) -> pd.DataFrame:
    """One problem's launches, those that were counted or timed by the profiler."""
    found = model(rows_of_norm()).query("workload == '8192x16384-bf16' and `pass` == 'backward'")
    return found[found["source"].isin(["ncu", "cupti", "torch_profiler"])].reset_index(drop=True)


def repetition() -> pd.DataFrame:
    """One repetition of each implementation."""
    found = launches(timeline_model.timeline)
    return timeline_model.of_repetitions(found, timeline_model.typical(timeline_model.totals(found)))


def cells() -> pd.DataFrame:
    """A sweep's configs as the heatmap takes them."""
    sweep = store.open_run(next(run.path for run in recorded() if run.title == "matrix products: autotune sweeps"))
    found = sweeps.configs(sweep.table[sweep.table["kernel"] == "matmul"], [])
    return found.assign(value=found["time"], best=False).drop_duplicates(["BLOCK_M", "BLOCK_N"])


def steps() -> pd.DataFrame:
    """An occupancy's curve."""
    held = topic.occupancies(rows_of_norm(), "sm_90").iloc[0].to_dict()
    return topic.curve(held, "sm_90", "registers")


#: A frame by the figure's name, and the figure of such a frame.
FRAMES: dict[str, Callable[[], pd.DataFrame]] = {
    "overview": lambda: summary.summarise(
        frames.default_configs(norms().table), norms().run.device, norms().run.kernels
    ),
    "roofline": lambda: roofline_model.points(rows_of_norm(), norms().run.device, norms().run.kernels),
    "traffic": lambda: launches(traffic_model.traffic),
    "speedup": lambda: traffic_model.speedup(rows_of_norm()).query(
        "workload == '8192x16384-bf16' and `pass` == 'forward'"
    ),
    "timeline": repetition,
    "autotune": cells,
    "compare": lambda: compare_model.compare(
        compare_model.Side(norms(), "compile"), compare_model.Side(norms(), "triton"), "rms_norm"
    ),
    "claims": lambda: claims_model.best(
        row for run in [r for r in recorded() if r.kernels == ("cross_entropy",)][:1] for row in claimed(run.path)[0]
    ),
    "occupancy": steps,
}
DRAWN: dict[str, Callable[[pd.DataFrame, Theme], figure]] = {
    "overview": overview, "roofline": lambda rows, look: roofline(rows, all_roofs(norms().run.device), look),
    "traffic": lambda rows, look: traffic(rows, 1e9, look), "speedup": speedup, "timeline": timeline,
    "autotune": lambda rows, look: autotune(rows, "BLOCK_M", "BLOCK_N", "second", look), "compare": compare,
    "claims": claims, "occupancy": lambda rows, look: occupancy(rows, None, "registers", look),
}  # fmt: skip
#: The glyphs that stand for rows.
NAMES = {"points", "bars", "cells", "failed", "shared", "actual", "slower", "faster", "alike", "eager", "compile", "aten", "bound", "curve"}  # fmt: skip
WORDS = ["kernel", "impl", "baseline_impl", "workload", "function", "config", "reason", "library"]


@functools.cache
def frame(name: str) -> pd.DataFrame:
    """The recorded frame of that figure, read once."""
    return FRAMES[name]()


def sent(plot: figure) -> str:
    """What the browser gets. Raises for what it could not read."""
    return json.dumps(json_item(plot))


def marks(plot: figure) -> int:
    return sum(len(r.data_source.data[next(iter(r.data_source.data))]) for r in plot.renderers if r.name in NAMES)


def written(plot: figure) -> list[str]:
    """All that stands in the figure without a mouse over it."""
    said = [label.text for label in plot.select(Label)] + [axis.axis_label or "" for axis in plot.axis]
    said += [item.label.value for legend in plot.legend for item in legend.items]
    for axis_range in (plot.x_range, plot.y_range):
        said += getattr(axis_range, "factors", [])
    for axis in plot.axis:
        said += axis.major_label_overrides.values()
    for renderer in plot.renderers:
        if hasattr(renderer.glyph, "text"):
            text = renderer.glyph.text
            said += list(renderer.data_source.data[text if isinstance(text, str) else text.field])
    return said


@pytest.fixture(params=FRAMES)
def name(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def test_figure_draws_recorded_rows_one_and_none(name: str) -> None:
    rows = frame(name)
    one = rows[rows["source"].notna()].head(1) if "source" in rows else rows.head(1)
    for some, look in ((rows, PHONE), (one, PHONE), (rows.head(0), LIGHT)):
        plot = DRAWN[name](some, look)
        sent(plot)
        assert (marks(plot) > 0) == (len(some) > 0)
    assert plot.select(Label) or name == "roofline"


def apart(names: list[str]) -> list[list[str]]:
    """Few sets of the names: of any two, each is in one that the other is not in."""
    bits = range(len(names).bit_length())
    return [[name for n, name in enumerate(names) if n >> bit & 1 == side] for bit in bits for side in (0, 1)]


def test_figure_writes_no_absent_number(name: str) -> None:
    # A figure's words are of one row, or of all: with some of the rows each of the many is drawn quickly.
    rows = frame(name).head(12)
    floats = [c for c in rows.select_dtypes("float") if c not in ("value", "start", "duration") or name == "autotune"]
    for absent in (floats, *apart(floats)):
        plot = DRAWN[name](rows.assign(**dict.fromkeys(absent, np.nan)), LIGHT)
        sent(plot)
        assert not any(text.strip().lower().startswith(("nan", "none", "<na")) for text in written(plot)), absent


def test_figure_cuts_names_of_300_characters(name: str) -> None:
    rows = frame(name).head(40)
    long = {c: rows[c].astype(str).map(lambda text: "a" * 150 + text + "z" * 150) for c in WORDS if c in rows}
    before, plot = DRAWN[name](rows, PHONE), DRAWN[name](rows.assign(**long), PHONE)
    assert max(map(len, written(plot))) <= 110
    assert marks(plot) == marks(before)
    for axis_range, other in ((plot.x_range, before.x_range), (plot.y_range, before.y_range)):
        assert len(getattr(axis_range, "factors", [])) == len(getattr(other, "factors", []))
    sent(plot)


def test_traffic_of_ten_thousand_launches_counts_all() -> None:
    rows = frame("traffic")
    many = rows.loc[np.zeros(10_000, dtype=int)].reset_index(drop=True)
    many["read"] = np.arange(len(many), dtype=float)
    plot = traffic(many, None, LIGHT)
    data = plot.select_one({"name": "bars"}).data_source.data
    assert data["right"][-1] == pytest.approx((many["read"] + many["written"]).sum())
    assert len(data["right"]) == MOST + 1
    assert data["launch"][-2:] == ["launch 10000", "9,700 launches"]
    assert data["left"][1:] == pytest.approx(data["right"][:-1])
    assert len(sent(plot)) < 1_000_000


def test_legend_has_as_many_columns_as_fit() -> None:
    names = ["triton", "eager", "compile", "aten"]
    assert columns(names, LIGHT) == 4
    assert columns(names, PHONE) == 3
    assert columns(["a" * 40, "b"], PHONE) == 1
    assert columns(["a"], PHONE) == 1
    assert columns([], LIGHT) == 1
    wide, narrow = (claims(frame("claims"), look) for look in (LIGHT, PHONE))
    assert wide.legend[0].ncols > narrow.legend[0].ncols
    assert narrow.height > wide.height, "the rows of the legend must not take the plot's room"


def test_distinct_keeps_equal_short_names_apart() -> None:
    shown = distinct(["x" * 40 + "1" + "y" * 40, "x" * 40 + "2" + "y" * 40, "z", "z"], 14)
    assert len(shown) == len(set(shown.values())) == 3
    assert {value.replace("\u200b", "") for value in shown.values()} == {"xxxxxxxxx…yyy", "z"}


def test_compare_on_a_phone_leaves_out_the_kernel() -> None:
    rows = pd.concat([frame("compare"), frame("compare").assign(baseline_impl="eager")], ignore_index=True)
    said = {label.split("\n")[1].rstrip("\u200b") for label in compare(rows, PHONE).y_range.factors}
    assert said == {"torch.compile", "unfused"}
    assert not any("rms_norm" in label for label in compare(rows, PHONE).y_range.factors)
    on_a_phone = [label.replace("\n", " ").replace("\u200b", "") for label in compare(rows, PHONE).y_range.factors]
    assert [label.replace("\u200b", "") for label in compare(rows, LIGHT).y_range.factors] == on_a_phone
