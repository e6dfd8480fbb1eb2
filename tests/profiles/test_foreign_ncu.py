"""ncu's CSV in the forms in which other machines and programs write it: encodings, separators, decimal commas, ncu's own lines."""

import csv
import io
from collections.abc import Callable
from pathlib import Path

import pandas as pd
import pytest
from tilescope import cli
from tilescope.notebook.opening import open_file
from tilescope.runs.store import LoadedRun, StoreError

pytestmark = pytest.mark.usefixtures("runs")
LEADING = ["ID", "Process ID", "Process Name", "Host Name", "Kernel Name", "Context", "Stream", "Block Size", "Grid Size",
           "Device", "CC"]  # fmt: skip
COUNTERS = {"gpu__time_duration.sum": "us", "dram__bytes_read.sum": "Mbyte",
            "launch__registers_per_thread": "register/thread", "sm__warps_active.avg.pct_of_peak_sustained_active": "%"}  # fmt: skip
VALUES = ["12.345", "33.554", "32", "71.25"]
GERMAN = ["12,345", "33,554", "32", "71,25"]
EXPECTED = {"gpu_time": 12.345e-6, "dram_bytes_read": 33.554e6, "registers": 32, "achieved_occupancy": 0.7125}


def launch(
    number: int, values: list[str], device: str = "0", capability: str = "9.0", kernel: str = "k_rows"
) -> list[str]:
    about = ["41", "python", "host", kernel, "1", "7", "(128, 1, 1)", "(4096, 1, 1)", device, capability]
    return [str(number), *about, *values]


def raw(*launches: list[str], counters: dict[str, str] = COUNTERS) -> list[list[str]]:
    """The rows of a raw page: the header, the units, the launches."""
    return [[*LEADING, *counters], [*[""] * len(LEADING), *counters.values()], *launches]


def details(*launches: list[str]) -> list[list[str]]:
    """The rows of a details page of the same counters."""
    labels = ["Duration", "L2 Hit Rate", "Registers Per Thread", "Achieved Occupancy"]
    header = [*LEADING, "Section Name", "Metric Name", "Metric Unit", "Metric Value"]
    return [header, *([*one[: len(LEADING)], "Section", label, unit, value] for one in launches
                      for label, unit, value in zip(labels, COUNTERS.values(), one[len(LEADING):], strict=True))]  # fmt: skip


def printed(rows: list[list[str]], separator: str = ",", quoting: int = csv.QUOTE_ALL) -> str:
    text = io.StringIO()
    csv.writer(text, delimiter=separator, quoting=quoting, lineterminator="\n").writerows(rows)
    return text.getvalue()


def by_pandas(text: str, **options: object) -> str:
    frame = pd.read_csv(io.StringIO(text))
    return str(frame.to_csv(**options))


def opened(folder: Path, content: str | bytes, name: str = "a.csv") -> LoadedRun:
    path = folder / name
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return open_file(path)


def read(loaded: LoadedRun) -> dict[str, float]:
    """The run's values of the first launch by metric."""
    rows = loaded.table[loaded.table["launch"] == 0].drop_duplicates("metric")
    return dict(zip(rows["metric"], rows["value"], strict=True))


