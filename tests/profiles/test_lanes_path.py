"""Who waits for whom, and the critical path, on made lanes: each is a list of spans, one after the other."""

from pathlib import Path

import pandas as pd
import pytest
from tilescope.collectors.lanes import records, trace
from tilescope.models import lanes as model

FIXTURES = Path(__file__).parent / "fixtures" / "lanes"
WAIT, ARRIVE, COPY, WORK = "wait on barrier", "arrive at barrier", "TMA load", "after product"
KIND = {WAIT: records.WAIT, ARRIVE: records.BARRIER, COPY: records.COPY, records.BLOCK_BARRIER: records.WAIT}


def lane(warp, *spans, begin=0.0, group="", operations=1):
    """Rows of a lane: name, length and, of an operation at a barrier, its barrier. Operations are so many, in turn."""
    rows, at = [], begin
    for name, length, *barrier in spans:
        kind, arrives = KIND.get(name, trace.ARITHMETIC), name in (ARRIVE, COPY)
        place = 0, "k", 0, warp, group, kind, name, warp, len(rows) % operations, ""
        rows.append((*place, *(barrier or [""]), arrives, 0, 0.0, at, at + length))
        at += length
    return rows


def table(*lanes):
    return pd.DataFrame([row for own in lanes for row in own], columns=trace.COLUMNS)


def program(*lanes):
    return model.program(table(*lanes), 0, 0)


def path(*lanes):
    """The critical path of lanes: warp, name and length of each of its parts."""
    spans = program(*lanes)
    found = model.critical_path(spans, model.arrows(spans))
    assert found["start"].to_numpy()[1:] == pytest.approx(found["end"].to_numpy()[:-1])
    assert (found["end"] - found["start"]).sum() == pytest.approx(spans["end"].max() - spans["start"].min())
    lengths = (found["end"] - found["start"]).round(9)
    return list(zip(found["warp"], found["name"], lengths, strict=True))


def test_path_passes_to_the_warp_that_arrives():
    copies = lane(8, (WORK, 5.0), (COPY, 1.0, "%ready"), (WORK, 1.0))
    # The copy flies for 2 after it was asked for.
    multiplies = lane(0, (WAIT, 8.0, "%ready"), (WORK, 3.0))
    assert path(multiplies, copies) == [(8, WORK, 5.0), (8, COPY, 1.0), (0, WAIT, 2.0), (0, WORK, 3.0)]


def test_path_stays_where_the_wait_came_after_the_arrival():
    copies = lane(8, (COPY, 1.0, "%ready"), (WORK, 9.0))
    multiplies = lane(0, (WORK, 6.0), (WAIT, 0.5, "%ready"), (WORK, 5.0))
    assert path(multiplies, copies) == [(0, WORK, 6.0), (0, WAIT, 0.5), (0, WORK, 5.0)]


def test_path_goes_to_and_fro_through_a_ring_of_one_place():
    # The producer may copy again only once the consumer has freed the place.
    copies = lane(8, (COPY, 1.0, "%ready"), *[(WAIT, 5.0, "%free"), (COPY, 1.0, "%ready")] * 3)
    multiplies = lane(0, *[(WAIT, 3.0, "%ready"), (WORK, 2.0), (ARRIVE, 1.0, "%free")] * 4)
    step = [(8, COPY, 1.0), (0, WAIT, 2.0), (0, WORK, 2.0), (0, ARRIVE, 1.0)]
    assert path(multiplies, copies) == step * 4


def test_arrows_of_a_ring_pair_each_step_not_the_ring_s_last_arrival():
    # Four copies are on their way before the first is there.
    copies = lane(8, *[(COPY, 1.0, "%ready")] * 4)
    multiplies = lane(0, (WAIT, 9.0, "%ready"), *[(WAIT, 1.0, "%ready")] * 3)
    found = model.arrows(program(multiplies, copies))
    assert found["from_time"].tolist() == [1.0, 2.0, 3.0, 4.0]
    assert found["to_time"].tolist() == [9.0, 10.0, 11.0, 12.0]


