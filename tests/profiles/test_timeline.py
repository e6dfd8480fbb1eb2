"""Gaps and their causes on timelines small enough to compute by hand."""

import gzip
import json
from pathlib import Path

import pandas as pd
import pytest
from tilescope.collectors import torch_profiler
from tilescope.models import chrome_trace, timeline
from tilescope.runs import store
from tilescope.table import launch_configs, schema
from tilescope.table.case import Case
from tilescope.table.run import Device, Run

CASE = Case("softmax", "triton", "forward", "128x64-bf16")
GOLDEN = Path(__file__).parent / "fixtures" / "torch_profiler_trace.json"
US = 1e-6


def rows(*launches, case=CASE, sample=0):
    """Rows for launches of (start, duration, call) in microseconds."""
    found = []
    for launch, (start, duration, call) in enumerate(launches):
        at = {"launch": launch, "function": f"kernel_{launch}", "sample": sample}
        found.append(case.row("launch_start", start * US, "torch_profiler", **at))
        found.append(case.row("gpu_time", duration * US, "torch_profiler", **at))
        if call is not None:
            found.append(case.row("launch_call", call * US, "torch_profiler", **at))
    return found


def us(values):
    return [round(value / US, 6) for value in values]


def test_gaps_and_how_late_the_cpu_was():
    table = schema.frame(rows((0, 10, -5), (11, 4, 2), (35, 5, 30), (40, 1, 20)))
    found = timeline.timeline(table)
    assert us(found["gap"])[1:] == [1, 20, 0]
    # The third was called at 30, 15 us after the GPU had become idle; the others in time.
    assert us(found["late"])[1:] == [0, 15, 0]
    assert found[["gap", "late"]].iloc[0].isna().all()
    sums = timeline.totals(found).iloc[0]
    assert us(sums[["window", "busy", "gaps", "late"]]) == [41, 20, 21, 15]
    assert sums["busy_share"] == pytest.approx(20 / 41)
    assert sums["launches"] == 4


def test_launches_that_overlap_leave_no_gap():
    # The second lies within the first, and the third follows the first's end.
    found = timeline.timeline(schema.frame(rows((0, 10, None), (2, 3, None), (12, 1, None))))
    assert us(found["gap"])[1:] == [0, 2]
    sums = timeline.totals(found).iloc[0]
    assert us(sums[["window", "busy"]]) == [13, 11]


def test_absent_calls_leave_the_cause_absent():
    found = timeline.timeline(schema.frame(rows((0, 10, None), (20, 1, None), (25, 1, 24))))
    assert found["late"].isna().tolist() == [True, True, False]
    assert us(timeline.totals(found)["late"]) == [3]
    found = timeline.timeline(schema.frame(rows((0, 10, None), (20, 1, None))))
    assert timeline.totals(found)["late"].isna().all()


def test_a_launch_without_a_start_is_not_on_the_timeline():
    table = schema.frame(
        [
            *rows((0, 10, None)),
            CASE.row("gpu_time", 1.0, "ncu", launch=0, function="kernel_0"),
            CASE.row("gpu_time", 1.0, "torch_profiler", launch=7, function="lost", sample=0),
            CASE.row("interval", 1.0, "events", sample=0),
        ]
    )
    found = timeline.timeline(table)
    assert found["function"].tolist() == ["kernel_0"]
    assert found["source"].tolist() == ["torch_profiler"]


def test_an_empty_table_gives_empty_frames():
    found = timeline.timeline(schema.frame([]))
    assert found.empty
    assert list(found.columns) == timeline.COLUMNS
    sums = timeline.totals(found)
    assert list(sums.columns) == timeline.TOTALS_COLUMNS
    assert timeline.typical(sums).empty
    assert timeline.of_repetitions(found, sums).empty


def test_the_typical_repetition_is_the_one_of_median_window():
    eager = Case("softmax", "eager", "forward", "128x64-bf16")
    table = schema.frame(
        [
            *(row for sample, long in enumerate((9, 5, 7)) for row in rows((0, long, None), sample=sample)),
            *(row for sample, long in enumerate((4, 3)) for row in rows((0, long, None), case=eager, sample=sample)),
        ]
    )
    launches = timeline.timeline(table)
    chosen = timeline.typical(timeline.totals(launches)).set_index("impl")["sample"]
    assert chosen.to_dict() == {"triton": 2, "eager": 1}
    kept = timeline.of_repetitions(launches, timeline.typical(timeline.totals(launches)))
    assert sorted(us(kept["duration"])) == [3, 7]


def test_runs_put_together_stay_apart():
    table = schema.frame(rows((0, 10, None), (20, 1, None)))
    both = pd.concat([table.assign(run_id="a"), table.assign(run_id="b")], ignore_index=True)
    assert len(timeline.totals(timeline.timeline(both))) == 2


def test_the_golden_trace():
    sums = timeline.totals(timeline.timeline(torch_profiler.parse(GOLDEN, CASE)))
    assert us(sums["gaps"]) == pytest.approx([2.52, 2.264])
    assert (sums["late"] == 0).all()


def test_a_trace_made_from_the_table_says_the_same():
    eager = Case("softmax", "eager", "forward", "128x64-bf16")
    table = schema.frame([*rows((0, 10, -5), (12, 1, 3)), *rows((0, 4, None), case=eager)])
    trace = json.loads(gzip.decompress(chrome_trace.made(timeline.timeline(table))))
    kernels = [e for e in trace["traceEvents"] if e["ph"] == "X"]
    assert {(e["pid"], e["name"], round(e["ts"], 6), round(e["dur"], 6)) for e in kernels} == {
        (0, "kernel_0", 0, 4), (1, "kernel_0", 0, 10), (1, "kernel_1", 12, 1),
    }  # fmt: skip
    assert [round(e["ts"], 6) for e in trace["traceEvents"] if e["ph"] == "i"] == [-5, 3]
    names = {(e["pid"], e["args"]["name"]) for e in trace["traceEvents"] if e["name"] == "process_name"}
    assert names == {(0, "eager"), (1, "triton")}


def test_a_kept_trace_is_found_by_its_case(tmp_path):
    device = Device("none", "sm_90", 1, 1, 1, measured=False)
    run = Run("20260102-030405-aaaa", "", device, {}, {}, {})
    loaded = store.LoadedRun(run, schema.frame([]), tmp_path)
    assert chrome_trace.kept(loaded, CASE) is None
    path = tmp_path / "artefacts" / "torch_profiler" / f"{CASE.slug}{torch_profiler.SUFFIX}"
    path.parent.mkdir(parents=True)
    launch_configs.write(path, CASE, [])
    assert chrome_trace.kept(loaded, CASE) is None
    path.write_bytes(b"")
    assert chrome_trace.kept(loaded, CASE) == path
