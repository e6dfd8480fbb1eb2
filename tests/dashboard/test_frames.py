"""The dashboard's own frames, units and words."""

import numpy as np
import pandas as pd
import pytest
from tilescope.hardware import occupancy
from tilescope.models import sweeps
from tilescope.table import schema
from tilescope.table.case import Case
from tilescope_dashboard.components import html_text
from tilescope_dashboard.data import exports, frames
from tilescope_dashboard.data.units import times, write
from tilescope_dashboard.topics import occupancy as topic

from . import synthetic


def test_a_sweep_is_one_row_a_config_with_what_failed() -> None:
    rows, failures = synthetic.sweep_rows()
    found = sweeps.configs(schema.frame(rows), failures)
    assert len(found) == 32
    failed = found[found["reason"] != ""]
    assert set(failed["BLOCK_M"]) == {256}
    assert failed["time"].isna().all()
    best = found.loc[found["time"].idxmin()]
    assert best["config"] == "BLOCK_M=128,BLOCK_N=128,num_warps=8"
    assert best["time_source"] == "torch_profiler, gpu time"
    assert sweeps.parameters(found) == ["BLOCK_M", "BLOCK_N", "num_warps"]


def test_a_config_s_time_is_its_launches_together() -> None:
    case = Case("matmul", "triton", "forward", "64x64x64-bf16", "BLOCK=4")
    rows = [
        case.row("gpu_time", value, "torch_profiler", launch=launch, sample=sample)
        for sample, launch, value in [(0, 0, 1.0), (0, 1, 2.0), (1, 0, 3.0), (1, 1, 4.0), (2, 0, 1.0), (2, 1, 1.0)]
    ]
    assert sweeps.configs(schema.frame(rows))["time"].tolist() == [3.0]


def test_default_configs_leave_a_sweep_its_fastest() -> None:
    swept = schema.frame(synthetic.sweep_rows()[0])
    assert set(frames.default_configs(swept)["config"]) == {"BLOCK_M=128,BLOCK_N=128,num_warps=8"}
    untimed = swept[swept["metric"] != "gpu_time"]
    assert set(frames.default_configs(untimed)["config"]) == {"BLOCK_M=32,BLOCK_N=32,num_warps=4"}
    own = schema.frame(
        [Case("matmul", "triton", "forward", "4096x4096x4096-bf16").row("registers", 9, "compiler", launch=0)]
    )
    both = pd.concat([swept, own], ignore_index=True)
    assert set(frames.default_configs(both)["config"]) == {""}


@pytest.mark.parametrize("resource", ["registers", "shared_memory", "warps"])
def test_the_curve_goes_through_the_kernel_s_point(resource: str) -> None:
    row = {"registers": 72, "shared_memory": 20_480, "block_threads": 192, "barriers": 1}
    curve = topic.curve(row, "sm_90", resource)
    value = 6 if resource == "warps" else row[resource]
    at = curve[curve["value"] <= value].iloc[-1]
    assert at["occupancy"] == occupancy.blocks("sm_90", 72, 20_480, 192).ratio
    assert curve["value"].is_monotonic_increasing


def test_occupancies_use_the_launch_s_carve_out() -> None:
    case = Case("softmax", "triton", "forward", "8x8-fp32")
    known = {"registers": 16, "shared_memory": 128, "block_threads": 128, "barriers": 1}
    rows = [case.row(name, value, "ncu", launch=0, function="f") for name, value in known.items()]
    carved = [*rows, case.row("shared_memory_configured", 32_768, "ncu", launch=0, function="f")]
    assert topic.occupancies(schema.frame(rows), "sm_90")["active_blocks"].tolist() == [16]
    assert topic.occupancies(schema.frame(carved), "sm_90")["limit_shared_memory"].tolist() == [28]
    assert topic.occupancies(schema.frame(rows), "sm_90")["limiter"].tolist() == ["warps"]
    assert topic.occupancies(schema.frame([]), "sm_90").empty


def test_resources_prefer_measured_and_keep_launch_order() -> None:
    case = Case("softmax", "triton", "forward", "8x8-fp32")

    def found(*launches: tuple[str, int, int]) -> pd.DataFrame:
        rows = [
            case.row(name, value, source, launch=launch, function="ba"[launch % 2])
            for source, launch, registers in launches
            for name, value in (("registers", registers), ("block_threads", 128))
        ]
        return topic.resources(schema.frame(rows))

    assert found(("compiler", 0, 30), ("ncu", 0, 32))[["registers", "source"]].to_numpy().tolist() == [[32, "ncu"]]
    assert found(("ncu", 2, 32), ("ncu", 0, 30), ("ncu", 1, 31))["registers"].tolist() == [30, 31, 32]


def test_config_is_told_as_the_terminal_tells_it() -> None:
    case = Case("softmax", "triton", "forward", "8x8-fp32", "BLOCK=8")
    rows = [
        case.row(name, value, source, launch=0, function="f")
        for source, registers in (("compiler", 159), ("torch_profiler", 212))
        for name, value in (("registers", registers), ("shared_memory", 1024), ("block_threads", 256))
    ]
    (found,) = sweeps.configs(schema.frame(rows), target="sm_90").to_dict("records")
    assert (found["registers"], found["code_source"], found["theoretical_occupancy"]) == (212, "torch_profiler", 8 / 64)
    times = {"ncu": (5e-6,), "torch_profiler": (2e-6, 3e-6, 4e-6)}
    rows = [
        case.row(
            "gpu_time", value, source, launch=0, function="f", sample=sample if source == "torch_profiler" else None
        )
        for source, values in times.items()
        for sample, value in enumerate(values)
    ]
    (found,) = sweeps.configs(schema.frame(rows), target="sm_90").to_dict("records")
    assert (found["time"], found["time_source"]) == (3e-6, "torch_profiler, gpu time")
    untimed = [case.row("interval", 9e-6, "events", sample=0), case.row("graph_time", 7e-6, "events", sample=0)]
    (found,) = sweeps.configs(schema.frame(untimed), target="sm_90").to_dict("records")
    assert (found["time"], found["time_source"]) == (7e-6, "events, graph time")


def test_absent_is_a_dash_and_never_a_zero() -> None:
    for nothing in (None, np.nan, pd.NA):
        assert write(nothing, "second") == "–"
        assert times(nothing) == "–"
    assert write(5_695_052, "byte") == "5.70 MB"
    assert times(2.3149) == "2.31×"


def test_words_escape_what_comes_from_outside() -> None:
    hostile = "<img src=x onerror=alert(1)>"
    pieces = [
        html_text.notice("error", hostile, hostile), html_text.heading(hostile, hostile),
        html_text.subheading(hostile, hostile), html_text.stats([(hostile, hostile, hostile)]),
        html_text.plain(hostile),
    ]  # fmt: skip
    for piece in pieces:
        assert "<img" not in piece
        assert "&lt;img" in piece


def test_csv_has_no_formula_and_no_control_characters() -> None:
    frame = pd.DataFrame({"kernel": ["=1+1", "-3", "\x1b[31m\u202e", "ok"], "value": [1.0, -2.0, 3.0, 4.0]})
    lines = exports.as_csv(frame).getvalue().decode().splitlines()
    assert lines[1:] == ["'=1+1,1.0", "'-3,-2.0", "\\x1b[31m\\u202e,3.0", "ok,4.0"]
