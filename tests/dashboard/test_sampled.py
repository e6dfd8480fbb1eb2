"""Bytes of a sample of programs: drawn, said to be near, and never drawn as those that are exact."""

import pandas as pd
import pytest
from tilescope.hardware.roofs import all_roofs
from tilescope.models import roofline, sampled, traffic
from tilescope.models.summary import summarise
from tilescope.table import schema
from tilescope.table.case import Case
from tilescope.table.case_table import gather
from tilescope_dashboard.figures.roofline import roofline as draw_roofline
from tilescope_dashboard.figures.style import LIGHT
from tilescope_dashboard.figures.traffic import traffic as draw_traffic
from tilescope_dashboard.topics import overview
from tilescope_dashboard.topics import roofline as roofline_topic
from tilescope_dashboard.topics import summary as summary_topic
from tilescope_dashboard.topics import traffic as topic

from . import synthetic

PROGRAMS = "1,523 of 1,048,576 programs"
EXACT = {"requested_bytes_read": 3e6, "requested_bytes_written": 1e6, "requested_flops": 2e6, "unique_bytes_read": 3e6,
         "unique_bytes_written": 1e6}  # fmt: skip
NEAR = {"sampled_bytes_read": 6e6, "sampled_bytes_written": 2e6, "sampled_flops": 4e6, "sampled_programs": 1523.0,
        "programs": 1048576.0}  # fmt: skip


def counted(*launches: dict[str, float]) -> pd.DataFrame:
    case = Case("mine", "triton", "forward", "8-fp32")
    rows = [
        case.row(metric, value, "interpreter", launch=number, function="mine_kernel")
        for number, launch in enumerate(launches)
        for metric, value in launch.items()
    ]
    return schema.frame(rows)


def test_a_call_is_as_of_a_sample_where_one_of_its_launches_is() -> None:
    (case,) = gather(counted(EXACT, NEAR))
    assert sampled.of_case(case) == (9e6, 3e6, 6e6, 1523, 1048576)
    assert (sampled.of_launch(case, 0), sampled.of_launch(case, 1)) == (None, (6e6, 2e6, 4e6, 1523, 1048576))
    (exact,) = gather(counted(EXACT, EXACT))
    assert sampled.of_case(exact) is None
    # Of a launch that nothing is known of no sum can be told.
    (partly,) = gather(counted(NEAR, {"requested_bytes_read": 1.0}))
    assert sampled.of_case(partly) is None


def test_roofline_marks_sampled_points_with_a_cross() -> None:
    points = roofline.points(counted(EXACT, NEAR), synthetic.DEVICE)
    assert points.groupby("kind")["launch"].size().to_dict() == {"requested": 2, "sampled": 4}
    plot = draw_roofline(points, all_roofs(synthetic.DEVICE), LIGHT)
    drawn = next(one for one in plot.renderers if one.name == "points")
    kinds = drawn.data_source.data
    assert set(zip(kinds["mark"], kinds["dash"], strict=True)) == {("circle_dot", "dashed"), ("x", "solid")}
    (legend,) = plot.legend
    assert "≈ requested, from a sample" in [item.label.value for item in legend.items]
    assert set(roofline_topic.listed(points)["kind"]) == {"requested", "≈ requested, from a sample"}
    assert roofline_topic.listed(points.assign(bytes=1234567.0)).groupby("kind")["bytes"].first().to_dict() == {
        "requested": 1_234_567, "≈ requested, from a sample": 1_230_000,
    }  # fmt: skip
    assert "from a sample of programs" in roofline_topic.sentence(points).text
    near = draw_roofline(roofline.points(counted(NEAR), synthetic.DEVICE), all_roofs(synthetic.DEVICE), LIGHT)
    assert "not timed" not in [item.label.value for item in near.legend[0].items]


def test_traffic_bar_of_a_sample_is_empty_and_says_so() -> None:
    launches = traffic.traffic(counted(EXACT, NEAR))
    bars = topic.bars(launches)
    plot = draw_traffic(bars, None, LIGHT)
    drawn = next(one for one in plot.renderers if one.name == "bars").data_source.data
    assert (drawn["dash"], drawn["alpha"]) == (["dashed", "dotted"], [0.3, 0.0])
    assert (drawn["bytes"], drawn["source"][1]) == (
        ["4.00 MB", "≈ 8.00 MB"],
        f"from a sample of {PROGRAMS} (interpreter)",
    )
    said = topic.sentence(bars, traffic.speedup(counted(EXACT, NEAR)), 1e3, 0)
    assert said.title == "triton asks for ≈ 12.0 MB"
    assert f"from a sample of {PROGRAMS}" in said.text
    table = topic.listed(bars.assign(read=bars["read"] + 1234.0), 1e6)
    assert table["source"].tolist() == ["interpreter", "≈ of a sample (interpreter)"]
    assert table["read"].tolist() == [3_001_234, 6_000_000]
    assert table["over"].round(3).tolist()[:1] == [4.001]
    assert pd.isna(table["over"][1])
    assert plot.xaxis.axis_label == "bytes to and from HBM"
    alone = draw_traffic(topic.bars(traffic.traffic(counted(NEAR))), None, LIGHT)
    assert alone.xaxis.axis_label == "bytes requested"
    # What is exact is drawn as ever.
    assert (
        "≈" not in topic.sentence(topic.bars(traffic.traffic(counted(EXACT))), pd.DataFrame({"impl": []}), None, 0).line
    )


def test_stats_name_the_sample_of_programs() -> None:
    row = summarise(counted(NEAR), synthetic.DEVICE).iloc[0].to_dict()
    stats = summary_topic.stats(row, ())
    (stat,) = [one for one in stats if one.label == "bytes requested"]
    assert stat.value == "≈ 8.00 MB"
    assert stat.note == f"6.00 MB read, 2.00 MB written; estimated from a sample of {PROGRAMS}"
    exact = summarise(counted(EXACT), synthetic.DEVICE).iloc[0].to_dict()
    assert not overview.requested_of_sample(exact)
    # Nothing that is of a sample is taken for HBM's bytes.
    assert pd.isna(row["bytes"])


@pytest.mark.parametrize(("whole", "known"), [(8e6, True), (128.0, False), (1e9, False)])
def test_floor_of_a_sample_needs_matching_tensors(whole: float, known: bool) -> None:
    # As captured launches declare it: the bytes of the tensors that they touch, and no operations.
    case = Case("mine", "triton", "forward", "8-fp32")
    declared = {"algorithm_bytes_read": whole / 2, "algorithm_bytes_written": whole / 2, "tensor_bytes": whole}
    table = pd.concat(
        [counted(NEAR), schema.frame([case.row(name, value, "model") for name, value in declared.items()])],
        ignore_index=True,
    )
    row = summarise(table, synthetic.DEVICE).iloc[0]
    assert (row["floor"] > 0, row["bound"] == "memory", "at least" in row["why"]) == (known, known, known)
    assert traffic.traffic(table)["metric"].eq("algorithm_bytes").any() == known
    # What was counted in another way, or is declared, stands.
    stated = table[table["metric"] != "tensor_bytes"]
    assert summarise(stated, synthetic.DEVICE).iloc[0]["floor"] > 0
