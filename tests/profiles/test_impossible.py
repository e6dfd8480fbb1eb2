"""Impossible measurements: each rule on an impossible case and on a possible one beside it, and the recordings."""

import json

import pandas as pd
import pytest
from tilescope import cli
from tilescope.models import advice, impossible, summary
from tilescope.table import schema
from tilescope.table.run import Ceiling, Device, Run

from .made_up import MB, cost, gpu, values

#: HBM moves a million bytes in a microsecond, by its datasheet. L2 holds 10 MB.
GPU = gpu(sheet_hbm=1e12, hbm=0.9e12, sheet_fp32=1e13)


def table(given, **needed):
    """A case's table: keys are ``metric@source`` or ``metric@source@launch``; times of events are the whole case's."""
    rows = cost(**needed)
    for key, value in given.items():
        metric, source, *launch = key.split("@")
        number = None if source == "events" else int(launch[0]) if launch else 0
        rows += values({f"{metric}@{source}": value}, number, stem="scale_")
    return schema.frame(rows)


def found(given, **needed):
    return {reason.rule for _, reason in impossible.of_table(table(given, **needed), GPU)}


TRACED, COUNTED = "gpu_time@torch_profiler", "gpu_time@ncu"
FINE = {TRACED: 110e-6, COUNTED: 112e-6, "interval@events": 113e-6, "graph_time@events": 111e-6,
        "dram_bytes_read@ncu": 50 * MB, "dram_bytes_written@ncu": 44 * MB, "l1_to_l2_bytes@ncu": 50 * MB,
        "unique_bytes_written@interpreter": 50 * MB}  # fmt: skip

#: A rule, values that no GPU has, and the cost where it is not 50 MB each way.
IMPOSSIBLE = [
    # Of 100 MB at least 80 cross HBM, whatever L2 held: 76 us at the least.
    (impossible.ROOF, {TRACED: 70e-6}, {}),
    (impossible.ROOF, {"graph_time@events": 70e-6}, {}),
    (impossible.ROOF, {TRACED: 10e-6}, {"read": MB, "written": MB, "flops": 1.2e8}),
    (impossible.ROOF, {COUNTED: 110e-6, "dram_bytes_read@ncu": 80 * MB, "dram_bytes_written@ncu": 50 * MB}, {}),
    # 50 MB in and 40 out take 86 us where L2 was cold before.
    (impossible.CACHED, {TRACED: 80e-6}, {}),
    # 8 MB fit in L2, and were found there: from HBM they take 7.6 us.
    (impossible.CACHED, {TRACED: 6e-6}, {"read": 8 * MB, "written": 8 * MB}),
    (impossible.CACHED, {"dram_bytes_read@ncu": 6 * MB}, {"read": 8 * MB}),
    (impossible.BYTES, {"dram_bytes_read@ncu": 44 * MB}, {}),
    (impossible.BYTES, {"dram_bytes_written@ncu": 39 * MB}, {}),
    (impossible.OUTPUT, {"l1_to_l2_bytes@ncu": 0}, {}),
    (impossible.OUTPUT, {"l1_to_l2_bytes@ncu": 44 * MB}, {}),
    (impossible.OUTPUT, {"unique_bytes_written@interpreter": 0}, {}),
    (impossible.OUTPUT, {TRACED: 2e-6, "l1_to_l2_bytes@ncu": 0}, {"read": 4200, "written": 4200}),
    (impossible.CLOCKS, {TRACED: 200e-6, "interval@events": 140e-6}, {}),
    (impossible.CLOCKS, {TRACED: 200e-6, "graph_time@events": 140e-6}, {}),
    (impossible.CLOCKS, {TRACED: 200e-6, COUNTED: 140e-6}, {}),
    (impossible.CLOCKS, {TRACED: 110e-6, COUNTED: 240e-6}, {}),
]  # fmt: skip

#: The like of each that is possible.
POSSIBLE = [
    (FINE, {}),
    # All of it at the sheet's roof, and all but the 10 MB of output that stay in L2.
    ({TRACED: 100e-6}, {}),
    ({TRACED: 90e-6}, {}),
    # Caches serve: a product asks for its operands again and again, which no cost counts.
    ({TRACED: 110e-6, "requested_bytes_read@interpreter": 5e9, "l2_to_l1_bytes@ncu": 5e9}, {}),
    ({TRACED: 12e-6}, {"read": 8 * MB, "written": 8 * MB}),
    # All of the output may be in L2 when the launch ends.
    ({TRACED: 9e-6, "dram_bytes_written@ncu": 0}, {"read": 8 * MB, "written": 8 * MB}),
    ({TRACED: 10e-6}, {"read": MB, "written": MB, "flops": 1e8}),
    # Whole tensors, of which a captured launch may touch a part.
    ({TRACED: 30e-6, "dram_bytes_read@ncu": 20 * MB, "tensor_bytes@model": 100 * MB}, {}),
    # Liger's RoPE knows that half of its table is the other half.
    ({"dram_bytes_read@ncu": 48.8 * MB}, {}),
    # The last of the output is in L2 when a launch ends.
    ({"dram_bytes_written@ncu": 41 * MB}, {}),
    # The CPU is late, or heat lowered the clock.
    ({TRACED: 110e-6, "interval@events": 900e-6, "graph_time@events": 120e-6}, {}),
    ({TRACED: 200e-6, "interval@events": 180e-6, "graph_time@events": 180e-6, COUNTED: 175e-6}, {}),
    # Short launches take longer under ncu; launches that overlap are no longer than the time in which any runs.
    ({TRACED: 1.6e-6, COUNTED: 2.9e-6}, {"read": 0.1 * MB, "written": 0.1 * MB}),
    ({f"{TRACED}@0": 100e-6, f"{TRACED}@1": 100e-6, "launch_start@torch_profiler@1": 5e-6, "interval@events": 108e-6}, {}),
    # A chain is counted with cold caches before each launch.
    ({f"{TRACED}@0": 60e-6, f"{TRACED}@1": 60e-6, f"{COUNTED}@0": 150e-6, f"{COUNTED}@1": 150e-6}, {}),
    # ncu sees no copies: what it did not see it cannot be held to.
    ({f"{TRACED}@0": 60e-6, f"{TRACED}@1": 140e-6, COUNTED: 60e-6}, {"read": 20 * MB, "written": 20 * MB}),
    # An empty problem, and one of nothing but arguments.
    ({TRACED: 1e-6, "l1_to_l2_bytes@ncu": 0, "dram_bytes_read@ncu": 0}, {"read": 0, "written": 0, "flops": 0}),
    ({TRACED: 1e-6, "l1_to_l2_bytes@ncu": 0, "dram_bytes_read@ncu": 0}, {"read": 4000, "written": 4000}),
]  # fmt: skip


