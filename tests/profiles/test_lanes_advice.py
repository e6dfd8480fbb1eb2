"""Advice from lanes: each rule fires on its fault, and not on what looks alike."""

from pathlib import Path

import pandas as pd
import pytest
from tilescope.collectors.lanes import collector, facts, records, trace
from tilescope.execution import execute
from tilescope.hardware import device
from tilescope.models import advice
from tilescope.table import schema
from tilescope.table.case import Case

from . import lane_faults
from .made_up import GPU, MB, cost, values

#: One program of each seed, as an H200 recorded it.
SEEDS = Path(__file__).parent / "fixtures" / "lanes" / "seeds"
CASE = Case("mm", "triton", "forward", "1000x1000x1000-fp16")
OURS = {
    "shallow-pipeline",
    "starved-products",
    "epilogue-alone",
    "uneven-warps",
    "block-barriers",
    "layout-conversions",
    "long-tail",
}
#: A loop of products that waits for its tiles, and one that does not.
WAITS = {"lane_tile_wait_share": 0.5, "lane_tile_wait_line": 34, "lane_product_share": 0.3}
EPILOGUE = {"lane_epilogue_share": 0.4, "lane_programs_per_sm": 1}


def found(known, moved=100 * MB):
    """The rules on lanes that fire on a launch of 400 us with these metrics, which moves so many bytes."""
    measured = {"gpu_time@torch_profiler": 400e-6, "dram_bytes_read@ncu": moved, "dram_bytes_written@ncu": 50 * MB}
    rows = [*cost(CASE), *values({f"{name}@lanes": value for name, value in known.items()} | measured, 0, CASE)]
    return {one.rule: one for one in advice.findings(schema.frame(rows), GPU) if one.rule in OURS}


@pytest.mark.parametrize(
    ("known", "rule", "said"),
    [
        (WAITS, "shallow-pipeline", "wait 50 % of the loop of products for its tiles at line 34"),
        (WAITS | {"lane_free_wait_share": 0.6}, "shallow-pipeline", "too shallow"),
        (WAITS | {"lane_free_wait_share": 0.05}, "starved-products", "never ahead"),
        (
            WAITS | {"lane_load_wait_share": 0.5, "lane_barrier_share": 0.01},
            "block-barriers",
            "keeps its loads from running",
        ),
        # The tiles come by asynchronous copies, which a barrier does not keep.
        (WAITS | {"lane_load_wait_share": 0.0, "lane_barrier_share": 0.01}, "shallow-pipeline", "too shallow"),
        (EPILOGUE, "epilogue-alone", "40 % of a program comes after its last product"),
        ({"lane_imbalance": 1.5}, "uneven-warps", "1.5× as long"),
        ({"lane_barrier_share": 0.3}, "block-barriers", "30 % of their time at barriers"),
        ({"lane_conversion_share": 0.3}, "layout-conversions", "30 % of their time in layout"),
        ({"lane_tail_share": 0.4}, "long-tail", "the SMs idle 40 % of it after their last program"),
    ],
)
def test_a_loss_is_named_with_its_bound(known, rule, said):
    findings = found(known | {"lanes_slowdown": 1.1})
    assert set(findings) == {rule}
    assert said in findings[rule].title
    assert findings[rule].bound.ratio > 1
    assert "lanes_slowdown" in {value.metric for value in findings[rule].evidence}


@pytest.mark.parametrize(
    "known",
    [
        # Warps wait in turn while the tensor cores stay busy.
        WAITS | {"lane_product_share": 0.9},
        WAITS | {"lane_tile_wait_share": 0.1},
        # Another program computes meanwhile.
        EPILOGUE | {"lane_programs_per_sm": 2},
        {"lane_tail_share": 0.1},
        {"lane_imbalance": 1.05, "lane_barrier_share": 0.05, "lane_conversion_share": 0.1, "lane_wait_share": 0.9},
    ],
)
def test_what_looks_alike_is_silent(known):
    assert not found(known)


def test_at_the_roof_waits_are_silent():
    assert not found(WAITS | EPILOGUE, moved=340 * MB)


def test_without_a_time_waits_are_silent():
    rows = [*cost(CASE), *values({f"{name}@lanes": value for name, value in WAITS.items()}, 0, CASE)]
    assert not {one.rule for one in advice.findings(schema.frame(rows), GPU)} & OURS


