"""The ncu collector on complete output of an H200: no cell is lost and none is made up."""

import csv
import gzip
import io
import itertools
from pathlib import Path
from types import SimpleNamespace

import pytest
from tilescope.collectors.ncu import activity, counters, ncu_csv, rules, source
from tilescope.execution import execute
from tilescope.execution.not_applicable import NotApplicable
from tilescope.table import absent, launch_configs, schema
from tilescope.table.case import Case
from tilescope.table.metrics import METRICS

from . import made_up

FIXTURES = Path(__file__).parent / "fixtures"
SOFTMAX, MATMUL = "softmax_kernel", "mm_kernel"
CASE = Case("softmax", "triton", "forward", "16384x4096-bf16")
BACKWARD = Case("layer_norm", "aten", "backward", "4096x4096-bf16")
PRODUCT = Case("matmul", "eager", "forward", "4096x4096x4096-bf16")


def text(name):
    path = FIXTURES / name
    return gzip.decompress(path.read_bytes()).decode() if path.suffix == ".gz" else path.read_text()


def cells(printed):
    """The CSV's cells, read the plainest way: what lies after the noise, through the standard library alone."""
    body = printed[printed.index('"ID",') :] if '"ID",' in printed else printed
    return list(csv.reader(io.StringIO(body)))


@pytest.mark.parametrize(
    ("name", "launches", "columns"),
    [("raw_37_metrics_h200.csv", 4, 365), ("raw_full_h200.csv.gz", 4, 2238), ("ncu_nvtx_h200.csv.gz", 4, 440)],
)
def test_raw_page_keeps_every_cell(name, launches, columns):
    header, units, *rows = cells(text(name))
    (table,) = ncu_csv.raw_pages(text(name))
    assert (len(table.rows), len(table.header)) == (launches, columns)
    assert (table.header, table.units, table.rows) == (header, units, rows)


def test_details_page_keeps_every_cell():
    header, *rows = cells(text("details_rules_h200.csv"))
    table = ncu_csv.read_details(text("details_rules_h200.csv"))
    assert table == [dict(zip(header, row, strict=False)) for row in rows]
    assert len(table) == 152
    rules = [row for row in table if row.get("Rule Name")]
    assert len(rules) == sum(len(row) == 20 for row in rows) == 10
    compression = next(row for row in rules if row["Rule Name"] == "MemoryL2Compression")
    assert ncu_csv.number(compression["Estimated Speedup"]) == 29.51
    assert "L2 Compression unit" in compression["Rule Description"]


def test_source_page_keeps_every_cell():
    rows = cells(text("source_cuda_sass_h200.csv.gz"))
    launches = source.launches(text("source_cuda_sass_h200.csv.gz"))
    assert [launch.function for launch in launches] == [SOFTMAX, MATMUL]
    kept = [row for row in rows if row[0] not in ("File Path", "Function Name", "Line No")]
    table = [line for launch in launches for line in launch.lines()]
    assert [list(line.values())[1:] for line in table] == kept
    assert len(kept) == 1350
    first = table[0]
    assert first["Line No"] == "170"
    assert first["Source"] == "return core.maximum(a, b)"
    assert first["File Path"].endswith("triton/language/standard.py")
    assert table[1]["Source (SASS)"] == "      FMNMX R18, R4, R15, !PT"
    assert ncu_csv.number(first["Thread Instructions Executed"]) == 96468992


@pytest.mark.parametrize("reader", [ncu_csv.raw_pages, ncu_csv.read_details, source.launches])
@pytest.mark.parametrize(
    "printed", ["", "ok 1.5\n==PROF== Connected to process 1\n==WARNING== No kernels were profiled.\n"]
)
def test_no_table_is_an_error(reader, printed):
    with pytest.raises(ncu_csv.NcuFormatError, match="ncu"):
        reader(printed)


def test_noise_before_between_and_after_is_left_out():
    header, units, *rows = text("raw_37_metrics_h200.csv").split('"ID",', 1)[1].splitlines()
    lines = [
        '"ID",' + header, units, "step 3, loss 0.5", rows[0], "==PROF== Disconnected", '"quoted, but no row"', rows[1],
    ]  # fmt: skip
    (table,) = ncu_csv.raw_pages('hello, "world"\n' + "\n".join(lines) + "\ngoodbye,1,2\n")
    assert [row["Kernel Name"] for row in table.records()] == [SOFTMAX, MATMUL]


