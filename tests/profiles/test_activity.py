"""Activity over a launch's time, from Nsight Compute's samples of a softmax on an H200."""

from pathlib import Path

import pytest
from tilescope.collectors.ncu import activity, ncu_csv
from tilescope.table.case import Case

SOFTMAX = Path(__file__).parent / "fixtures" / "pm_sampling_h200.csv.gz"
CASE = Case("softmax", "triton", "forward", "32768x8192-bf16")


def test_samples_follow_the_launch_from_start_to_end():
    found = activity.samples(SOFTMAX)
    assert list(found.columns) == list(activity.COLUMNS)
    assert set(found["unit"]) == set(activity.UNITS) and set(found["function"]) == {"softmax_pieces_kernel"}
    # ncu's own duration of the launch is 259.8 µs, its interval 1.5 µs.
    assert found["time"].max() == pytest.approx(259.8e-6, abs=4e-6)
    means = found.groupby("unit")["share"].mean()
    assert means["SMs"] == pytest.approx(0.99, abs=0.01)
    assert means["HBM"] == pytest.approx(0.864, abs=0.001) and means["tensor cores"] < 0.01
    # The last blocks leave SMs idle.
    assert found[found["unit"] == "SMs"]["share"].iloc[-1] < 0.1
    assert activity.parse(SOFTMAX, CASE).empty


def test_launch_without_samples_has_no_rows(tmp_path):
    """A chip without the counters, and a unit that another replay sampled."""
    header = ["ID", "Kernel Name", "CC"]
    issued = [f"TPC.{name}" for name in (activity.ISSUED, activity.PER_CYCLE)]
    bare = tmp_path / "bare.csv"
    bare.write_text(ncu_csv.text_of([header, ["", "", ""], ["0", "f", "9.0"]]))
    assert activity.samples(bare).empty
    units = [*header, activity.INTERVAL, *issued, "X.dramc__throughput.avg.pct_of_peak_sustained_elapsed"]
    cells = ["0", "f", "9.0", "1,500 (1,500)", "9 (0; 50; 25; 0)", "2 (0; 2; 2; 0)", "5 (10; 20; 30)"]
    bare.write_text(ncu_csv.text_of([units, [""] * len(units), cells]))
    assert activity.samples(bare)[["unit", "time", "share"]].values.tolist() == [
        ["SMs", 0.0, 1.0],
        ["SMs", 1.5e-6, 0.5],
    ]