def test_arrows_of_two_copies_a_step_lead_from_the_second():
    copies = lane(8, *[(COPY, 1.0, "%ready")] * 6, operations=2)
    multiplies = lane(0, *[(WAIT, 5.0, "%ready")] * 3)
    assert model.arrows(program(multiplies, copies))["from_time"].tolist() == [2.0, 4.0, 6.0]


def test_places_that_are_free_at_first_wait_for_nobody():
    # Two places: the third copy waits for the first arrival.
    copies = lane(8, *[(WAIT, 0.5, "%free"), (COPY, 0.5, "%ready")] * 2, (WAIT, 4.0, "%free"), (COPY, 1.0, "%ready"))
    multiplies = lane(0, *[(WORK, 5.0), (ARRIVE, 1.0, "%free")] * 3)
    free = model.arrows(program(multiplies, copies)).query("barrier == '%free'")
    assert (free["from_time"].tolist(), free["to_time"].tolist()) == ([6.0], [6.0])


def test_path_at_a_block_barrier_leads_to_the_last_warp():
    quick = lane(0, (WORK, 1.0), (records.BLOCK_BARRIER, 6.0), (WORK, 4.0))
    slow = lane(1, (WORK, 6.5), (records.BLOCK_BARRIER, 0.5), (WORK, 1.0))
    assert path(quick, slow) == [(1, WORK, 6.5), (0, records.BLOCK_BARRIER, 0.5), (0, WORK, 4.0)]


def test_path_never_goes_forward_in_time():
    # The path comes to the first warp amid its wait, long before what ends that arrives.
    waits, arrives = lane(0, (WAIT, 10.0, "%x"), (WORK, 1.0)), lane(1, (WORK, 7.0), (ARRIVE, 1.0, "%x"))
    late = lane(4, (WORK, 20.0), begin=2.0, group="partition0")
    assert path(waits, arrives, late) == [(0, WAIT, 2.0), (4, WORK, 20.0)]


@pytest.mark.parametrize("name", ["product", "hopper"])
def test_path_of_a_recording_adds_up_to_its_programs(name):
    spans = trace.spans(trace.load(FIXTURES / f"{name}.trace.json.gz"))
    for own, _, found in model.programs(spans, 0).values():
        assert (found["end"] - found["start"]).sum() == pytest.approx(own["end"].max() - own["start"].min())
        assert set(found["name"]) <= set(own["name"])


def test_lines_have_their_share_of_the_critical_path():
    copies = lane(8, (WORK, 5.0), (COPY, 1.0, "%ready"), (WORK, 1.0))
    multiplies = lane(0, (WAIT, 8.0, "%ready"), (WORK, 2.0))
    lines = model.by_line(model.programs(table(multiplies, copies), 0).values())
    found = lines.set_index(["line", "name"])["critical"]
    assert found[8, WORK] == pytest.approx(0.5)
    assert found[0, WAIT] == pytest.approx(0.2)
    assert found.sum() == pytest.approx(1)


def test_program_without_recorded_operations_has_steps():
    spans = model.program(table(lane(0, (WORK, 2.0))).assign(operation=-1), 0, 0)
    found = model.by_step(model.Program(spans, model.arrows(spans), spans)).spans
    assert (found["start"].tolist(), found["end"].tolist()) == ([0.0], [1.0])


def test_steps_of_two_programs_begin_at_the_same_places():
    def steps(length):
        spans = program(lane(0, (WAIT, 3.0), *[("product", 1.0), (WORK, length)] * 4))
        spans.loc[spans["name"] == "product", "kind"] = records.PRODUCT
        found = model.by_step(model.Program(spans, model.arrows(spans), spans)).spans
        return found[found["name"] == "product"]

    for found in (steps(1.0), steps(6.0)):
        assert found["start"].tolist() == [0, 1, 2, 3]
    assert steps(1.0)["end"].tolist() == [0.5, 1.5, 2.5, 3.5]
    assert steps(6.0)["began"].tolist() == [3, 10, 17, 24]
