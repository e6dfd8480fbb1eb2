"""Figures from empty, one-row and whole frames; what they show is read back from their models, without a browser."""

from typing import Any

import numpy as np
import pandas as pd
import panel as pn
import pytest
from bokeh.document import Document
from bokeh.models import GlyphRenderer, Label
from bokeh.plotting import figure
from tilescope.hardware.roofs import all_roofs
from tilescope.models import roofline as roofline_model
from tilescope.models import summary
from tilescope.models import traffic as traffic_model
from tilescope.table import schema
from tilescope_dashboard.components.charts import chart
from tilescope_dashboard.figures import roofline as roofline_figure
from tilescope_dashboard.figures.autotune import autotune
from tilescope_dashboard.figures.occupancy import occupancy
from tilescope_dashboard.figures.overview import overview
from tilescope_dashboard.figures.roofline import roofline, source
from tilescope_dashboard.figures.style import DARK, LIGHT, theme
from tilescope_dashboard.figures.traffic import speedup, traffic
from tilescope_dashboard.topics import occupancy as topic

from . import synthetic


@pytest.fixture(scope="module")
def table() -> pd.DataFrame:
    return synthetic.frame(kernels=("softmax",))


@pytest.fixture(scope="module")
def points(table: pd.DataFrame) -> pd.DataFrame:
    found = roofline_model.points(table, synthetic.DEVICE)
    return found[found["launch"].isna()].reset_index(drop=True)


def glyph(plot: figure, name: str) -> GlyphRenderer:
    return plot.select_one({"name": name})


def drawn(plot: figure, name: str) -> list[Any]:
    """A property of the roofline's points, a value for each."""
    points = glyph(plot, "points")
    return list(points.data_source.data[getattr(points.glyph, name)])


def texts(plot: figure) -> list[str]:
    """Everything written in a figure."""
    written = [label.text for label in plot.select(Label)]
    for renderer in plot.renderers:
        content = getattr(renderer.glyph, "text", None)
        if content is not None and "text" in renderer.data_source.data:
            written += list(renderer.data_source.data["text"])
    return written


def cells(rows: list[dict[str, Any]]) -> pd.DataFrame:
    return pd.DataFrame(rows, columns=["A", "B", "value", "best", "reason", "config"])


def test_roofline_draws_points_lines_and_their_legend(points: pd.DataFrame) -> None:
    plot = roofline(points, all_roofs(synthetic.DEVICE), LIGHT)
    data = source(plot).data
    assert list(data["intensity"]) == pytest.approx(points["intensity"].tolist())
    for kind, fill, colour in zip(points["kind"], drawn(plot, "fill_color"), drawn(plot, "line_color"), strict=True):
        assert (fill == colour) == (kind == "moved")
    assert set(drawn(plot, "line_dash")) == {"solid"}
    line = glyph(plot, "joined").data_source.data
    calls = points.groupby(["impl", "pass", "workload"])["intensity"].apply(sorted)
    expected = sorted(call for call in calls if len(call) > 1)
    ends = np.flatnonzero(np.isnan(line["x"]))
    assert len(expected) > 1
    assert sorted(part[~np.isnan(part)].tolist() for part in np.split(line["x"], ends)) == expected
    assert np.array_equal(np.isnan(line["x"]), np.isnan(line["y"]))
    keys = glyph(plot, "keys").data_source.data
    assert (glyph(plot, "keys").glyph.marker, glyph(plot, "keys").glyph.line_color) == ("mark", "line")
    said = {item.label.value: (keys["mark"][item.index], keys["line"][item.index]) for item in plot.legend[0].items}
    by_style = dict(zip(drawn(plot, "marker"), drawn(plot, "line_color"), strict=True))
    for impl in points["impl"].unique():
        shape, shade = said[LIGHT.called(impl)]
        assert by_style[shape] == shade


