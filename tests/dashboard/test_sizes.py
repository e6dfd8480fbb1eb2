"""Sizes and History: what is joined from all runs, drawn and said."""

from typing import Any

import pandas as pd
import pytest
from bokeh.document import Document
from tilescope.models.summary import summarise
from tilescope.runs import store
from tilescope_dashboard.data import recordings
from tilescope_dashboard.data.kernel_cases import KernelCase
from tilescope_dashboard.data.measurements import measurements
from tilescope_dashboard.figures import history as history_figure
from tilescope_dashboard.figures import sizes as sizes_figure
from tilescope_dashboard.figures.style import DARK, LIGHT, Theme, theme
from tilescope_dashboard.topics import history, sizes
from tilescope_dashboard.views.sizes import Sizes

from . import synthetic
from .conftest import RUN, grid, opened

LARGE = KernelCase("triton", "forward", "16384x4096-bf16")


@pytest.fixture
def rows() -> pd.DataFrame:
    """Measurements of one run that was made up."""
    found = summarise(synthetic.frame(kernels=("softmax",)), synthetic.DEVICE)
    return found.assign(run_id="r1", started="2026-01-02 03:04", title="t", revision="abcdef1234", origin="o")


def points(plot: Any) -> list[dict[str, Any]]:
    return [r.data_source.data for r in plot.renderers if r.name == "points"]


@pytest.mark.parametrize(("count", "look"), [(0, LIGHT), (1, DARK), (99, theme(False, narrow=True))])
def test_every_amount_of_rows_is_drawn(rows: pd.DataFrame, count: int, look: Theme) -> None:
    few = rows.head(count)
    of = sizes.rate(few)
    found, past = sizes.sizes(few, "forward", of), history.history(few, LARGE)
    drawn = sizes_figure.sizes(found, of, None, look), history_figure.history(past, look)
    for plot, shown in zip(drawn, (found, past), strict=True):
        Document().add_root(plot)
        assert sum(len(data["x"]) for data in points(plot)) == len(shown)
    assert sizes.sentence(found, of).title
    said = history.sentence("softmax", past, LARGE, "H200")
    assert said.title and ("Compare says what changed" in said.text) == (not len(past))


def every_run_of(kernel: str) -> pd.DataFrame:
    """Measurements of all recordings of the kernel."""
    runs = [run for run in store.list_runs([store.recorded_dir()]) if kernel in run.kernels]
    return measurements(recordings.every(runs, kernel), kernel)


def test_a_recorded_kernel_is_joined_from_its_runs() -> None:
    every = every_run_of("attention")
    assert every["run_id"].nunique() == 2
    of = sizes.rate(every)
    assert of.unit == "flop/second"
    found = sizes.sizes(every, "forward", of)
    assert not found.duplicated(["impl", "workload"]).any()
    assert found["size"].is_monotonic_increasing
    assert (found["rate_low"] <= found["rate"]).all() and (found["rate"] <= found["rate_high"]).all()
    assert {*found["run_id"]} <= {*every["run_id"]}
    past = history.history(every, KernelCase("triton", "forward", "4x32x1x4096x4096x128-bf16"))
    assert past["started"].is_monotonic_increasing and past["change"].notna().any()
    assert points(history_figure.history(past, LIGHT))


