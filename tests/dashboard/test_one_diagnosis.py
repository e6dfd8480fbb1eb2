"""What stands at the head of a view does not contradict itself."""

import re
from pathlib import Path

import pandas as pd
import pytest
from tilescope.runs import store
from tilescope_dashboard.data import run_cache
from tilescope_dashboard.topics import summary, traffic

from ..recorded import recorded


def test_bars_fall_back_to_the_most_direct_source() -> None:
    seen = {
        "triton": ("ncu", "cupti", "interpreter"),
        "eager": ("cupti", "interpreter"),
        "liger": ("interpreter", "model"),
    }
    rows = pd.DataFrame([{"impl": impl, "source": source} for impl, sources in seen.items() for source in sources])
    for source, shown in (("ncu", ["ncu", "cupti", "interpreter"]), ("interpreter", ["interpreter"] * 3)):
        assert list(traffic.bars(rows, source)["source"]) == shown


@pytest.mark.parametrize(("source", "said"), [("interpreter", "predicted (interpreter)"), ("ncu", "measured (ncu)")])
def test_a_prediction_from_bytes_says_who_counted_them(source: str, said: str) -> None:
    bars = pd.DataFrame([{"impl": "triton", "read": 1e6, "written": 1e6, "source": "ncu", "metric": "dram_bytes"}])
    gains = pd.DataFrame([{"impl": "triton", "predicted": 2.0, "actual": 1.5, "bytes_source": source}])
    text = traffic.sentence(bars, gains, 2e6, 50_000_000).text
    assert text.startswith(f"Bytes, {said}, predict a speedup of 2× vs unfused; the measured speedup is 1.50×.")


def test_traffic_of_a_cold_chain_says_at_most() -> None:
    bars = pd.DataFrame([{"impl": "triton", "read": 2e6, "written": 1e6, "source": "ncu", "metric": "dram_bytes"}] * 2)
    none = pd.DataFrame(columns=["impl", "predicted"])
    chain = traffic.sentence(bars, none, 2e6, 50_000_000)
    assert chain.title == "triton moves at most 6.00 MB, 3× the minimum"
    assert chain.text.endswith("so data that a launch leaves in L2 for the next counts as HBM traffic.")
    # One that L2 does not hold, one launch alone, and what was predicted are no such chain.
    for known, l2_bytes in (
        (bars, 2_000_000),
        (bars.head(1), 50_000_000),
        (bars.assign(source="interpreter"), 50_000_000),
    ):
        assert "at most" not in traffic.sentence(known, none, 2e6, l2_bytes).title


@pytest.mark.parametrize(("bytes_cold", "said"), [
    (True, "ncu, at most: caches are cold before each launch"), (False, "ncu"),
])  # fmt: skip
def test_the_number_of_a_cold_chain_says_what_it_is(bytes_cold: bool, said: str) -> None:
    rows = run_cache.summaries(run_cache.open_cached(store.find(recorded("fp8_tensor"))))
    (row,) = (
        rows[rows["impl"].eq("triton") & rows["bytes_source"].eq("ncu")]
        .assign(bytes_cold=bytes_cold)
        .to_dict("records")
    )
    numbers = summary.stats(row, [])
    (note,) = [stat.note for stat in numbers if stat.label.startswith("HBM traffic")]
    assert note == said


def test_late_cpu_ranks_before_the_roof_and_once_in_the_title(own_runs: Path) -> None:
    runs = store.list_runs([store.recorded_dir()])
    run = next(run for run in runs if run.kernels == ("rms_norm",) and "events" in run.sources)
    loaded = run_cache.open_cached(run.path)
    rows = run_cache.summaries(loaded)
    rules = {}
    for row in rows[rows["impl"].eq("triton")].to_dict("records"):
        found = run_cache.findings(loaded, tuple(row[name] for name in run_cache.CASE))
        rules[row["workload"], row["pass"]] = [one.rule for one in found]
        ratios = re.findall(r"[0-9.]+×", summary.verdict("rms_norm", row, found).title)
        assert len(ratios) == len({*ratios})
    both = [found for found in rules.values() if {"at-the-roof", "late-cpu"} <= {*found}]
    assert both
    assert all(found.index("late-cpu") < found.index("at-the-roof") for found in both)