def test_roofline_draws_roofs_above_points(points: pd.DataFrame) -> None:
    plot = roofline(points, all_roofs(synthetic.DEVICE), LIGHT)
    place = plot.renderers.index(glyph(plot, "points"))
    roofs = glyph(plot, "roofs")
    assert plot.renderers.index(roofs) > place
    for labels in ("memory", "compute"):  # points below them do not make them unreadable
        assert glyph(plot, labels).glyph.background_fill_color == LIGHT.ground
    dashes = list(roofs.data_source.data["dash"])
    # hbm, l2 and l1 measured, hbm by its datasheet; fp32 by both; bf16 is not in use
    assert len(dashes) == 6
    assert dashes.count("6 4") == 2
    assert "HBM 4.00 TB/s (datasheet 4.80)" in texts(plot)
    assert not any("bf16" in text for text in texts(plot))
    assert "HBM 4.00 TB/s" in texts(roofline(points, all_roofs(synthetic.DEVICE), theme(False, narrow=True)))


def test_roofline_names_the_roof_and_rings_points_above(points: pd.DataFrame) -> None:
    roofs = all_roofs(synthetic.DEVICE)
    reading = points.assign(memory_roof=4.2e12)
    plot = roofline(reading, roofs, LIGHT)
    assert "HBM reading 4.20 TB/s (datasheet 4.80)" in texts(plot)
    assert len(glyph(plot, "roofs").data_source.data["dash"]) == 6  # in place of the copies'
    both = roofline(pd.concat([points, reading], ignore_index=True), roofs, LIGHT)
    assert "HBM 4.00 TB/s, reading 4.20 TB/s (datasheet 4.80)" in texts(both)
    assert glyph(roofline(points, roofs, LIGHT), "above") is None
    raised = points.assign(above_roof=[True] + [False] * (len(points) - 1))
    plot = roofline(raised, roofs, LIGHT)
    assert list(glyph(plot, "above").data_source.data["intensity"]) == [points["intensity"].iloc[0]]
    assert plot.legend[0].items[-1].label.value == "above its roof"


def test_a_point_without_a_time_stands_at_the_roof_and_is_dashed() -> None:
    predicted = synthetic.frame(measured=False, kernels=("softmax",))
    found = roofline_model.points(predicted, synthetic.DEVICE)
    plot = roofline(found, all_roofs(synthetic.DEVICE), LIGHT)
    data = source(plot).data
    assert set(drawn(plot, "line_dash")) == {"dashed"}
    assert list(data["height"]) == pytest.approx(found["attainable"].tolist())
    assert all("not timed" in said for said in data["said"])


def test_of_very_many_points_those_that_would_be_seen_are_drawn(points: pd.DataFrame) -> None:
    shifts = np.random.default_rng(0).lognormal(sigma=0.05, size=40_000)
    many = points.iloc[np.arange(40_000) % len(points)].assign(
        intensity=lambda frame: frame["intensity"] * shifts, performance=lambda frame: frame["performance"] * shifts
    )
    data = source(roofline(many.reset_index(drop=True), all_roofs(synthetic.DEVICE), LIGHT)).data
    assert 250 < len(data["row"]) < 5_000
    assert list(data["intensity"]) == many["intensity"].iloc[data["row"]].tolist()
    assert data["intensity"].min() == pytest.approx(many["intensity"].min(), rel=0.03)
    assert data["intensity"].max() == pytest.approx(many["intensity"].max(), rel=0.03)
    few = source(roofline(points, all_roofs(synthetic.DEVICE), LIGHT)).data
    assert few["row"].tolist() == list(range(len(points)))


def test_a_figure_fills_its_place_and_is_in_the_page_once() -> None:
    place = chart()
    place.object = figure(width=200, sizing_mode="fixed")
    document = Document()
    document.add_root(pn.Column(place).get_root(document))
    assert document.roots[0].children == [place.object]
    assert place.object.sizing_mode == "stretch_width"