def test_an_incomplete_row_keeps_its_cells():
    lines = text("raw_37_metrics_h200.csv").split('"ID",', 1)[1].splitlines()
    cut = lines[3][: lines[3].index('"dram') if '"dram' in lines[3] else 900].rpartition(",")[0]
    (table,) = ncu_csv.raw_pages('"ID",' + "\n".join([lines[0], lines[1], lines[2], cut]))
    whole, incomplete = table.records()
    assert len(incomplete) < len(whole) == len(table.header)
    assert whole["Kernel Name"] and incomplete["Kernel Name"]


NO_NUMBERS = ("", " ", "n/a", "nan", "PolicySpread", "NVIDIA H200", "(256, 1, 1)", "No-CC", "1,2", "-")


@pytest.mark.parametrize(("cell", "value"), [
    ("16 (4; 4; 4; 4)", 16), ("1,048,576; 2", 1048576), ("-1,234,567.89", -1234567.89), ("1.5e3", 1500), ("0", 0), *((cell, None) for cell in NO_NUMBERS),
])  # fmt: skip
def test_cells_that_are_numbers(cell, value):
    assert ncu_csv.number(cell) == value


@pytest.mark.parametrize(("value", "unit", "expected"), [
    (63.39, "us", (63390, "ns")), (63.39, "usecond", (63390, "ns")), (2, "msecond", (2e6, "ns")),
    (134.23, "Mbyte", (134.23e6, "byte")), (1.95, "Ghz", (1.95e9, "hz")), (1.95, "cycle/nsecond", (1.95e9, "hz")),
    (4.1, "Tbyte/s", (4.1e12, "byte/second")), (50, "%", (50, "%")), (32, "register/thread", (32, "register/thread")),
    (3, "Kbyte/block", (3000, "byte/block")), (7, "", (7, "")),
])  # fmt: skip
def test_units_become_base_units(value, unit, expected):
    got = ncu_csv.in_base(value, unit)
    assert got[0] == pytest.approx(expected[0])
    assert got[1] == expected[1]


def values(table, launch):
    return table[table["launch"] == launch].set_index("metric")["value"].to_dict()


def test_parse_reads_the_counters_of_every_launch():
    table = schema.validate(counters.parse(FIXTURES / "raw_37_metrics_h200.csv", CASE))
    assert table.groupby("launch")["function"].unique().map(list).to_dict() == {
        0: [SOFTMAX], 1: [MATMUL], 2: [SOFTMAX], 3: [MATMUL]
    }  # fmt: skip
    softmax, matmul = values(table, 0), values(table, 1)
    assert softmax["gpu_time"] == pytest.approx(63.392e-6)
    assert softmax["dram_bytes_read"] == 134_231_552
    assert softmax["l2_to_l1_bytes"] == 16384 * 4096 * 2
    assert softmax["achieved_occupancy"] == pytest.approx(0.9378)
    assert softmax["sm_clock"] == 1_951_999_248.54
    assert softmax["flops_fp32"] == 163_577_856 + 134_217_728
    assert softmax["shared_memory"] == 32
    assert matmul["tensor_ops_bf16"] == 2 * 4096**3
    assert matmul["shared_memory"] == 147_456
    assert matmul["registers"] == 193
    assert matmul["occupancy_limit_shared_memory"] == 1
    assert matmul["spill_loads"] == 0


def test_absent_counters_give_no_row():
    table = counters.parse(FIXTURES / "raw_37_metrics_h200.csv", CASE)
    assert not table["metric"].isin(["l1_bytes", "bank_conflicts", "tensor_ops_fp64", "stall_wait"]).any()
    # flops_fp64 is a sum of three counters: the ones that are missing must not count as 0.
    assert "flops_fp64" not in set(table["metric"])
    full = counters.parse(FIXTURES / "raw_full_h200.csv.gz", CASE)
    assert {"stall_long_scoreboard", "bank_conflicts"} <= set(full["metric"])


def test_every_counter_asked_for_on_hopper_is_read():
    """What an H200 printed when it was asked for all of METRICS' counters."""
    table = schema.validate(counters.parse(FIXTURES / "ncu_nvtx_h200.csv.gz", CASE))
    asked = {metric.name for metric in METRICS.values() if metric.terms("9.0")}
    assert set(table["metric"]) == asked
    # Of cuBLAS's product, the last launch, ncu prints 0 sectors a load and a store.
    assert len(table) == 4 * len(asked) - 2
    assert not (table["metric"].isin(absent.AS_ZERO) & table["value"].eq(0)).any()


def test_scaled_units_give_the_same_values(tmp_path):
    """``--print-units auto`` prints the same quantities in other units."""
    printed = (
        '"ID","Kernel Name","CC","gpu__time_duration.sum","dram__bytes_read.sum","sm__cycles_elapsed.avg.per_second"\n'
        '"","","","usecond","Mbyte","cycle/nsecond"\n"0","k","9.0","63.39","134.23","1.95"\n'
    )
    artefact = tmp_path / "a.csv"
    artefact.write_text(printed)
    found = values(counters.parse(artefact, CASE), 0)
    assert found == pytest.approx({"gpu_time": 63.39e-6, "dram_bytes_read": 134.23e6, "sm_clock": 1.95e9})