RAW = printed(raw(launch(0, VALUES), launch(1, VALUES)))
LATIN = RAW.replace('"us"', '"µs"')
FORMS: dict[str, Callable[[], str | bytes]] = {
    "as printed": lambda: RAW,
    "mark of UTF-8": lambda: RAW.encode("utf-8-sig"),
    "UTF-16 little-endian": lambda: b"\xff\xfe" + RAW.encode("utf-16-le"),
    "UTF-16 big-endian": lambda: b"\xfe\xff" + RAW.encode("utf-16-be"),
    "UTF-16 without a mark": lambda: RAW.encode("utf-16-le"),
    "UTF-32": lambda: RAW.encode("utf-32"),
    "UTF-32 without a mark": lambda: RAW.encode("utf-32-be"),
    "Latin-1": lambda: LATIN.encode("latin-1"),
    "lines of Windows": lambda: RAW.replace("\n", "\r\n"),
    "among other output": lambda: f"epoch 1, loss 2\n==PROF== Connected\n{RAW}done, 3\n",
    "decimal commas": lambda: printed(raw(launch(0, GERMAN))),
    "semicolons": lambda: printed(raw(launch(0, GERMAN)), ";", csv.QUOTE_MINIMAL),
    "semicolons and points": lambda: printed(raw(launch(0, VALUES)), ";", csv.QUOTE_MINIMAL),
    "semicolons, every comma doubtful": lambda: printed(raw(launch(0, [*GERMAN[:3], "71,250"])), ";"),
    "Excel's first line": lambda: "sep=;\n" + printed(raw(launch(0, GERMAN)), ";", csv.QUOTE_MINIMAL),
    "tabs": lambda: printed(raw(launch(0, VALUES)), "\t", csv.QUOTE_MINIMAL),
    "pandas": lambda: by_pandas(RAW, index=False),
    "pandas, with its index": lambda: by_pandas(RAW),
    "pandas, with a German's options": lambda: by_pandas(RAW, sep=";", decimal=","),
    "pandas, two lines of header": lambda: str(pd.read_csv(io.StringIO(RAW), header=[0, 1]).to_csv()),
    "pandas, without the index": lambda: str(pd.read_csv(io.StringIO(RAW), header=[0, 1]).to_csv(index=False)),
    "blanks between digits": lambda: printed(raw(launch(0, ["0,012345", "33\u202f554,0", "32", "71,25"]),
                                                 counters=COUNTERS | {"gpu__time_duration.sum": "ms", "dram__bytes_read.sum": "Kbyte"})),
    "points between digits": lambda: printed(raw(launch(0, ["12.345", "33.554.000", "32", "71,25"]),
                                                 counters=COUNTERS | {"gpu__time_duration.sum": "ns", "dram__bytes_read.sum": "byte"})),
    "whole numbers alone": lambda: printed(raw(launch(0, ["12,345", "33,554,000", "32", "71.25"]),
                                               counters=COUNTERS | {"gpu__time_duration.sum": "ns", "dram__bytes_read.sum": "byte"})),
}  # fmt: skip


@pytest.mark.parametrize("form", FORMS)
def test_ncu_csv_of_another_form_has_the_same_values(form: str, tmp_path: Path) -> None:
    loaded = opened(tmp_path, FORMS[form]())
    found = read(loaded)
    assert {name: found[name] for name in EXPECTED} == pytest.approx(EXPECTED)
    assert set(loaded.table["workload"]) == {"grid 4096×1×1, block 128×1×1"}
    assert set(loaded.table["kernel"]) == {"k_rows"}
    assert loaded.run.device.target == "sm_90"


def test_doubtful_commas_are_refused_with_both_readings(tmp_path: Path) -> None:
    counters = {"gpu__time_duration.sum": "us"}
    with pytest.raises(StoreError, match=r"12,345 in it may be 12\.345 or 12345: print it again with LC_ALL=C"):
        opened(tmp_path, printed(raw(launch(0, ["12,345"]), counters=counters)))
    with pytest.raises(StoreError, match=r"12\.345 in it may be 12\.345 or 12345"):
        opened(tmp_path, printed(raw(launch(0, ["12.345"]), counters=counters), ";"))
    # The usual mark of such a table, and a comma with other numbers beside it.
    assert read(opened(tmp_path, printed(raw(launch(0, ["12.345"]), counters=counters))))["gpu_time"] == pytest.approx(
        12.345e-6
    )
    assert read(opened(tmp_path, printed(raw(launch(0, ["0,345"]), counters=counters))))["gpu_time"] == pytest.approx(
        0.345e-6
    )
    # A count has no fraction.
    whole = printed(raw(launch(0, ["12,345"]), counters={"dram__bytes_read.sum": "byte"}))
    assert read(opened(tmp_path, whole))["dram_bytes_read"] == 12_345


def test_ncu_counter_without_a_known_unit_is_left_out(tmp_path: Path) -> None:
    rows = raw(launch(0, VALUES))
    for units in ([], [[*[""] * len(LEADING), "fortnight", "pint", "register/thread", "%"]]):
        loaded = opened(tmp_path, printed([rows[0], *units, *rows[2:]]))
        assert set(read(loaded)) & set(EXPECTED) == {"registers", "achieved_occupancy"}
        assert any("unknown units were left out: gpu__time_duration.sum" in note for note in loaded.run.notes)


