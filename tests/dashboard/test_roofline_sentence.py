"""Roofline in words and units: the number of every other view, and operations of integers as what they are."""

import pandas as pd
import pytest
from tilescope.hardware.roofs import all_roofs
from tilescope.models import roofline as model
from tilescope.models import summary
from tilescope.runs import recordings, store
from tilescope.table import schema
from tilescope.table.case import Case
from tilescope.table.run import Ceiling, Device
from tilescope_dashboard.data.kernel_cases import KernelCase
from tilescope_dashboard.data.units import write
from tilescope_dashboard.figures.roofline import roofline
from tilescope_dashboard.figures.style import LIGHT
from tilescope_dashboard.topics import overview
from tilescope_dashboard.topics import roofline as topic

GPU = Device(
    "Made-up GPU", "sm_90", 100, 10_000_000, 10_000_000_000, True,
    (
        Ceiling("hbm", 1e12, "byte/second", "measured"),
        Ceiling("fp32", 1e13, "flop/second", "measured"),
        Ceiling("int8", 1e15, "op/second", "measured"),
    ),
)  # fmt: skip


def points(dtype: str = "fp32") -> pd.DataFrame:
    """A kernel that executes twice what is needed, in 200 us, and unfused code that executes four times that."""
    rows = []
    for impl, seconds, executed in (("triton", 2e-4, 2e11), ("eager", 4e-4, 8e11)):
        case = Case("mm", impl, "forward", f"1x1-{dtype}")
        at = {"launch": 0, "function": "f"}
        rows += [case.row(f"algorithm_bytes_{way}", 5e7, "model") for way in ("read", "written")]
        rows += [
            case.row("algorithm_flops", 1e11, "model"),
            case.row("gpu_time", seconds, "torch_profiler", sample=0, **at),
        ]
        rows += [case.row(f"dram_bytes_{way}", 5e7, "ncu", **at) for way in ("read", "written")]
        rows += [case.row("tensor_ops_int8" if dtype == "int8" else "flops_fp32", executed, "ncu", **at)]
    return model.points(schema.frame(rows), GPU)


def test_roofline_point_of_slower_kernel_is_lower() -> None:
    plot = roofline(points(), all_roofs(GPU), LIGHT)
    drawn = next(r for r in plot.renderers if r.name == "points").data_source.data
    heights = sorted(set(drawn["height"]))
    assert heights == pytest.approx([1e11 / 4e-4, 1e11 / 2e-4])
    assert {"2.00× the operations needed", "8.00× the operations needed"} <= set(drawn["executed"])


@pytest.mark.parametrize(("dtype", "unit", "said"), [("fp32", "flop/s", "Tflop/s"), ("int8", "OP/s", "TOP/s")])
def test_integers_are_operations_and_no_flop(dtype: str, unit: str, said: str) -> None:
    found = points(dtype)
    plot = roofline(found, all_roofs(GPU), LIGHT)
    assert plot.yaxis[0].axis_label == f"performance, {unit}"
    texts = next(r for r in plot.renderers if r.name == "compute").data_source.data["text"]
    assert any(("POP/s" if dtype == "int8" else "Tflop/s") in text for text in texts)
    assert said in topic.sentence(found).text
    units = {column.name: column.unit for column in topic.columns(found)}
    assert units["performance"] == ("op/second" if dtype == "int8" else "flop/second")
    assert units["flops"] == ("op" if dtype == "int8" else "flop")


def test_the_sentence_is_of_the_case_that_stands_in_the_bar() -> None:
    found = points()
    assert "triton on 1x1-fp32" in topic.sentence(found, KernelCase("triton", "forward", "1x1-fp32")).text
    assert "eager on 1x1-fp32" in topic.sentence(found, KernelCase("eager", "forward", "1x1-fp32")).text
    # One that the recording does not have leaves the largest.
    assert topic.sentence(found, KernelCase("aten", "forward", "1x1-fp32")) == topic.sentence(found)
    assert topic.sentence(found.assign(intensity=2727.6)).title.endswith("at 2,730 flop/byte")


def test_roofline_and_overview_say_one_number_and_one_word() -> None:
    loaded = store.open_run(recordings.of_kernel("rms_norm")[0].path)
    table = loaded.table[loaded.table["kernel"] == "rms_norm"]
    case = summary.representative(summary.summarise(table, loaded.run.device, loaded.run.kernels))
    assert case is not None
    number = write(case["floor_fraction"], "ratio")
    title = topic.sentence(model.points(table, loaded.run.device, loaded.run.kernels)).title
    assert title.startswith(f"{number} of the HBM roof at ")
    shown = overview.of_roof(case)
    assert (shown.value, shown.label) == (number, "of roofline") and case["roof"] in shown.note


def test_roofline_without_operations_says_so() -> None:
    case = Case("copy", "triton", "forward", "8-fp32")
    rows = [case.row(f"requested_{what}", value, "interpreter", launch=0) for what, value in
            (("bytes_read", 32.0), ("bytes_written", 32.0), ("flops", 0.0))]  # fmt: skip
    found = model.points(schema.frame(rows), GPU)
    assert not found["intensity"].gt(0).any()
    assert topic.sentence(found).title == "No operations are counted"
