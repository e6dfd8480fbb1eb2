"""The roofline on made-up tables, with values computed by hand, and on an H200's counters."""

import dataclasses
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from tilescope.collectors.ncu import counters
from tilescope.hardware import device
from tilescope.hardware.roofs import all_roofs
from tilescope.models import roofline
from tilescope.table import schema
from tilescope.table.case import Case

from . import made_up

FIXTURES = Path(__file__).parent / "fixtures"
SOFTMAX = Case("softmax", "triton", "forward", "16384x4096-bf16")
MATMUL = Case("matmul", "triton", "forward", "4096x4096x4096-bf16")

#: A device with round figures: 1 TB/s of HBM measured (2 by datasheet), 10 TB/s of L2, 10 Tflop/s fp32, 100 bf16.
TOY = made_up.gpu(sheet_hbm=2e12, hbm=1e12, hbm_read=1.1e12, l2=10e12, sheet_fp32=10e12, sheet_bf16=100e12)


def cost(case: Case, flops: float, read: float, written: float) -> list[dict[str, Any]]:
    return made_up.cost(case, read, written, flops)


def timed(case: Case, *launches: float, source: str = "torch_profiler", samples: int = 3) -> list[dict[str, Any]]:
    return [
        case.row("gpu_time", seconds, source, launch=launch, function=f"k{launch}", sample=sample)
        for sample in range(samples)
        for launch, seconds in enumerate(launches)
    ]


def counted(case: Case, launch: int, source: str = "ncu", **metrics: float) -> list[dict[str, Any]]:
    return [case.row(name, value, source, launch=launch, function=f"k{launch}") for name, value in metrics.items()]


def one(points: pd.DataFrame, **where: Any) -> pd.Series:
    for name, value in where.items():
        points = points[points[name].isna() if value is None else points[name] == value]
    assert len(points) == 1
    row: pd.Series = points.iloc[0]
    return row


def test_algorithm_point() -> None:
    table = schema.frame([*cost(SOFTMAX, 2e9, 6e8, 4e8), *timed(SOFTMAX, 1e-3, 1e-3)])
    point = one(roofline.points(table, TOY), kind="algorithm")
    assert (point["intensity"], point["gpu_time"], point["time_source"]) == (2.0, 2e-3, "torch_profiler")
    assert point["performance"] == pytest.approx(1e12)
    assert point["bandwidth"] == pytest.approx(0.5e12)
    # 2 flop/byte x the measured 1 TB/s: the datasheet's 2 TB/s is not what it is compared with.
    assert point["attainable"] == pytest.approx(2e12)
    assert point["fraction"] == pytest.approx(0.5)
    assert point["memory_roof"] == 1e12
    assert point["origin"] == "measured+datasheet"
    assert pd.isna(point["launch"])
    table = schema.frame([*cost(MATMUL, 1e12, 1e9, 0), *timed(MATMUL, 0.02)])
    point = one(roofline.points(table, TOY), kind="algorithm")
    assert (point["attainable"], point["fraction"]) == pytest.approx((100e12, 0.5))  # under the compute roof


def test_launch_among_several_has_the_pipe_that_it_keeps_busy() -> None:
    moved = {"dram_bytes_read": 1e9, "dram_bytes_written": 0}
    rows = [
        *cost(MATMUL, 1e12, 1e9, 0),
        *counted(MATMUL, 0, tensor_ops_bf16=1e12, flops_fp32=0, **moved),
        *counted(MATMUL, 1, tensor_ops_bf16=0, flops_fp32=1e9, **moved),
    ]
    points = roofline.points(schema.frame(rows), TOY)
    assert [one(points, kind="moved", level="hbm", launch=n)["pipe"] for n in (None, 0, 1)] == ["bf16", "bf16", "fp32"]