def test_ncu_gpus_of_one_file_have_cases_of_their_own(tmp_path: Path) -> None:
    loaded = opened(tmp_path, printed(raw(launch(0, VALUES), launch(1, VALUES, "1"))))
    assert sorted(set(loaded.table["workload"].str[-5:])) == ["GPU 0", "GPU 1"]
    assert loaded.run.device.target == "sm_90"
    loaded = opened(tmp_path, printed(details(launch(0, VALUES), launch(1, VALUES, "1", "8.0"))))
    assert sorted(set(loaded.table["workload"].str[-5:])) == ["GPU 0", "GPU 1"]
    # Nothing that holds for one kind is said of the other.
    assert loaded.run.device.target == ""
    assert any("GPU 1 (a GPU of sm_80); the kinds differ" in note for note in loaded.run.notes)


def test_ncu_details_pages_of_two_processes_are_joined(tmp_path: Path) -> None:
    page = printed(details(launch(0, VALUES)))
    loaded = opened(tmp_path, page + page)
    assert list(loaded.table.loc[loaded.table["metric"] == "registers", "launch"]) == [0, 1]
    with pytest.raises(StoreError, match="a raw page and a details page"):
        opened(tmp_path, page + RAW)


@pytest.mark.parametrize("text", [RAW, by_pandas(RAW, index=False)])
def test_ncu_row_that_is_cut_off_is_left_out_and_noted(text: str, tmp_path: Path) -> None:
    loaded = opened(tmp_path, text[: text.rindex("33.5") + 3])
    assert len(loaded.table[loaded.table["metric"] == "gpu_time"]) == 1
    assert any("cut off or too long and were left out: 1" in note for note in loaded.run.notes)


PERMISSION = "==ERROR== ERR_NVGPUCTRPERM - The user does not have permission to access NVIDIA GPU Performance Counters"


def test_ncu_own_lines_beside_launches_are_notes(tmp_path: Path) -> None:
    loaded = opened(
        tmp_path, f"==PROF== Connected\n{RAW}==ERROR== LaunchFailed\n==WARNING== Found outstanding GPU clock reset\n"
    )
    notes = list(loaded.run.notes)
    assert "ncu: LaunchFailed" in notes
    assert "ncu: Found outstanding GPU clock reset" in notes


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (f"==PROF== Connected\n{PERMISSION}\n", "NVreg_RestrictProfilingToAdminUsers=0"),
        ("==ERROR== Cuda driver is not compatible with Nsight Compute.\n", "install the Nsight Compute of the driver's CUDA version"),
        ("==ERROR== Something new.\n", "ncu says: Something new."),
        ("==WARNING== No kernels were profiled.\nAvailable Kernels:\n1. k_rows\n2. k_cols\n", "none of the kernels that ran (k_rows, k_cols)"),
        ("==WARNING== No kernels were profiled.\n", "--target-processes all"),
        (f"{PERMISSION}\n==WARNING== No kernels were profiled.\n", "ncu says: ERR_NVGPUCTRPERM: "),
        ("==ERROR== The application returned an error code (11).\n==WARNING== No kernels were profiled.\n",
         "ncu says 'The application returned an error code (11)': the program failed"),
        ("==WARNING== Profiling is not supported here.\n", "ncu says: Profiling is not supported here."),
        (printed(raw())[:-1], "it has ncu's header and no launch"),
        (printed(raw(launch(0, ["1", "2"]), counters={"my__counter.sum": "", "your__counter.sum": ""})),
         "none of its counters (my__counter.sum, your__counter.sum) is one that Tilescope knows"),
        (printed([[*LEADING, "Metric Name", "Metric Unit", "Metric Value"], [*launch(0, []), "New Thing", "", "1"]]),
         "none of its counters (New Thing) is one that Tilescope knows"),
        ("a,b\n1,2\n", "no table of ncu's is in it"),
    ],
)  # fmt: skip
def test_ncu_csv_without_launches_is_said(
    text: str, said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for encoding in ("utf-8", "utf-16"):
        path = tmp_path / "log.csv"
        path.write_bytes(text.encode(encoding))
        assert cli.main(["open", str(path)]) == cli.BAD_INPUT
        error = capsys.readouterr().err
        assert said in error and len(error.splitlines()) == 1
