"""Traffic of fused and unfused code: softmax in one kernel, and as the five operations of eager PyTorch."""

import pandas as pd
import pytest
from tilescope.models import traffic
from tilescope.table import schema
from tilescope.table.case import Case

SIZE = 1823 * 781 * 4
WORKLOAD = "1823x781-fp32"
FUSED = Case("softmax", "triton", "forward", WORKLOAD)
EAGER = Case("softmax", "eager", "forward", WORKLOAD)


def launches(case, source, stem, *bytes_each):
    return [
        case.row(f"{stem}_{way}", value, source, launch=n, function=f"k{n}")
        for n, pair in enumerate(bytes_each)
        for way, value in zip(("read", "written"), pair, strict=True)
    ]


def floor(case):
    return [case.row(f"algorithm_bytes_{way}", SIZE, "model") for way in ("read", "written")]


def times(case, *seconds, source="torch_profiler"):
    return [
        case.row("gpu_time", s, source, launch=n, function=f"k{n}", sample=i)
        for i in range(3)
        for n, s in enumerate(seconds)
    ]


@pytest.fixture
def table():
    return schema.frame(
        [
            *floor(FUSED),
            *floor(EAGER),
            *launches(FUSED, "interpreter", "unique_bytes", (SIZE, SIZE)),
            *launches(FUSED, "interpreter", "requested_bytes", (2 * SIZE, SIZE)),
            *launches(
                EAGER, "interpreter", "unique_bytes", (SIZE, 0), (SIZE, SIZE), (SIZE, SIZE), (SIZE, 0), (SIZE, SIZE)
            ),
            *launches(FUSED, "ncu", "dram_bytes", (1.1 * SIZE, 0.9 * SIZE)),
            *times(FUSED, 10e-6),
            *times(EAGER, 5e-6, 10e-6, 10e-6, 5e-6, 10e-6),
        ]
    )


def test_each_launch_each_source_and_the_floor(table):
    found = traffic.traffic(table)
    eager = found[(found["impl"] == "eager") & (found["source"] == "interpreter")]
    assert eager["launch"].tolist() == [0, 1, 2, 3, 4]
    assert eager["read"].sum() == 5 * SIZE
    assert eager["written"].tolist() == [0, SIZE, SIZE, 0, SIZE]
    assert (found["floor_read"] == SIZE).all()
    fused = found[found["impl"] == "triton"].set_index("source")
    assert fused.loc["ncu", "read"] == pytest.approx(1.1 * SIZE)
    assert (fused.loc["interpreter", "metric"], fused.loc["interpreter", "read"]) == ("unique_bytes", SIZE)
    assert (fused.loc["model", "written"], fused.loc["model", "metric"]) == (SIZE, "algorithm_bytes")
    assert pd.isna(fused.loc["model", "launch"])


def test_predicted_and_actual_speedup(table):
    (row,) = traffic.speedup(table).to_dict("records")
    assert (row["impl"], row["baseline"]) == ("triton", "eager")
    # Both sides from the interpreter, though ncu counted one of them.
    assert row["bytes_source"] == "interpreter"
    assert row["predicted"] == pytest.approx(8 / 2)
    assert row["actual"] == pytest.approx(4.0)
    assert row["time_source"] == "torch_profiler"


def test_sources_are_not_mixed():
    table = schema.frame(
        [
            *launches(FUSED, "interpreter", "unique_bytes", (SIZE, SIZE)),
            *launches(EAGER, "ncu", "dram_bytes", (4 * SIZE, 4 * SIZE)),
            *times(FUSED, 1e-6, source="ncu"),
            *times(EAGER, 4e-6),
        ]
    )
    (row,) = traffic.speedup(table).to_dict("records")
    assert pd.isna(row["predicted"])
    assert pd.isna(row["actual"])


def test_no_baseline_no_row(table):
    assert traffic.traffic(table.head(0)).empty and traffic.speedup(table.head(0)).empty
    assert traffic.speedup(table[table["impl"] == "triton"]).empty
    assert traffic.speedup(table, baseline="compile").empty