def test_points_of_launches_and_their_sum() -> None:
    table = schema.frame(
        [
            *cost(SOFTMAX, 2e9, 6e8, 4e8),
            *timed(SOFTMAX, 1e-3, 3e-3),
            *counted(SOFTMAX, 0, dram_bytes_read=5e8, dram_bytes_written=1e8, flops_fp32=1e9),
            *counted(SOFTMAX, 1, dram_bytes_read=4e8, dram_bytes_written=2e8, flops_fp32=3e9),
            *timed(SOFTMAX, 9, 9, source="ncu", samples=1),
        ]
    )
    points = roofline.points(table, TOY)
    moved = points[(points["kind"] == "moved") & (points["level"] == "hbm")]
    assert len(moved) == 3
    whole = one(moved, launch=None)
    assert (whole["bytes"], whole["flops"], whole["gpu_time"]) == pytest.approx((1.2e9, 2e9, 4e-3))
    assert (whole["executed"], whole["executed_ratio"]) == pytest.approx((4e9, 2.0))
    second = one(moved, launch=1)
    assert (second["function"], second["bytes"], second["gpu_time"]) == ("k1", 6e8, 3e-3)
    # Three quarters of what was executed, and so of what is needed.
    assert (second["flops"], second["executed"]) == pytest.approx((1.5e9, 3e9))
    assert second["intensity"] == pytest.approx(2.5)


def test_the_slower_of_two_is_the_lower_whatever_it_executes() -> None:
    """A kernel that computes twice as much in twice the time is half as fast; its intensity is the algorithm's too."""
    other = Case("softmax", "eager", "forward", "16384x4096-bf16")
    rows = []
    for case, seconds, executed in ((SOFTMAX, 1e-3, 2e9), (other, 2e-3, 8e9)):
        rows += [*cost(case, 2e9, 6e8, 4e8), *timed(case, seconds)]
        rows += counted(case, 0, dram_bytes_read=6e8, dram_bytes_written=4e8, flops_fp32=executed)
        asked = {"requested_bytes_read": 6e8, "requested_bytes_written": 4e8, "requested_flops": executed}
        rows += counted(case, 0, "interpreter", **asked)
    points = roofline.points(schema.frame(rows), TOY)
    assert set(points["kind"]) == {"algorithm", "requested", "moved"}
    assert points.groupby("impl")["performance"].unique().map(list).to_dict() == {"triton": [2e12], "eager": [1e12]}
    assert set(points["intensity"]) == {2.0}
    ratios = points[points["kind"] != "algorithm"].groupby("impl")["executed_ratio"].unique().map(list)
    assert ratios.to_dict() == {"triton": [1.0], "eager": [4.0]}


def test_time_comes_from_a_source_that_saw_as_many_launches() -> None:
    """The profiler saw three launches and ncu two, so they cannot be matched."""
    table = schema.frame(
        [
            *timed(SOFTMAX, 1e-3, 1e-3, 1e-3),
            *timed(SOFTMAX, 2e-3, 2e-3, source="ncu", samples=1),
            *counted(SOFTMAX, 0, dram_bytes_read=1e9, dram_bytes_written=0, flops_fp32=1),
            *counted(SOFTMAX, 1, dram_bytes_read=1e9, dram_bytes_written=0, flops_fp32=1),
        ]
    )
    points = roofline.points(table, TOY)
    assert one(points, launch=0)["time_source"] == "ncu"
    assert one(points, launch=None)["time_source"] == "torch_profiler"


def test_a_counter_missing_for_one_launch_gives_no_sum() -> None:
    table = schema.frame(
        [
            *cost(SOFTMAX, 1e9, 1e9, 0),
            *counted(SOFTMAX, 0, dram_bytes_read=1e9, dram_bytes_written=1e9, flops_fp32=1e9),
            *counted(SOFTMAX, 1, dram_bytes_read=1e9, flops_fp32=1e9),
        ]
    )
    moved = roofline.points(table, TOY).query("kind == 'moved'")
    assert moved["launch"].tolist() == [0]


def test_above_the_roof_is_marked() -> None:
    def point(nbytes: float) -> pd.Series:
        rows = [
            *timed(SOFTMAX, 1e-3),
            *counted(SOFTMAX, 0, dram_bytes_read=nbytes, dram_bytes_written=0, flops_fp32=1e6),
        ]
        return one(roofline.points(schema.frame(rows), TOY), launch=0)

    assert not point(1.08e9)["above_roof"]  # faster than a copy, not than reading alone
    assert point(1.3e9)["above_roof"]
    assert point(1.3e9)["fraction"] == pytest.approx(1.3)


