"""Overview: the figure's rows, and the list of runs."""

from pathlib import Path

import pandas as pd
from tilescope.runs.store import Summary
from tilescope_dashboard.figures.overview import overview
from tilescope_dashboard.figures.style import LIGHT, theme
from tilescope_dashboard.topics.overview import listing

LONG = "a_template_name<float, 4, 128>" * 10


def headlines(*cases: tuple[str, str, str, str, float]) -> pd.DataFrame:
    """Timed rows of ``summary.summarise``, as far as the figure reads them."""
    frame = pd.DataFrame(cases, columns=["kernel", "pass", "workload", "impl", "floor_fraction"])
    return frame.assign(bytes_ratio=1.0, gpu_time=1e-6)


TWO = headlines(
    ("softmax", "forward", "16384x4096-bf16", "triton", 0.9),
    ("softmax", "forward", "16384x4096-bf16", "eager", 0.2),
    ("matmul", "forward", "512x512x512-bf16", "triton", 0.5),
    ("softmax", "backward", "16384x4096-bf16", "triton", 0.7),
)


def places(plot: object) -> list[int]:
    return list(plot.select_one({"name": "points"}).data_source.data["y"])


def test_a_label_that_fits_names_kernel_and_workload() -> None:
    plot = overview(TWO, LIGHT)
    assert plot.yaxis[0].major_label_overrides == {
        0: "softmax 16384x4096-bf16", -1: "softmax bwd 16384x4096-bf16", -2: "matmul 512x512x512-bf16"}  # fmt: skip
    # Two implementations of one problem share a row, and rows of a kernel stand together.
    assert places(plot) == [0, 0, -2, -1]
    assert plot.select_one({"name": "headings"}).data_source.data["text"] == []


def test_overview_gives_kernels_rows_where_labels_are_cut() -> None:
    plot = overview(TWO, theme(False, narrow=True))
    headings = plot.select_one({"name": "headings"}).data_source.data
    assert dict(zip(headings["y"], headings["text"], strict=True)) == {0: "softmax", -3: "matmul"}
    assert plot.yaxis[0].major_label_overrides == {
        -1: "16384x4096-bf16", -2: "bwd 16384x4096-bf16", -4: "512x512x512-bf16"}  # fmt: skip
    assert places(plot) == [-1, -1, -4, -2]
    assert (plot.y_range.start, plot.y_range.end) == (-4.5, 0.5)


def test_overview_keeps_rows_of_equal_cut_labels() -> None:
    alike = headlines(*((LONG, "forward", f"1024x1024x1024x{n}x1024x1024-bf16", "triton", 0.5) for n in (1111, 2222)))
    plot = overview(alike, theme(False, narrow=True))
    assert places(plot) == [-1, -2]
    assert len(set(plot.yaxis[0].major_label_overrides.values())) == 1
    # The text under the mouse is not cut.
    assert plot.select_one({"name": "points"}).data_source.data["row"][0].startswith(LONG)
    assert len(plot.select_one({"name": "headings"}).data_source.data["text"][0]) <= 22


def test_a_run_is_listed_with_its_kind_and_what_is_wrong_with_it() -> None:
    runs = [
        Summary("a", Path("a"), started="2026-01-02T03:04:05", title="mine", kernels=("softmax", "matmul"), measured=True),
        Summary("b", Path("b"), complete=False, failures=2),
        Summary("c", Path("c"), recorded=True, measured=True),
        Summary("d", Path("d"), error="run.json cannot be read"),
    ]  # fmt: skip
    shown = listing(runs)
    assert list(shown["started"]) == ["2026-01-02 03:04", "b", "c", "d"]
    assert list(shown["what"]) == ["measured", "predicted", "recorded", ""]
    assert list(shown["state"]) == ["", "not complete, 2 failed", "", "run.json cannot be read"]
    assert shown["kernels"][0] == "softmax, matmul"
    assert list(shown["title"]) == ["mine", "b", "c", "d"]


def test_no_runs_is_an_empty_frame_with_its_columns() -> None:
    assert len(listing([])) == 0
    assert "state" in listing([])
