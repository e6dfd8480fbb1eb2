"""Reports of Nsight Compute through NVIDIA's package, which is proprietary and optional: a stand-in has the API that it documents.

``metric_by_name`` gives None for what is not in the report, ``has_value`` tells a value from none, and ``as_double`` gives 0 for both what has
none and what is no number.
"""

import importlib.util
import json
import os
from pathlib import Path

import pytest
import tilescope
from tilescope.notebook.opening import open_file
from tilescope.runs.store import StoreError

STAND_IN = """
import json, os, pathlib
class IMetric:
    ValueKind_UNKNOWN, ValueKind_ANY, ValueKind_STRING, ValueKind_FLOAT, ValueKind_DOUBLE, ValueKind_UINT32, ValueKind_UINT64 = range(7)
    def __init__(self, value, unit): self.value, self.of = value, unit
    def has_value(self): return self.value is not None
    def kind(self): return {str: 2, float: 4, int: 6}.get(type(self.value), 0)
    def unit(self): return self.of
    def as_double(self): return float(self.value) if isinstance(self.value, (int, float)) else 0.0
    def as_string(self): return self.value if isinstance(self.value, str) else None
class IAction:
    def __init__(self, data): self.data = data
    def name(self): return self.data["name"]
    def metric_by_name(self, name): return IMetric(*self.data["metrics"][name]) if name in self.data["metrics"] else None
class IRange:
    def __init__(self, data): self.data = data
    def num_actions(self): return len(self.data)
    def action_by_idx(self, place): return IAction(self.data[place])
class IContext:
    def __init__(self, data): self.data = data
    def num_ranges(self): return len(self.data)
    def range_by_idx(self, place): return IRange(self.data[place])
def load_report(name):
    text = pathlib.Path(name).read_text()
    if text == "crash": os.abort()
    if text == "raise": raise RuntimeError("Could not\\nload it")
    return IContext(json.loads(text) if text != "damaged" else [])  # as the package does with a damaged one
"""
pytestmark = pytest.mark.usefixtures("runs")
SIZES = {f"launch__{what}_dim_{side}": (n, "") for what, n in (("grid", 4), ("block", 8)) for side, n in zip("xyz", (n, 1, 1), strict=True)}  # fmt: skip


@pytest.fixture
def package(tmp_path, monkeypatch):
    """The stand-in, installed for this process and those that it starts."""
    site = tmp_path / "site"
    about = site / "ncu_report-2026.3.1.dist-info"
    about.mkdir(parents=True)
    (site / "ncu_report.py").write_text(STAND_IN)
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: ncu-report\nVersion: 2026.3.1\n")
    monkeypatch.syspath_prepend(str(site))
    roots = [str(site), str(Path(tilescope.__file__).parents[1]), os.environ.get("PYTHONPATH", "")]
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(filter(None, roots)))


def opened(folder, text):
    path = folder / "a.ncu-rep"
    path.write_text(text)
    return open_file(path)


@pytest.mark.usefixtures("package")
def test_ncu_report_gpus_have_cases_of_their_own(tmp_path: Path) -> None:
    def on(number: int) -> dict[str, object]:
        about = {"launch__device_id": (number, ""), "device__attribute_display_name": ("NVIDIA H200", "")}
        return {"name": "k", "metrics": {**SIZES, **about, "gpu__time_duration.sum": (number + 1, "us")}}

    loaded = opened(tmp_path, json.dumps([[on(0), on(1)]]))
    times = loaded.table[loaded.table["metric"] == "gpu_time"]
    assert list(times["workload"].str[-5:]) == ["GPU 0", "GPU 1"]
    assert loaded.run.device.name == "NVIDIA H200"


@pytest.mark.usefixtures("package")
def test_missing_metrics_are_absent_and_zeros_are_kept(tmp_path):
    first = {
        **SIZES, "gpu__time_duration.sum": (1.5, "us"), "launch__registers_per_thread": (None, "register/thread"),
        "dram__bytes_read.sum": (0, "byte"), "dram__bytes_write.sum": ("n/a", "byte"),
        "device__attribute_display_name": ("NVIDIA H200", ""), "device__attribute_compute_capability_major": (9, ""),
        "device__attribute_compute_capability_minor": (0, ""), "device__attribute_multiprocessor_count": (132, ""),
    }  # fmt: skip
    second = {"gpu__time_duration.sum": (2500, "ns"), "launch__registers_per_thread": (40, "register/thread")}
    report = [[{"name": "first", "metrics": first}], [{"name": "second", "metrics": second}]]
    loaded = opened(tmp_path, json.dumps(report))
    table = loaded.table.set_index(["kernel", "metric"])["value"].to_dict()
    assert table == pytest.approx({
        ("first", "gpu_time"): 1.5e-6, ("first", "grid_blocks"): 4, ("first", "block_threads"): 8,
        ("first", "dram_bytes_read"): 0, ("second", "gpu_time"): 2.5e-6, ("second", "registers"): 40,
    })  # fmt: skip
    assert list(loaded.table.drop_duplicates("kernel")["launch"]) == [0, 1]
    assert dict(zip(loaded.table["kernel"], loaded.table["workload"], strict=True)) == {
        "first": "grid 4×1×1, block 8×1×1",
        "second": "grid not recorded",
    }
    assert loaded.run.versions["ncu-report"] == "2026.3.1"
    assert (loaded.run.device.name, loaded.run.device.multiprocessors) == ("NVIDIA H200", 132)


@pytest.mark.usefixtures("package")
@pytest.mark.parametrize(("text", "said"), [
    ("crash", "it ended with -6"), ("raise", "cannot read it"), ("damaged", "no launch"), ("[[{}]]", "cannot read it"),
])  # fmt: skip
def test_a_report_that_ends_nvidias_package_is_one_line(text, said, tmp_path):
    with pytest.raises(StoreError, match=said) as told:
        opened(tmp_path, text)
    assert "a.ncu-rep" in str(told.value)


def test_without_the_package_the_cure_is_named(tmp_path):
    if importlib.util.find_spec("ncu_report"):
        pytest.skip("ncu-report is installed here")
    with pytest.raises(StoreError, match=r"pip install 'tilescope\[ncu-report\]'"):
        opened(tmp_path, "x")


def test_nvidias_package_itself_is_told_that_a_file_is_damaged(tmp_path):
    pytest.importorskip("ncu_report")
    with pytest.raises(StoreError, match=r"no launch|cannot read it"):
        opened(tmp_path, "NVR\0 and no more")