def test_sizes_rate_and_draw_the_largest_problem(rows: pd.DataFrame) -> None:
    of = sizes.rate(rows)
    assert (of.unit, of.unit_of_size) == ("byte/second", "byte")
    found = sizes.sizes(rows, "forward", of)
    needed = 4 * 16384 * 4096
    assert found["size"].max() == needed
    top = found[(found["impl"] == "triton") & (found["size"] == needed)].iloc[0]
    assert top["rate"] == pytest.approx(needed / top["gpu_time"])
    assert top["rate_low"] < top["rate"] < top["rate_high"]
    busy = rows.assign(performance_fraction=2 * rows["bandwidth_fraction"])
    assert sizes.rate(busy).column == "performance"
    assert "triton is fastest on 2 of 2 sizes" in sizes.sentence(found, of).title
    one = sizes.sizes(rows, "forward", of)
    one = one[one["impl"] == "triton"]
    slower = one.assign(workload="other", rate=one["rate"] / 2)
    other = one.assign(dtype="fp32", workload="fp32")
    plot = sizes_figure.sizes(
        pd.concat([one, slower, other], ignore_index=True),
        of,
        (4e12, "roof"),
        LIGHT,
        1e6,
    )
    lines = next(r.data_source.data for r in plot.renderers if r.name == "lines")
    assert [len(xs) for xs in lines["x"]] == [2, 2]
    assert sorted(lines["dash"]) == ["dashed", "solid"]
    assert max(lines["y"][0]) == pytest.approx(one["rate"].max() / 1e12)
    assert sorted(set(points(plot)[0]["size"])) == [6, 10]
    # triton, and what large and small marks are.
    assert len(plot.legend[0].items) == 3
    assert plot.yaxis[0].axis_label == "TB/s"
    assert plot.y_range.end > 4


def test_a_change_is_told_from_noise(rows: pd.DataFrame) -> None:
    later = rows.assign(run_id="r2", started="2026-02-02 03:04")
    changes = (
        (1.001, "0.1 % more than in the run before (within the noise)"),
        (0.5, "50 % less than in the run before (more than"),
    )
    for factor, said in (*changes, (1.0, "the same as in the run before (within"), (2.0, "100 % more")):
        slow = later.assign(**{name: factor * rows[name] for name in ("gpu_time", "gpu_time_low", "gpu_time_high")})
        past = history.history(pd.concat([slow, rows], ignore_index=True), LARGE)
        assert past["run_id"].tolist()[0] == "r1"
        found = history.sentence("softmax", past, LARGE)
        assert said in found.title and found.title.startswith("triton takes")
        assert past.loc[past["run_id"].eq("r2"), "change"].tolist() == pytest.approx([factor] * 3)
    # The fastest config of a sweep is not held against an implementation's own.
    swept = history.history(pd.concat([rows, later.assign(config="BLOCK=1")], ignore_index=True), LARGE)
    assert swept["change"].isna().all()
    plot = history_figure.history(swept, LIGHT)
    assert all(7 in data["size"] for data in points(plot))


def test_history_names_steps_and_no_noise(rows: pd.DataFrame) -> None:
    """Nights of which the second is slower: it is named with its commit. Nights within the noise are not."""

    def nights(*factors: float) -> str:
        names = ("gpu_time", "gpu_time_low", "gpu_time_high")
        runs = [
            rows.assign(run_id=f"r{n}", started=f"2026-02-0{n + 1} 03:04", revision=f"{n}bcdef0123", **{name: factor * rows[name] for name in names})
            for n, factor in enumerate(factors)
        ]  # fmt: skip
        return history.sentence("softmax", history.history(pd.concat(runs, ignore_index=True), LARGE), LARGE).text

    assert "Earlier steps beyond the noise: 2× on 2026-02-02 at 1bcdef0." in nights(1, 2, 2.001, 2)
    assert "0.5× on 2026-02-03 at 2bcdef0" in nights(1, 2, 1, 1)
    assert "step" not in nights(1, 1.001, 0.999, 1) and "step" not in nights(1, 2)


def test_two_runs_of_one_minute_are_two_places(rows: pd.DataFrame) -> None:
    past = history.history(pd.concat([rows, rows.assign(run_id="r2")], ignore_index=True), LARGE)
    assert len(set(history_figure.history(past, LIGHT).x_range.factors)) == 2


def test_a_row_of_sizes_is_the_case_of_all_views(in_runs: None) -> None:
    shown = opened(Sizes, run=RUN, kernel="softmax")
    # Bytes are written without a unit: their title has it.
    assert (grid(shown).titles["size"], grid(shown).titles["rate"]) == ("size (B)", "rate")
    row = grid(shown).filled.iloc[0]
    grid(shown).selection = [0]
    assert shown.state.chosen == KernelCase(row["impl"], "forward", row["workload"])