def test_finish_gives_each_case_its_launches(tmp_path):
    log = text("ncu_nvtx_h200.csv.gz")
    for number, case in enumerate((CASE, BACKWARD, PRODUCT)):
        assert f"{counters.RANGE}c{number}:" in log
        log = log.replace(f"{counters.RANGE}c{number}:", f"{counters.RANGE}{case.slug}:")
    # Another process's table has no columns of ranges.
    (tmp_path / counters.LOG).write_text(log + text("raw_37_metrics_h200.csv"))
    idle = Case("softmax", "triton", "forward", "0x4096-bf16")
    counters.finish(tmp_path, [CASE, BACKWARD, PRODUCT, idle])
    assert sorted(p.name for p in tmp_path.iterdir()) == sorted(
        c.slug + counters.SUFFIX for c in (CASE, BACKWARD, PRODUCT)
    )
    (whole,) = ncu_csv.raw_pages(log)
    for case, expected in ((CASE, [0]), (BACKWARD, [1, 2]), (PRODUCT, [3])):
        artefact = tmp_path / (case.slug + counters.SUFFIX)
        (kept,) = ncu_csv.raw_pages(gzip.decompress(artefact.read_bytes()).decode())
        assert (kept.header, kept.units) == (whole.header, whole.units)
        assert kept.rows == [whole.rows[number] for number in expected]
        assert counters.parse(artefact, case)["launch"].unique().tolist() == list(range(len(expected)))
        artefact.unlink()
    # The rows of cases that failed are left out.
    (tmp_path / counters.LOG).write_text(log)
    counters.finish(tmp_path, [PRODUCT])
    assert [p.name for p in tmp_path.iterdir()] == [PRODUCT.slug + counters.SUFFIX]


def test_finish_without_nvtx_columns(tmp_path):
    """An ncu that prints no ranges serves one case, and says so for more."""
    log = text("raw_37_metrics_h200.csv")
    (tmp_path / counters.LOG).write_text(log)
    counters.finish(tmp_path, [CASE])
    assert len(counters.parse(tmp_path / (CASE.slug + counters.SUFFIX), CASE)["launch"].unique()) == 4
    (tmp_path / counters.LOG).write_text(log)
    with pytest.raises(counters.NcuError, match="one case at a time"):
        counters.finish(tmp_path, [CASE, PRODUCT])


@pytest.mark.parametrize(("printed", "says"), [
    ("==ERROR== ERR_NVGPUCTRPERM - The user does not have permission to access NVIDIA GPU Performance Counters", "root"),
    ("==ERROR== Failed to initialize the profiler: LibraryNotLoaded", "gVisor"),
    ("==ERROR== Profiling failed because a driver resource was unavailable. Ensure that no other tool (like DCGM)", "dcgmi"),
    ("==ERROR== Cuda driver is not compatible with Nsight Compute.", "newer driver"),
    ("==ERROR== Profiling is not supported on this device", "newer Nsight Compute"),
    ("==WARNING== No kernels were profiled.", "launched nothing"),
    ("==ERROR== Something nobody has seen.", "Something nobody has seen."),
])  # fmt: skip
def test_errors_are_named_with_their_cure(printed, says, tmp_path):
    noise = f"==PROF== Connected to process 1\n{printed}\n==PROF== Disconnected from process 1\n"
    assert says in (counters.explain(noise) or "")
    (tmp_path / counters.LOG).write_text(noise)
    with pytest.raises(counters.NcuError) as error:
        counters.finish(tmp_path, [CASE])
    assert says in str(error.value)


@pytest.mark.parametrize("collector", [rules, source])
def test_rules_and_source_name_the_cure(collector, tmp_path):
    (tmp_path / counters.LOG).write_text("==ERROR== ERR_NVGPUCTRPERM - no permission\n")
    with pytest.raises(counters.NcuError, match="run as root"):
        collector.finish(tmp_path, [CASE])
    collector.finish(tmp_path, [])
    # Asked of the log of a worker that could not begin.
    assert "run as root" in collector.explain("==ERROR== ERR_NVGPUCTRPERM - no permission\n")


@pytest.mark.parametrize("collector", [counters, rules, source])
def test_no_collector_has_a_command_without_ncu(collector, monkeypatch, tmp_path):
    made_up.machine(monkeypatch)
    assert counters.unavailable() is None
    made_up.machine(monkeypatch, ncu=None)
    assert "install Nsight Compute" in counters.unavailable()
    with pytest.raises(counters.NcuError):
        collector.command(["x"], tmp_path)


