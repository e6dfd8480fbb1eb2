"""Two versions of a script: which cases belong together, and which changes are noise."""

import dataclasses

import pytest
from tilescope.models import versions
from tilescope.models.advice import Finding
from tilescope.runs import store


def case(kernel, workload="8-fp32", spread=None, **values):
    return versions.Case(
        {"kernel": kernel, "impl": "triton", "pass": "forward", "workload": workload}, values, (), spread
    )


def told(pairs):
    return [
        (pair.baseline and pair.baseline.title, pair.candidate and pair.candidate.title, pair.how) for pair in pairs
    ]


def test_pairs_by_name_then_by_place():
    before = [case("a"), case("b"), case("c")]
    after = [case("c"), case("renamed"), case("a"), case("new")]
    assert told(versions.pairs(before, after)) == [
        ("c 8-fp32", "c 8-fp32", "name"),
        ("b 8-fp32", "renamed 8-fp32", "place"),
        ("a 8-fp32", "a 8-fp32", "name"),
        (None, "new 8-fp32", ""),
    ]
    assert told(versions.pairs(before, after[:1])) == [
        ("c 8-fp32", "c 8-fp32", "name"), ("a 8-fp32", None, ""), ("b 8-fp32", None, "")
    ]  # fmt: skip


def test_pairs_by_signature_or_by_hand():
    before = [case("a"), case("b", "16-fp32")]
    after = [case("new", "9-fp32"), case("a"), case("renamed", "16-fp32")]
    assert told(versions.pairs(before, after)) == [
        (None, "new 9-fp32", ""), ("a 8-fp32", "a 8-fp32", "name"), ("b 16-fp32", "renamed 16-fp32", "signature")
    ]  # fmt: skip
    assert told(versions.pairs(before, after, {0: 1, 1: None})) == [
        ("b 16-fp32", "new 9-fp32", "hand"), (None, "a 8-fp32", "hand"), ("a 8-fp32", "renamed 16-fp32", "place")
    ]  # fmt: skip


def test_exact_counts_replace_a_sample():
    before = [case("a", sampled=9.0, registers=32.0), case("b", sampled=5.0)]
    counted = [case("a", requested=8.0, unique=4.0), case("b", sampled=6.0)]
    first, second = versions.exact(before, counted)
    assert first.values == {"registers": 32.0, "requested": 8.0, "unique": 4.0}
    assert second.values == {"sampled": 5.0}, "another sample is no count"


@pytest.mark.parametrize(
    ("busy", "before", "clocks", "said"),
    [
        (0.0, 0.0, (1.98e9, 1.97e9), ""),
        (0.09, 0.09, (1.98e9, 1.97e9), ""),
        (0.4, 0.0, (1.98e9, 1.98e9), "timed while others used the GPU, which was 40% busy"),
        (0.0, 0.4, (1.98e9, 1.98e9), "version 1 was timed while others used the GPU"),
        (0.0, 0.0, (1.98e9, 1.2e9), "a 8-fp32: timed at 1.20 GHz, version 1 at 1.98 GHz"),
    ],
)
def test_conditions_differ_only_between_times(busy, before, clocks, said):
    timed = [dataclasses.replace(case("a", spread=(1e-3, 1e-3)), clock=clock) for clock in clocks]
    found = versions.conditions(busy, before, [versions.Pair(*timed, "name")], "version 1")
    assert [said in line for line in found] == [True] * bool(said)
    assert versions.conditions(busy, before, [versions.Pair(case("a"), case("a"), "name")], "version 1") == []


@pytest.mark.parametrize(
    ("spread", "said"), [((0.9e-3, 1.01e-3), "-5.0 %, within noise"), ((0.9e-3, 0.96e-3), "-5.0 %")]
)
def test_change_of_time_is_noise_where_spreads_overlap(spread, said):
    before = case("a", gpu_time=1e-3, registers=32.0, spread=(0.99e-3, 1.02e-3))
    after = case("a", gpu_time=0.95e-3, registers=32.0, spill_bytes=8.0, spread=spread)
    time, registers, spills = versions.Pair(before, after, "name").changes
    assert time.texts() == ("1.00 ms", "950 µs", said)
    assert registers.texts() == ("32", "32", "")
    assert [change.better for change in (time, registers, spills)] == [None if "noise" in said else True, None, None]
    assert spills.texts() == ("–", "8 B", "")


def test_times_of_two_collectors_are_not_compared():
    before = dataclasses.replace(case("a", gpu_time=2e-6, registers=32.0), time_source="torch_profiler")
    quick = dataclasses.replace(case("a", gpu_time=4e-6, registers=40.0), time_source="cupti")
    (pair,) = versions.pairs([before], [quick])
    assert [change.texts() for change in pair.changes] == [("–", "4.00 µs", ""), ("32", "40", "+25.0 %")]
    (pair,) = versions.pairs([before], [dataclasses.replace(quick, time_source="torch_profiler")])
    assert pair.changes[0].texts() == ("2.00 µs", "4.00 µs", "+100.0 %")
    assert dataclasses.replace(pair.changes[0], candidate=8e-5).texts()[2] == "40.0×"
    assert versions.Change("theoretical_occupancy", "occupancy", "ratio", 0.125, 1.0).texts()[2] == "+87.5 points"


def test_cases_of_a_run_have_its_values_and_findings():
    folder = next(run.path for run in store.list_runs([store.recorded_dir()]) if run.title == "strided_copy")
    of = [one for one in versions.cases(store.open_run(folder)) if one.title == "strided_copy 4194304x32-fp32"]
    plain, strided = (next(one for one in of if one.names["impl"] == impl) for impl in ("triton", "strided"))
    assert (plain.values["sector_efficiency_read"], strided.values["sector_efficiency_read"]) == (1.0, 0.125)
    assert strided.values["dram"] > strided.values["unique"] == strided.values["requested"]
    pair = versions.Pair(plain, strided)
    assert {"uncoalesced-loads", "uncoalesced-stores"} <= {finding.rule for finding in pair.came}
    assert [finding.rule for finding in pair.went] == ["at-the-roof"]


def test_finding_that_only_moved_to_another_line_has_no_other_values():
    def at(title):
        found = Finding("uncoalesced-loads", title, "", "a", "forward", "8-fp32", "triton", "", ())
        return dataclasses.replace(case("a"), findings=(found,))

    before, moved, worse = (
        at(f"Uncoalesced loads, worst at line {told} used") for told in ("9: 25 %", "11: 25 %", "9: 12 %")
    )
    assert [versions.Pair(before, now).stayed for now in (moved, worse)] == [[], list(worse.findings)]