def test_traffic_stacks_launches_and_shows_the_floor(table: pd.DataFrame) -> None:
    launches = traffic_model.traffic(table)
    problem = launches.query("workload == '16384x4096-bf16' and `pass` == 'forward'")
    bars = problem[problem["source"] == "ncu"]
    plot = traffic(bars, 268_435_456.0, LIGHT)
    data = glyph(plot, "bars").data_source.data
    eager = [i for i, impl in enumerate(data["impl"]) if impl == "unfused"]
    assert len(eager) == 4
    assert [data["left"][i] for i in eager[1:]] == pytest.approx([data["right"][i] for i in eager[:-1]])
    assert data["right"][eager[-1]] == pytest.approx(bars.loc[bars["impl"] == "eager", ["read", "written"]].sum().sum())
    assert "floor 268 MB" in texts(plot)
    assert set(data["dash"]) == {"solid"}


def test_speedup_is_hollow_where_predicted(table: pd.DataFrame) -> None:
    gains = traffic_model.speedup(table).head(2)
    plot = speedup(gains, DARK)
    assert glyph(plot, "predicted").glyph.fill_color == DARK.ground
    assert glyph(plot, "actual").glyph.fill_color == "colour"
    without = speedup(gains.assign(actual=np.nan), DARK)
    assert np.isnan(glyph(without, "actual").data_source.data["x"]).all()


def test_autotune_marks_the_best_and_keeps_the_failed() -> None:
    found = cells(
        [
            {"A": 16, "B": 4, "value": 2e-6, "best": False, "reason": "", "config": "A=16,B=4"},
            {"A": 32, "B": 4, "value": 1e-6, "best": True, "reason": "", "config": "A=32,B=4"},
            {"A": 32, "B": 8, "value": np.nan, "best": False, "reason": "compiler: too big", "config": "A=32,B=8"},
        ]
    )
    plot = autotune(found, "A", "B", "second", LIGHT)
    assert list(glyph(plot, "cells").data_source.data["text"]) == ["2.00 µs", "1.00 µs"]
    assert list(glyph(plot, "failed").data_source.data["reason"]) == ["compiler: too big"]
    stars = [r for r in plot.renderers if list(r.data_source.data.get("text", [])) == ["★"]]
    assert stars[0].data_source.data["x"] == ["32"]
    # One value, or none at all, is no reason to fail.
    assert autotune(found.head(1), "A", "B", "second", LIGHT).renderers
    assert autotune(found.tail(1), "A", "B", "second", LIGHT).renderers


def test_occupancy_shows_theory_hollow_and_measurement_filled() -> None:
    row = {"registers": 64, "shared_memory": 0, "block_threads": 256, "impl": "triton"}
    curve = topic.curve(row, "sm_90", "registers")
    point = {**row, "value": 64, "occupancy": 0.5, "achieved": 0.44, "limiter": "registers"}
    plot = occupancy(curve, point, "registers", LIGHT)
    assert glyph(plot, "theoretical").glyph.fill_color == LIGHT.ground
    assert glyph(plot, "achieved").glyph.fill_color == LIGHT.series[0]
    assert "64 → 50.0 %" in texts(plot)
    assert glyph(occupancy(curve, {**point, "achieved": None}, "registers", LIGHT), "achieved") is None


def test_overview_marks_are_hollow_where_predicted() -> None:
    for measured in (True, False):
        rows = synthetic.frame(measured=measured)
        plot = overview(summary.summarise(rows, synthetic.DEVICE), LIGHT)
        data = glyph(plot, "points").data_source.data
        assert (list(data["fill"]) == list(data["colour"])) == measured
        assert len(data["x"]) == len(rows.drop_duplicates(schema.CASE_COLUMNS))


def test_exchanged_figure_keeps_no_selection(points: pd.DataFrame) -> None:
    place, roofs = chart(), all_roofs(synthetic.DEVICE)
    place.exchange(roofline_figure.content(points, roofs, LIGHT), roofline_figure.drawn)
    shown = place.object
    source(shown).selected.indices = [1]
    place.exchange(roofline_figure.content(points.tail(len(points) - 1), roofs, LIGHT), roofline_figure.drawn)
    assert place.object is shown
    assert (source(shown).selected.indices, len(source(shown).data["row"])) == ([], len(points) - 1)
    place.exchange(roofline_figure.content(points, roofs, DARK), roofline_figure.drawn)
    assert place.object is not shown