def test_a_worker_that_died_is_not_blamed_on_ncu(tmp_path):
    printed = "==WARNING== No kernels were profiled.\n==ERROR== The application returned an error code (9).\n"
    (tmp_path / counters.LOG).write_text(printed)
    counters.finish(tmp_path, [])
    assert list(tmp_path.iterdir()) == []
    assert counters.explain("==ERROR== The application returned an error code (9).") is None
    assert counters.explain(text("raw_37_metrics_h200.csv")) is None


@pytest.mark.parametrize("collector", [counters, rules, source])
def test_a_log_without_end_is_refused_and_removed(collector, monkeypatch, tmp_path):
    monkeypatch.setattr(counters, "LARGEST_LOG", 100)
    (tmp_path / counters.LOG).write_text("==PROF== and so on\n" * 10)
    with pytest.raises(counters.NcuError, match=r"ncu-log\.txt has 190 bytes, which is more than 100"):
        collector.finish(tmp_path, [CASE])
    assert list(tmp_path.iterdir()) == []


RANGES = {"--nvtx-include": "regex:tilescope:.*"}


@pytest.mark.parametrize(("collector", "options", "more"), [
    (counters, {"--clock-control": "none", "--cache-control": "all", **RANGES}, {"--metrics"}),
    (rules, {"--page": "details", "--apply-rules": "yes", **RANGES}, {"SpeedOfLight", "Occupancy", "WarpStateStats", "SourceCounters"}),
    (source, {"--page": "details", "--section": "SourceCounters", "--import-source": "yes"}, {"--export"}),
    (activity, {"--section": "PmSampling"}, set()),
])  # fmt: skip
def test_command_runs_the_worker_with_its_options(collector, options, more, monkeypatch, tmp_path):
    made_up.machine(monkeypatch)
    line = collector.command(["python", "-m", "worker"], tmp_path)
    assert (line[0], line[-3:]) == ("/opt/ncu", ["python", "-m", "worker"])
    asked = dict(itertools.pairwise(line))
    assert options.items() <= asked.items() and more <= {*line} and ("--metrics" in line) == (collector is counters)
    assert asked["--log-file"] == str(tmp_path / counters.LOG)
    assert asked.get("--export", "") == (str(tmp_path / "report") if collector is source else "")


def test_command_asks_for_what_the_chip_has(monkeypatch, tmp_path):
    made_up.machine(monkeypatch)
    asked = dict(itertools.pairwise(counters.command(["x"], tmp_path)))["--metrics"].split(",")
    assert len(asked) == len(set(asked))
    assert "sm__ops_path_tensor_src_fp8.sum" in asked
    made_up.machine(monkeypatch, "sm_120")
    assert "sm__ops_path_tensor_src_fp8_dst_fp32.sum" in " ".join(counters.command(["x"], tmp_path))
    assert counters.capability("sm_90a") == "9.0"


def test_capture_counts_one_call_after_warming_up(monkeypatch, cuda, tmp_path):
    from tilescope.execution import execute

    happened: list[str] = []
    monkeypatch.setattr(execute, "prepare", lambda *_, **__: lambda: happened.append("call"))
    cuda({
        "synchronize": lambda: happened.append("synchronize"), "nvtx.range_start": lambda name: happened.append(f"open {name}") or 7,
        "nvtx.range_end": lambda handle: happened.append(f"close {handle}"),
    })  # fmt: skip
    spec = SimpleNamespace(workload=lambda _: None, cost=lambda *_: None)
    counters.capture(CASE, spec, tmp_path / "out", {"warmup": 10})
    opened = happened.index(f"open tilescope:{CASE.slug}")
    assert happened[:opened] == ["call"] * counters.warmup({}) + ["synchronize"]
    assert happened[opened + 1 :] == ["call", "synchronize", "close 7"]
    assert [path.name for path in tmp_path.iterdir()] == [CASE.slug + launch_configs.SUFFIX]


def test_only_a_workload_without_work_is_empty():
    histogram, softmax = (execute.load_spec(name) for name in ("histogram", "softmax"))
    with pytest.raises(NotApplicable, match="empty workload"):
        counters.warmed_up(Case("softmax", "triton", "forward", "0x4096-bf16"), softmax, {})
    # Its last dimension is a parameter of 0, the skew. Here it fails for want of a GPU.
    with pytest.raises((RuntimeError, AssertionError)) as ended:
        counters.warmed_up(Case("histogram", "triton", "forward", "65536x256x0-int32"), histogram, {})
    assert not isinstance(ended.value, NotApplicable)
