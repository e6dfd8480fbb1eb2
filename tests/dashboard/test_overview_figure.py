"""The overview's rows: which there are, in which order, and how they are labelled."""

import pandas as pd
from tilescope_dashboard.figures.overview import overview
from tilescope_dashboard.figures.style import LIGHT, theme

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
        0: "softmax 16384x4096-bf16", -1: "softmax ∇ 16384x4096-bf16", -2: "matmul 512x512x512-bf16"}  # fmt: skip
    # Two implementations of one problem share a row, and rows of a kernel stand together.
    assert places(plot) == [0, 0, -2, -1]
    assert plot.select_one({"name": "headings"}).data_source.data["text"] == []


def test_overview_gives_kernels_rows_where_labels_are_cut() -> None:
    plot = overview(TWO, theme(False, narrow=True))
    headings = plot.select_one({"name": "headings"}).data_source.data
    assert dict(zip(headings["y"], headings["text"], strict=True)) == {0: "softmax", -3: "matmul"}
    assert plot.yaxis[0].major_label_overrides == {
        -1: "16384x4096-bf16", -2: "∇ 16384x4096-bf16", -4: "512x512x512-bf16"}  # fmt: skip
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
