"""CUPTI's counters count where ncu's are absent, and nowhere where they are there."""

import pandas as pd
import pytest
from tilescope.collectors.cupti import planning
from tilescope.models import bound, roofline, summary, traffic
from tilescope.runs import recordings, store
from tilescope.table.case_table import gather

COUNTED = {*planning.FIRST}


@pytest.fixture(scope="module")
def loaded():
    """A recording of softmax with counters."""
    return store.open_run(recordings.of_kernel("softmax")[0].path)


@pytest.fixture(scope="module")
def by_ncu(loaded):
    """A case of one launch by ncu alone of those that count: what CUPTI counts too."""
    table = loaded.table
    counted = table[(table["source"] == "ncu") & (table["impl"] == "triton")]
    launches = counted.groupby(["kernel", "workload", "pass"])["launch"].transform("max")
    first = counted[launches == 0].iloc[0]
    mine = table[
        table[["kernel", "workload", "pass", "impl"]].eq(first[["kernel", "workload", "pass", "impl"]]).all(axis=1)
    ]
    return mine[(mine["source"] != "cupti") & ((mine["source"] != "ncu") | mine["metric"].isin(COUNTED))]


@pytest.fixture(scope="module")
def by_cupti(by_ncu):
    return by_ncu.assign(source=by_ncu["source"].replace("ncu", "cupti"))


def test_a_case_says_the_same_by_either(loaded, by_ncu, by_cupti):
    device, kernels = loaded.run.device, loaded.run.kernels
    (ncu,), (cupti,) = (summary.summarise(t, device, kernels).to_dict("records") for t in (by_ncu, by_cupti))
    assert (ncu["bytes_source"], cupti["bytes_source"]) == ("ncu", "cupti")
    for column in ("bytes", "bytes_ratio", "dram_bytes_read", "dram_bytes_written", "gpu_time", "floor"):
        assert cupti[column] == ncu[column], column
    assert cupti["bytes"] > 0
    assert bound.memory_use(cupti) == bound.memory_use(ncu)
    moved = [roofline.points(t, device, kernels).query("kind == 'moved'") for t in (by_ncu, by_cupti)]
    assert list(moved[0]["bytes"]) == list(moved[1]["bytes"]) != []
    assert set(moved[1]["bytes_source"]) == {"cupti"}


def test_where_both_counted_ncu_counts(by_ncu, by_cupti):
    others = by_cupti[by_cupti["source"] == "cupti"]
    table = pd.concat([by_ncu, others.assign(value=others["value"] * 2)], ignore_index=True)
    (alone,), (both,) = gather(by_ncu), gather(table)
    assert both.counted_by == "ncu"
    assert both.total("dram_bytes_read") == alone.total("dram_bytes_read")
    assert set(traffic.traffic(table)["source"]) >= {"ncu", "cupti"}