@pytest.mark.parametrize(("rule", "given", "needed"), IMPOSSIBLE)
def test_what_cannot_be_is_called_so(rule, given, needed):
    assert found(given, **needed) == {rule}


@pytest.mark.parametrize(("given", "needed"), POSSIBLE)
def test_what_can_be_is_left_alone(given, needed):
    assert not found(given, **needed)


def test_overlapping_launch_counts_its_remaining_time():
    overlapping = {f"{TRACED}@0": 100e-6, f"{TRACED}@1": 100e-6, "launch_start@torch_profiler@0": 0.0}
    assert not found({**overlapping, "launch_start@torch_profiler@1": 5e-6, "interval@events": 106e-6})
    apart = {**overlapping, "launch_start@torch_profiler@1": 101e-6, "interval@events": 106e-6}
    assert found(apart) == {impossible.CLOCKS}


def test_device_without_datasheet_has_nothing_impossible():
    unknown = Device("Other", "sm_90", 100, 0, 0, True, (Ceiling("hbm", 1e12, "byte/second", "measured"),))
    given = {TRACED: 1e-6, "dram_bytes_read@ncu": 0}
    assert not list(impossible.of_table(table(given), unknown))
    assert list(impossible.of_table(table(given), GPU))


def test_advice_says_it_first_and_nothing_else_of_that_case():
    rows = table({TRACED: 70e-6, "widest_load@compiler": 4})
    right = rows.assign(impl="eager").replace({"value": {70e-6: 400e-6}})
    both = pd.concat([right, rows], ignore_index=True)
    findings = advice.findings(both, GPU)
    assert findings[0].rule == impossible.ROOF and findings[0].impossible and findings[0].measured
    assert findings[0].title == (
        "Impossible: 1.14 TB/s from HBM by GPU time (torch_profiler), which gives 1.00 TB/s at most, whatever L2 holds"
    )
    assert {value.metric for value in findings[0].evidence} >= {"gpu_time", "algorithm_bytes_read", "roof_hbm"}
    assert [f.rule for f in findings if f.impl == "triton"] == [impossible.ROOF]
    assert {f.impl for f in findings[1:]} == {"eager"} and not any(f.impossible for f in findings[1:])
    json.dumps(findings[0].to_json())


def test_the_summary_says_it_in_place_of_what_bounds_the_case():
    (why,) = summary.summarise(table({TRACED: 70e-6}), GPU)["why"]
    assert why.startswith("Impossible: 1.14 TB/s from HBM") and "bound" not in why
    (why,) = summary.summarise(table(FINE), GPU)["why"]
    assert why.startswith("Memory-bound")


def test_no_speedup_is_of_a_time_that_cannot_be_nor_over_one():
    for seconds, known in ((70e-6, False), (110e-6, True)):
        ours, theirs = table({TRACED: seconds}), table({TRACED: 220e-6}).assign(impl="eager")
        for one, two in ((ours, theirs), (theirs.assign(impl="triton"), ours.assign(impl="eager"))):
            rows = summary.summarise(pd.concat([one, two], ignore_index=True), GPU).set_index("impl")
            assert pd.notna(rows.at["triton", "speedup_eager"]) == known


def test_show_says_it_of_a_run(tmp_path, capsys):
    run = Run("20261125-000000-abcd", "2026-11-25T00:00:00+00:00", GPU, {"scale": {}}, {}, {"target": "sm_90"})
    for folder, seconds in (("wrong", 70e-6), ("right", 110e-6)):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "run.json").write_text(json.dumps(run.to_json()))
        table({TRACED: seconds}).assign(run_id=run.id).to_parquet(tmp_path / folder / "table.parquet")
        assert cli.main(["show", str(tmp_path / folder)]) == 0
        said = [line for line in capsys.readouterr().out.splitlines() if "impossible" in line]
        assert len(said) == (folder == "wrong"), "once: the notes have it too"
        assert all("scale/triton/forward/1000x1000-fp32: 1.14 TB/s from HBM" in line for line in said)