def _lane(warp, *spans, group="", program=0):
    """Spans of a lane one after the other: a kind, a name, what it waits for, and its length."""
    rows, at = [], 0.0
    for kind, name, awaits, length in spans:
        rows.append((0, "k", program, warp, group, kind, name, 7, 0, awaits, "", False, 0, 0.0, at, at + length))
        at += length
    return rows


PRODUCT = (records.PRODUCT, "product", "", 1.0)
DONE = (records.WAIT, "wait for products", "product of line 7", 1.0)
TILE = (records.WAIT, "wait for copies", "asynchronous copy of line 7", 6.0)


def _facts(*lanes):
    return facts.of_launch(pd.DataFrame([row for lane in lanes for row in lane], columns=trace.COLUMNS))


def test_only_waits_within_the_loop_count():
    steps = [TILE, PRODUCT, DONE] * 6
    assert _facts(_lane(0, *steps))["lane_tile_wait_share"] == pytest.approx(30 / 41)
    # The first tile of a loop has nothing to hide behind, and three products are no loop.
    assert _facts(_lane(0, TILE, *[PRODUCT, DONE] * 6))["lane_tile_wait_share"] == 0
    assert "lane_tile_wait_share" not in _facts(_lane(0, *steps[:9]))


def test_a_product_that_its_wait_found_ended_flew_as_long_as_its_pipe_needs():
    def share(waited, least):
        rows = _lane(
            0,
            *[PRODUCT, (records.WAIT, "wait for copies", "", 8e-6), (records.WAIT, "wait for products", "", waited)]
            * 2,
        )
        known = pd.DataFrame(rows, columns=trace.COLUMNS).assign(least=least)
        known.loc[known["name"] == "product", "end"] -= 1 - 1e-6
        for at in range(1, len(known)):
            known.loc[at, ["start", "end"]] += known.loc[at - 1, "end"] - known.loc[at, "start"]
        return facts.product_share(known)

    # A wait of 3 us was for the product, one of 10 ns found it ended. Where its pipe is not known, it may have flown until then.
    assert share(3e-6, 4e-6) == pytest.approx(1)
    assert share(1e-8, 4e-6) == pytest.approx(4 / 9.01)
    assert share(1e-8, 0.0) == pytest.approx(1)


def test_groups_of_warps_are_compared_by_their_work():
    wait = (records.WAIT, "wait on barrier", "arrive at barrier", 40.0)
    long, short = [PRODUCT, (trace.ARITHMETIC, "after product", "", 9.0)] * 4, [PRODUCT] * 4
    found = _facts(_lane(0, *long, group="default"), _lane(4, *short, wait, group="partition0"))
    assert found["lane_imbalance"] == pytest.approx(40 / 22)
    assert _facts(_lane(0, *short), _lane(1, *short, wait)).get("lane_imbalance") is None


def _named(artefact, spec, impl, gpu):
    """The rules on lanes that fire on a recorded implementation of a seed, the first one first."""
    case = Case(spec.name, impl, "forward", spec.workloads[0].id)
    (told, *_) = trace.load(artefact).launches
    time = case.row("gpu_time", told["plain"], "torch_profiler", launch=0, function=told["function"], sample=0)
    frame = schema.frame([*collector.parse(artefact, case).to_dict("records"), time])
    return [one.rule for one in advice.findings(frame, gpu) if one.rule in OURS]


@pytest.mark.parametrize("artefact", sorted(SEEDS.iterdir()), ids=lambda path: path.name.partition(".")[0])
def test_recorded_seeds_are_named_and_their_twins_are_not(artefact):
    name, impl = artefact.name.partition(".")[0].split("-")
    found = _named(artefact, getattr(lane_faults, name), impl, GPU)
    assert found[:1] == ([lane_faults.RULES[name]] if impl == "fault" else [])


@pytest.mark.gpu
@pytest.mark.skipif(device.unavailable() is not None, reason=str(device.unavailable()))
@pytest.mark.parametrize("name", lane_faults.RULES)
def test_seeded_faults_are_named_and_their_twins_are_not(name, tmp_path):
    spec = execute.load_spec(f"{Path(lane_faults.__file__)}:{name}")
    said = {}
    for impl in ("fault", "twin"):
        case = Case(spec.name, impl, "forward", spec.workloads[0].id)
        artefact = tmp_path / f"{impl}{collector.SUFFIX}"
        collector.capture(case, spec, artefact, {})
        said[impl] = _named(artefact, spec, impl, device.detect())
    assert said["fault"][:1] == [lane_faults.RULES[name]]
    assert not said["twin"]