def test_requested_points_without_a_gpu() -> None:
    requested = {"requested_bytes_read": 8e8, "requested_bytes_written": 2e8, "requested_flops": 2e9}
    table = schema.frame([*cost(SOFTMAX, 2e9, 4e8, 2e8), *counted(SOFTMAX, 0, source="interpreter", **requested)])
    points = roofline.points(table, TOY)
    assert set(points["kind"]) == {"algorithm", "requested"}
    assert set(points.loc[points["kind"] == "requested", "level"]) == {"hbm", "l1"}
    assert points["gpu_time"].isna().all()
    assert points["performance"].isna().all()
    assert not points["above_roof"].any()
    assert one(points, kind="requested", level="hbm", launch=0)["attainable"] == pytest.approx(2e12)


def test_tensor_loads_that_pass_l1_by_give_no_l1_point() -> None:
    """An H200's TMA loads: 12 kB in the L1 counter where L2 sent 1.6 GB."""
    table = counters.parse(FIXTURES / "ncu_nvtx_h200.csv.gz", MATMUL)
    points = roofline.points(table, device.for_target("sm_90"))
    assert set(points.loc[points["launch"] == 3, "level"]) == {"hbm", "l2"}
    assert set(points.loc[points["launch"] == 0, "level"]) == {"hbm", "l2", "l1"}


def test_points_without_work() -> None:
    rows = [*counted(SOFTMAX, 0, dram_bytes_read=1e9, dram_bytes_written=0, tensor_ops_bf16=0)]
    assert roofline.points(schema.frame(rows), TOY).empty
    table = schema.frame([*cost(SOFTMAX, 0, 0, 0), *timed(SOFTMAX, 0.0)])
    point = one(roofline.points(table, TOY), kind="algorithm")
    assert point[["intensity", "performance", "fraction"]].isna().all()


@pytest.mark.parametrize(
    ("rows", "kernels", "pipe"),
    [
        (cost(MATMUL, 1e12, 1e8, 0), None, "bf16"),
        (cost(SOFTMAX, 1e9, 1e9, 0), None, "fp32"),
        ([*cost(MATMUL, 1e12, 1e8, 0), *counted(MATMUL, 0, "compiler", tensor_instructions=0)], None, "fp32"),
        ([*cost(MATMUL, 1e9, 1e9, 0), *counted(MATMUL, 0, "compiler", tensor_instructions=4)], None, "bf16"),
        ([*cost(MATMUL, 1e12, 1e8, 0), *counted(MATMUL, 0, tensor_ops_bf16=0.0)], None, "fp32"),
        (
            cost(SOFTMAX, 1e9, 1e9, 0),
            {"softmax": {"cost": {"16384x4096-bf16": {"forward": {"pipe": "fp64"}}}}},
            "fp64",
        ),
    ],
)
def test_pipe(rows: list[dict[str, Any]], kernels: dict[str, Any] | None, pipe: str) -> None:
    points = roofline.points(schema.frame(rows), TOY, kernels)
    assert one(points, kind="algorithm")["pipe"] == pipe


def test_no_roof_no_fraction() -> None:
    bare = dataclasses.replace(TOY, ceilings=())
    table = schema.frame([*cost(SOFTMAX, 2e9, 6e8, 4e8), *timed(SOFTMAX, 1e-3)])
    point = one(roofline.points(table, bare), kind="algorithm")
    assert pd.isna(point["attainable"])
    assert pd.isna(point["fraction"])
    assert point["performance"] == pytest.approx(2e12)
    assert all_roofs(bare).empty


def test_roofs() -> None:
    roofs = all_roofs(TOY)
    assert len(roofs) == len(TOY.ceilings)
    assert set(roofs.loc[roofs["kind"] == "memory", "name"]) == {"hbm", "hbm_read", "l2"}
    assert set(roofs.loc[roofs["kind"] == "compute", "name"]) == {"fp32", "bf16"}
