"""Other tools' files as runs: every stated value is in the table, and no other."""

import gzip
import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from tilescope import cli
from tilescope.collectors.foreign_files import (
    contents,
    formats,
    helion_autotune,
    inductor_autotune,
    ncu_csv,
    profiler_trace,
    proton,
    tritonparse,
)
from tilescope.models import function_names, sweeps, text_table
from tilescope.models.summary import summarise
from tilescope.notebook.opening import open_file
from tilescope.runs import store
from tilescope.runs.store import LoadedRun, StoreError
from tilescope.table.sources import MEASURED

FIXTURES = Path(__file__).with_name("fixtures")
TRACE = FIXTURES / "torch_profiler_trace.json"
FILES = {
    "raw_37_metrics_h200.csv": ncu_csv,
    "raw_full_h200.csv.gz": ncu_csv,
    "details_rules_h200.csv": ncu_csv,
    "torch_profiler_trace.json": profiler_trace,
    "foreign/proton_profile.hatchet": proton,
    "foreign/tritonparse_events.ndjson": tritonparse,
    "foreign/autotuning_result_json_list.txt": inductor_autotune,
    # Written by the log of Helion 1.5.1 itself, of configs, times and an H200 that were made up.
    "foreign/helion_autotune.csv": helion_autotune,
}


pytestmark = pytest.mark.usefixtures("runs")


def values(loaded: LoadedRun, kernel: str, metric: str, workload: str = "") -> list[float]:
    """The metric's values of a kernel, by launch."""
    rows = loaded.table[(loaded.table["kernel"] == kernel) & (loaded.table["metric"] == metric)]
    return list(rows.loc[rows["workload"].str.contains(workload, regex=False), "value"])


def written(folder: Path, name: str, data: Any) -> Path:
    path = folder / name
    path.write_text(json.dumps(data))
    return path


@pytest.mark.parametrize("name", FILES)
def test_file_recognised_by_content_becomes_a_run(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "400")
    content = (FIXTURES / name).read_bytes()
    path = tmp_path / Path(name).name
    path.write_bytes(content)
    assert formats.of(path) is FILES[name]
    loaded = open_file(path)
    assert store.open_run(store.find(loaded.run.id)).table.equals(loaded.table)
    assert loaded.run.settings["file"] == path.name
    assert loaded.run.settings["file_sha256"] == hashlib.sha256(content).hexdigest()
    assert path.name in loaded.run.notes[0]
    assert "recorded" in set(loaded.table["impl"])
    assert set(loaded.table["source"]) <= MEASURED
    assert loaded.of_step == (FILES[name] is profiler_trace)
    assert set(loaded.run.kernels) == (set() if loaded.of_step else set(loaded.table["kernel"]))
    rows = summarise(loaded.table, loaded.run.device, loaded.run.kernels, loaded.configs)
    # No cost is declared, so nothing is set against a roof.
    assert rows["floor"].isna().all()
    assert not rows["bound"].any()
    text = text_table.text(loaded)
    called = function_names.labels(loaded.table["kernel"])
    # A step has rows of equal names, at other places.
    called |= {kernel: function_names.said(kernel) for kernel in called if loaded.of_step}
    assert all(kernel in text or called[kernel] in text for kernel in called)


def test_ncu_raw_page_has_each_launch_and_the_gpu() -> None:
    loaded = open_file(FIXTURES / "raw_37_metrics_h200.csv")
    device = loaded.run.device
    assert (device.name, device.target, device.multiprocessors) == ("NVIDIA H200", "sm_90", 132)
    assert (device.l2_bytes, device.memory_bytes) == (62_914_560, 150_109_880_320)
    softmax = loaded.table[(loaded.table["kernel"] == "softmax_kernel") & (loaded.table["metric"] == "gpu_time")]
    other = loaded.table[(loaded.table["kernel"] == "mm_kernel") & (loaded.table["metric"] == "gpu_time")]
    # Numbered over the file, in its order.
    assert sorted([*softmax["launch"], *other["launch"]]) == [0, 1, 2, 3]
    assert set(softmax["workload"]) == {"grid 16384×1×1, block 256×1×1"}
    assert any(note.startswith("4 launches: ") for note in loaded.run.notes)
    assert any("unmodified GPU clocks" in note for note in loaded.run.notes)


def test_ncu_details_page_agrees_with_the_raw_page() -> None:
    details, raw = (open_file(FIXTURES / name) for name in ("details_rules_h200.csv", "raw_full_h200.csv.gz"))
    compared = 0
    for metric in ("registers", "theoretical_occupancy", "occupancy_limit_registers", "shared_memory", "block_threads"):
        for kernel in ("softmax_kernel", "mm_kernel"):
            mine, theirs = values(details, kernel, metric), values(raw, kernel, metric)
            assert mine == pytest.approx(theirs[: len(mine)])
            compared += len(mine)
    assert compared == 10
    assert values(details, "softmax_kernel", "gpu_time") == [63.712e-6]
    assert values(details, "softmax_kernel", "dram_bytes_read") == []  # that page has no bytes
    assert details.run.device.name == "a GPU of sm_90"
    assert details.run.device.multiprocessors == details.run.device.l2_bytes == 0


def test_a_trace_gives_every_launch_and_who_launched_it(tmp_path: Path) -> None:
    loaded = open_file(TRACE)
    kernel = "layer_norm_backward_kernel"
    events = [e for e in json.loads(TRACE.read_text())["traceEvents"] if e.get("name") == kernel and e["ph"] == "X"]
    assert values(loaded, kernel, "gpu_time") == pytest.approx([e["dur"] * 1e-6 for e in events])
    assert values(loaded, kernel, "registers") == [96.0] * len(events)
    assert loaded.run.device.name == "NVIDIA H200"
    assert set(loaded.table.loc[loaded.table["kernel"] == "Memset (Device)", "workload"]) == {"4096 bytes"}
    assert values(loaded, "Memset (Device)", "registers") == []
    text = text_table.text(loaded)
    assert "PyTorch fill " in text and "CUDA Memset " in text  # a template by what it computes
    event = {"ph": "X", "cat": "kernel", "name": "k", "ts": 5.0, "dur": 2, "args": {"External id": 7, "stream": 3}}
    operator = {"ph": "X", "cat": "cpu_op", "name": "aten::mm", "ts": 1.0, "dur": 2, "args": {"External id": 7}}
    earlier = {**event, "ts": 2.0, "dur": 0, "args": {"registers per thread": -1, "shared memory": float("nan")}}
    data = {"traceEvents": [event, earlier, operator, {**event, "dur": "long"}, "no event", {"ph": "X"}]}
    for name, pack in (("a.json", bytes), ("a.json.gz", gzip.compress)):
        path = tmp_path / name
        path.write_bytes(pack(json.dumps(data).encode()))
        loaded = open_file(path)
        # A launch of no time is one; a damaged event, and values that cannot be, are absent.
        assert values(loaded, "k", "gpu_time") == [0.0, 2e-6]
        assert set(loaded.table["metric"]) == {"gpu_time"}
        assert set(loaded.table["source"]) == {"chrome_trace"}  # nothing in it says that Kineto wrote it
        assert set(loaded.table["workload"]) == {"grid not recorded"}
        assert (loaded.run.device.name, loaded.run.device.target) == ("GPU not named in the file", "")


def test_trace_with_odd_text_keeps_every_launch(tmp_path: Path) -> None:
    """Text that looks like the end of an event, over several pieces of the file."""
    event = {"ph": "X", "cat": "kernel", "name": "k", "ts": 1.0, "dur": 2.0, "args": {"stream": 7}}
    odd = [
        json.dumps({**event, "name": "a },{ b", "args": {"deep": [{"x": 1}, {"y": 2}]}}).encode(),
        json.dumps({**event, "args": "none"}).encode(),
    ]
    many = [json.dumps({**event, "ts": float(n)}).encode() for n in range(12_000)]
    path = tmp_path / "odd.json"
    tail = b'], "deviceProperties": [{"id": 0}, {"id": 1, "name": "},{"}], "traceName": "x"}'
    path.write_bytes(b'{"traceEvents": [' + b", ".join([*many, *odd, *many]) + tail)
    table = profiler_trace.read(path).table
    times = table[table["metric"] == "gpu_time"]
    assert len(times) == 2 * len(many) + len(odd) - 1  # the event whose arguments are a text is damaged
    assert set(times["kernel"]) == {"k", "a },{ b"}
    path.write_bytes(path.read_bytes()[:-200])
    with pytest.raises(StoreError, match="cut off"):
        open_file(path)
    with pytest.raises(StoreError, match=r"no file nowhere\.json"):
        open_file("nowhere.json")


def test_launch_with_odd_arguments_keeps_the_others(tmp_path: Path) -> None:
    arguments = {"grid": [4, 1, 1], "registers per thread": [32], "stream": {"id": 7}, "est. achieved occupancy %": 25}
    event = {"ph": "X", "cat": "kernel", "name": "k", "ts": 1.0, "dur": 2.0, "args": arguments}
    table = profiler_trace.read(written(tmp_path, "odd.json", {"traceEvents": [event]})).table
    assert dict(zip(table["metric"], table["value"], strict=True)) == pytest.approx(
        {"gpu_time": 2e-6, "grid_blocks": 4, "estimated_occupancy": 0.25}
    )


def test_trace_was_recorded_when_its_first_launch_began(tmp_path: Path) -> None:
    events = [{"ph": "X", "cat": "kernel", "name": "k", "ts": start, "dur": 2.0} for start in (9e6, 1e6)]
    data = {"traceEvents": events, "baseTimeNanoseconds": 1_700_000_000_000_000_000}
    assert profiler_trace.read(written(tmp_path, "late.json", data)).recorded == "2023-11-14T22:13:21+00:00"


def test_protons_kernels_are_summed_in_each_scope() -> None:
    loaded = open_file(FIXTURES / "foreign" / "proton_profile.hatchet")
    assert values(loaded, "matmul_kernel", "gpu_time", "step/forward") == pytest.approx([204.8e-6])
    assert values(loaded, "matmul_kernel", "launches", "step/backward") == [8]
    assert values(loaded, "matmul_kernel", "algorithm_flops", "step/backward") == [2.2e9]
    assert values(loaded, "add_kernel", "algorithm_flops") == []
    assert loaded.table["launch"].isna().all()  # it keeps none
    assert any("bytes have no place" in note for note in loaded.run.notes)
    rows = summarise(loaded.table, loaded.run.device).set_index(["kernel", "workload"])
    assert rows.loc[("matmul_kernel", "step/forward"), "launches"] == 4
    assert rows.loc[("add_kernel", "step/forward"), "time_source"] == "proton"
    assert (loaded.run.device.target, loaded.run.device.multiprocessors) == ("sm_90", 132)


def test_the_same_kernel_twice_in_a_scope_is_added_up(tmp_path: Path) -> None:
    tree, devices = json.loads((FIXTURES / "foreign" / "proton_profile.hatchet").read_text())
    forward = tree["children"][0]["children"][0]
    forward["children"].append(forward["children"][0])
    loaded = open_file(written(tmp_path, "twice.hatchet", [tree, devices]))
    assert values(loaded, "matmul_kernel", "gpu_time", "step/forward") == pytest.approx([2 * 204.8e-6])


def test_tritonparse_has_configs_and_compile_times(tmp_path: Path) -> None:
    path = FIXTURES / "foreign" / "tritonparse_events.ndjson"
    loaded = open_file(path)
    assert values(loaded, "add_kernel", "grid_blocks") == [32, 32, 8]
    assert values(loaded, "add_kernel", "block_threads") == [128] * 3
    assert values(loaded, "add_kernel", "shared_memory") == [0] * 3
    compiled = json.loads(path.read_text().splitlines()[0])["payload"]["metadata"]["times"]
    spent = compiled["ir_initialization"] + sum(t for _, t in compiled["lowering_stages"]) + compiled["store_results"]
    assert values(loaded, "add_kernel", "compile_time") == pytest.approx([spent * 1e-6])
    assert set(loaded.configs["launched"]) == {"BLOCK=128,num_warps=4,num_stages=3,num_ctas=1"}
    assert loaded.run.kernels["add_kernel"]["summary"] == "launched at main.py:9 (3 times)"
    assert loaded.run.versions["triton"]
    assert not {"gpu_time", "registers"} & set(loaded.table["metric"])  # no such value is in the file
    packed = tmp_path / "events.bin.ndjson"
    packed.write_bytes(b"".join(gzip.compress(line) for line in path.read_bytes().splitlines(keepends=True)))
    assert open_file(packed).table.drop(columns="run_id").equals(loaded.table.drop(columns="run_id"))
    cut = tmp_path / "cut.ndjson"
    cut.write_bytes(path.read_bytes()[:-20])
    assert values(open_file(cut), "add_kernel", "grid_blocks") == [32, 32]
    assert any("left out: 1" in note for note in open_file(cut).run.notes)


def test_inductor_choices_are_a_sweep_beside_extern_kernels(tmp_path: Path) -> None:
    loaded = open_file(FIXTURES / "foreign" / "autotuning_result_json_list.txt")
    assert loaded.run.device.name == "NVIDIA H200"
    assert "choices that could not be run: 1" in loaded.run.notes
    table = loaded.table
    assert set(table["metric"]) == {"interval"}
    assert set(table["workload"]) == {"512×1024, 1024×256, bfloat16"}
    times = {(row.impl, row.config): row.value for row in table.itertuples()}
    assert times == {
        ("recorded", "BLOCK_M=64,BLOCK_K=32,BLOCK_N=64,GROUP_M=8,num_warps=4,num_stages=2"): pytest.approx(51.2e-6),
        ("recorded", "BLOCK_M=128,BLOCK_K=32,BLOCK_N=128,GROUP_M=8,num_warps=8,num_stages=3"): pytest.approx(31.3e-6),
        ("extern_kernels.mm", ""): pytest.approx(28.7e-6),
    }
    untimed = tmp_path / "untimed.txt"
    untimed.write_text('{"op_name": "mm", "benchmark_result": Infinity}\n')
    with pytest.raises(StoreError, match="no choice in it was timed"):
        open_file(untimed)


def test_helion_configs_are_a_sweep_named_by_its_sidecar(tmp_path: Path) -> None:
    path = FIXTURES / "foreign" / "helion_autotune.csv"
    loaded = open_file(path)
    assert loaded.run.device.name == "NVIDIA H200"
    times = loaded.table[loaded.table["metric"] == "interval"]
    assert set(times["workload"]) == {"4096×2048, 2048×4096, bfloat16", "512×2048, 2048×512, bfloat16"}
    large = times[times["workload"].str.startswith("4096")].set_index("config")["value"]
    best = large.idxmin()
    assert large[best] == pytest.approx((118.304e-6 + 118.944e-6) / 2)  # timed twice
    assert "block_sizes_0=128,block_sizes_1=256,block_sizes_2=64" in best
    assert len(large) == 4
    spent = loaded.table[(loaded.table["metric"] == "compile_time") & (loaded.table["config"] == best)]
    assert list(spent["value"]) == [3.07]
    assert {
        "configs without a time: error, timeout",
        "configs that were started and have no end: 1",
        "configs that have the time of another with the same code: 1",
    } <= set(loaded.run.notes)
    assert set(summarise(loaded.table, loaded.run.device)["interval"]) == set(times["value"])
    # What became of those without a time stands in their cells.
    cells = sweeps.configs(loaded.table, loaded.run.failures)
    assert cells["time"].isna().sum() == 3
    reasons = {"helion: error", "helion: timeout", "helion: started, and the log has no end of it"}
    assert set(cells.loc[cells["time"].isna(), "reason"]) == reasons
    assert cells.loc[cells["time"].notna(), "reason"].eq("").all()
    # A log of an older Helion, without what is beside it and with what was cut off.
    lines = path.read_text().splitlines()
    alone = tmp_path / "softmax.csv"
    alone.write_text("\n".join(line.partition(",")[2].replace("config_id", "config_index") for line in lines[:5])[:-9])
    loaded = open_file(alone)
    assert values(loaded, "softmax", "interval") == pytest.approx([412.672e-6])
    assert "damaged rows that were left out: 1" in loaded.run.notes
    assert loaded.run.device.name == "GPU not named in the file"


def test_helions_config_can_be_pasted() -> None:
    code = (
        "Config(block_sizes=[64, -1], indexing='pointer', load_eviction_policies=['', 'last'], loop_orders=[[1, 0], [0]], "
        "maxnreg=None, num_warps=4, range_flattens=[None, True], pid_type='flat')"
    )
    text = helion_autotune.config_text(code)
    assert text.startswith("block_sizes_0=64,block_sizes_1=-1,indexing=pointer,load_eviction_policies_0=empty,")
    assert helion_autotune.as_code(text) == f"helion.{code}"
    assert helion_autotune.config_text("Config(a=open('x'))") == ""
    assert helion_autotune.config_text("[" * 10_000) == ""


def test_a_compilation_from_the_cache_has_no_time(tmp_path: Path) -> None:
    first = json.loads((FIXTURES / "foreign" / "tritonparse_events.ndjson").read_text().splitlines()[0])
    first["payload"]["metadata"]["cache_hit"] = True
    launch = {"event_type": "launch", "name": "k", "grid": [2, 0.5]}
    path = tmp_path / "a.ndjson"
    path.write_text(f"{json.dumps(first)}\n{json.dumps({**launch, 'compilation_metadata': {'shared': 64}})}\n")
    loaded = open_file(path)
    assert set(loaded.table["metric"]) == {"shared_memory"}
    assert set(loaded.table["workload"]) == {"grid not recorded"}


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        ("notes.md", b"# notes", "in no format that Tilescope knows: it opens ncu's reports"),
        ("empty.json", b"", "is empty"),
        ("zeros.json.gz", gzip.compress(bytes(64), mtime=0), "is empty"),
        ("mark.csv", b"\xff\xfe", "is empty: record it again"),
        ("cpu.json", b'{"deviceProperties": [], "traceEvents": []}', "ProfilerActivity.CUDA"),
        ("cut.json", b'{"traceEvents": [{"ph": "X"', "it is cut off: copy it again, or record it again"),
        ("deep.json", b'{"traceEvents": [' + b"[" * 100_000, "no JSON"),
        ("table.csv", b"a,b\n1,2\n", "ncu --csv --page raw"),
        ("scopes.hatchet", b'[{"frame": {"name": "ROOT"}, "metrics": {}, "children": []}]', "no kernel's time"),
        ("packed.hatchet_msgpack", b"\x92\x83\xa8", "default format"),
        ("a.ndjson", b'{"event_type": "launch_diff"}\n', "no compilation or launch"),
        ("lines.csv", b"generation,status,perf_ms,\rcompile_time_s,config\r1,ok,2,3,Config()\n", "ncu --csv --page raw"),
        ("cell.csv", b"generation,status,perf_ms,compile_time_s,config," + b"x" * 200_000, "ncu --csv --page raw"),
        ("damaged.json.gz", gzip.compress(TRACE.read_bytes(), mtime=0)[:900], "damaged.json.gz is cut off or damaged: copy it again"),
    ],
)  # fmt: skip
def test_a_file_that_cannot_be_opened_is_an_error_of_one_line(
    name: str, content: bytes, said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / name
    path.write_bytes(content)
    assert cli.main(["open", str(path)]) == cli.BAD_INPUT
    error = capsys.readouterr().err
    assert said in error
    assert name in error
    assert len(error.splitlines()) == 1
    assert not list((tmp_path / "runs").glob("*"))


def test_values_beyond_the_limits_are_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = contents.Rows("ncu")
    rows.add(
        "k", "w", 0, {"gpu_time": 0.0, "registers": 1e61, "waves": 1e-61, "block_threads": None, "grid_blocks": -1.0}
    )
    assert rows.frame()[["metric", "value"]].to_numpy().tolist() == [["gpu_time", 0.0]]
    monkeypatch.setattr(contents, "MOST_ROWS", 1)
    with pytest.raises(ValueError, match="it has more than 1 values: record fewer launches"):
        rows.add("k", "w", 1, {"gpu_time": 1.0})


def test_names_of_any_length_stay_apart(tmp_path: Path) -> None:
    names = ["k" * 5000 + end for end in "ab"] + ["\x1b[31m\nred", "\ud800", ""]
    events = [{"ph": "X", "cat": "kernel", "name": name, "ts": n, "dur": 1} for n, name in enumerate(names)]
    loaded = open_file(written(tmp_path, "names.json", {"traceEvents": events}))
    kernels = loaded.table["kernel"].unique()
    assert len(kernels) == len(names)
    assert all(len(name) <= 1000 and name.isprintable() for name in kernels)


def event(start: float, time: float, kernel: str = "k", **arguments: object) -> dict[str, object]:
    """A launch of a trace, in microseconds."""
    given = {
        "device": 0, "stream": 7, "grid": [64, 1, 1], "block": [128, 1, 1], "registers per thread": 32, **arguments,
    }  # fmt: skip
    return {"ph": "X", "cat": "kernel", "name": kernel, "ts": start, "dur": time, "args": given}


H100 = {"id": 0, "name": "NVIDIA H100 80GB HBM3", "computeMajor": 9, "computeMinor": 0, "numSms": 114, "warpSize": 32}
A100 = {"id": 1, "name": "NVIDIA A100-SXM4-80GB", "computeMajor": 8, "computeMinor": 0, "numSms": 108, "warpSize": 32}


def trace(events: list[Any], *devices: Mapping[str, object]) -> dict[str, Any]:
    return {"schemaVersion": 1, "deviceProperties": [*devices] or [H100], "traceEvents": events}


def test_each_gpu_of_a_trace_has_cases_of_its_own(tmp_path: Path) -> None:
    events = [event(10, 1), event(20, 3, device=1), event(30, 1), event(40, 3, device=1)]
    loaded = open_file(written(tmp_path, "kinds.json", trace(events, H100, A100)))
    assert values(loaded, "k", "gpu_time", "block 128×1×1, GPU 0") == pytest.approx([1e-6, 1e-6])
    assert values(loaded, "k", "gpu_time", "block 128×1×1, GPU 1") == pytest.approx([3e-6, 3e-6])
    # Occupancy and roofs of one kind do not hold for the other.
    assert (loaded.run.device.target, loaded.run.device.ceilings) == ("", ())
    assert any("GPU 1 (NVIDIA A100-SXM4-80GB); the kinds differ" in note for note in loaded.run.notes)
    loaded = open_file(written(tmp_path, "alike.json", trace(events, H100, {**H100, "id": 1})))
    # The file's figures come before the datasheet's.
    device = loaded.run.device
    assert (device.name, device.multiprocessors) == (H100["name"], 114) and device.l2_bytes > 0
    assert device.ceilings and all(roof.origin == "datasheet" for roof in device.ceilings)
    assert len(set(loaded.table["workload"])) == 2
    # One GPU is not named in the workload, whatever its number.
    alone = open_file(written(tmp_path, "one.json", trace([event(10, 1, device=1)], H100, A100)))
    assert set(alone.table["workload"]) == {"grid 64×1×1, block 128×1×1"}
    assert alone.run.device.name == A100["name"]


def test_proton_on_amd_has_the_architecture_of_amd(tmp_path: Path) -> None:
    text = (FIXTURES / "foreign" / "proton_profile.hatchet").read_text()
    (tmp_path / "a.hatchet").write_text(
        text.replace("CUDA", "HIP").replace('"arch": "90"', '"arch": "gfx942:sramecc+"')
    )
    assert open_file(tmp_path / "a.hatchet").run.device.target == "gfx942"


def test_launches_of_several_processes_stay_apart(tmp_path: Path) -> None:
    text = (FIXTURES / "details_rules_h200.csv").read_text()
    other = "\n".join(line.replace('"929"', '"930"') for line in text.splitlines() if line.startswith('"0",'))
    (tmp_path / "two.csv").write_text(f"{text}\n{other}\n")
    assert values(open_file(tmp_path / "two.csv"), "softmax_kernel", "registers") == [32, 32]


def test_helions_log_of_a_spreadsheet_has_the_same_values(tmp_path: Path) -> None:
    path, saved = FIXTURES / "foreign" / "helion_autotune.csv", tmp_path / "a.csv"
    saved.with_suffix(".meta.jsonl").write_text(path.with_suffix(".meta.jsonl").read_text())
    pd.read_csv(path).to_csv(saved, sep=";", decimal=",", index=False)
    of = ["config", "metric", "value"]
    assert open_file(saved).table[of].equals(open_file(path).table[of])


def test_each_gpu_of_other_tools_files_has_cases_of_its_own(tmp_path: Path) -> None:
    tree, devices = json.loads((FIXTURES / "foreign" / "proton_profile.hatchet").read_text())
    forward = tree["children"][0]["children"][0]
    forward["children"].append(json.loads(json.dumps(forward["children"][0])))
    forward["children"][-1]["metrics"]["device_id"] = "1"
    devices["CUDA"]["1"] = {**devices["CUDA"]["0"], "arch": "80"}
    loaded = open_file(written(tmp_path, "two.hatchet", [tree, devices]))
    assert values(loaded, "matmul_kernel", "gpu_time", "step/forward, GPU 1") == pytest.approx([204.8e-6])
    assert loaded.run.device.target == ""
    text = (FIXTURES / "foreign" / "autotuning_result_json_list.txt").read_text()
    (tmp_path / "two.txt").write_text(text + text.replace("NVIDIA H200", "NVIDIA B200"))
    loaded = open_file(tmp_path / "two.txt")
    assert set(loaded.table["workload"].str.rpartition(", ")[2]) == {"NVIDIA H200", "NVIDIA B200"}
    lines = (FIXTURES / "foreign" / "tritonparse_events.ndjson").read_text()
    hip = lines.replace('"backend":"cuda"', '"backend":"hip"').replace('"arch":90', '"arch":"gfx942:sramecc+"')
    assert hip != lines
    (tmp_path / "two.ndjson").write_text(lines + hip.replace('"hash":"', '"hash":"0'))
    loaded = open_file(tmp_path / "two.ndjson")
    assert set(loaded.table["workload"].str.rpartition(", ")[2]) == {"sm_90", "gfx942"}
    assert set(loaded.configs["workload"]) <= set(loaded.table["workload"])


@pytest.mark.parametrize(
    ("about", "target"),
    [
        ({"name": "AMD Instinct MI300X", "computeMajor": 9, "computeMinor": 4}, ""),
        ({"name": "AMD Instinct MI210", "computeMajor": 9, "computeMinor": 0}, ""),
        ({"name": "AMD Radeon RX 7900 XTX (gfx1100)", "computeMajor": 11, "computeMinor": 0}, "gfx1100"),
        ({"name": "", "computeMajor": 9, "computeMinor": 4, "warpSize": 64}, ""),
        ({"name": "", "computeMajor": 11, "computeMinor": 0, "maxSharedMemoryPerMultiProcessor": 65536}, ""),
        ({"name": "Tesla V100-SXM2-32GB", "computeMajor": 7, "computeMinor": 0, "warpSize": 32}, "sm_70"),
        ({"name": "Brand New", "computeMajor": 13, "computeMinor": 0}, "sm_130"),
        ({"id": 1, "name": "another than the launch's"}, ""),
    ],
)
def test_only_gpus_of_nvidia_have_a_compute_capability(about: dict[str, Any], target: str, tmp_path: Path) -> None:
    loaded = open_file(written(tmp_path, "a.json", trace([event(1, 1)], {"id": 0, **about})))
    assert loaded.run.device.target == target
    assert "()" not in text_table.text(loaded)


#: Every file in one encoding, and one file in every encoding.
ENCODED = [(name, "utf-16") for name in FILES if not name.endswith(".gz")] + [
    (TRACE.name, encoding) for encoding in ("utf-8-sig", "utf-16-be", "utf-32", "utf-32-be")
]


@pytest.mark.parametrize(("name", "encoding"), ENCODED)
def test_file_in_another_encoding_has_the_same_values(name: str, encoding: str, tmp_path: Path) -> None:
    text = (FIXTURES / name).read_text()
    folder = tmp_path / "encoded"
    folder.mkdir()
    for one in (FIXTURES / name).parent.glob("*.meta.jsonl"):
        (folder / one.name).write_bytes(one.read_text().encode(encoding))
    path = folder / Path(name).name
    path.write_bytes(text.encode(encoding))
    plain = open_file(FIXTURES / name)
    found = open_file(path)
    assert found.table.drop(columns="run_id").equals(plain.table.drop(columns="run_id"))
    assert found.run.device == plain.run.device


TIMES = {"texts": ("1.5", "2.0"), "a text that is none": (1.0, "long"), "negative": (1.0, -2.0), "NaN": (float("nan"), 2.0),
         "infinite": (float("inf"), 2.0), "beyond a float": (10**400, 2.0), "beyond a clock": (1.0, 1e300)}  # fmt: skip


@pytest.mark.parametrize("kind", TIMES)
def test_trace_of_odd_times_is_read_or_called_damaged(kind: str, tmp_path: Path) -> None:
    odd = {**event(1, 1), **dict(zip(("ts", "dur"), TIMES[kind], strict=True))}
    loaded = open_file(written(tmp_path, "both.json", trace([odd, event(5, 3)])))
    read = kind == "texts"
    assert values(loaded, "k", "gpu_time") == pytest.approx([2e-6, 3e-6] if read else [3e-6])
    assert ("damaged events that were left out: 1" in loaded.run.notes) is not read
    if not read:
        with pytest.raises(StoreError, match="has a time that can be: 1 damaged event"):
            open_file(written(tmp_path, "odd.json", trace([odd])))


KINETO_ERRORS = {
    "lone backslash": rb'"name": "C:\Users\x"', "control character": b'"name": "a\x01b\x1fc"',
    "line end": b'"name": "a\nb"', "bare quote": b'"name": "cast<"half">(x)"',
    "infinity": b'"name": "k", "args": {"memory bandwidth (GB/s)": inf, "blocks per SM": -nan}',
    "nan of Windows": b'"name": "k", "args": {"blocks per SM": nan(ind)}',
    "bytes that are no text": b'"name": "\xff\xfe\xfd"',
}  # fmt: skip


@pytest.mark.parametrize("error", KINETO_ERRORS)
def test_trace_with_an_error_of_kineto_keeps_its_launches(error: str, tmp_path: Path) -> None:
    good = json.dumps(event(1, 2, "good, nan, inf")).encode()
    bad = b'{"ph": "X", "cat": "kernel", "ts": 5, "dur": 3, ' + KINETO_ERRORS[error] + b"}"
    path = tmp_path / "a.json"
    path.write_bytes(b'{"traceEvents": [' + b",\n".join([good, bad, good]) + b'], "schemaVersion": 1}')
    loaded = open_file(path)
    times = loaded.table[loaded.table["metric"] == "gpu_time"]
    assert sorted(times["value"]) == pytest.approx([2e-6, 2e-6, 3e-6])
    assert "good, nan, inf" in set(times["kernel"])
    assert set(loaded.table["source"]) == {"torch_profiler"}


@pytest.mark.parametrize("between", ["", "\n", "\n\n \x00"])
def test_second_trace_in_a_file_is_refused(between: str, tmp_path: Path) -> None:
    text = json.dumps(trace([event(1, 2)]))
    path = tmp_path / "two.json"
    for both in (text + between + text, text + between + "[]"):
        path.write_text(both)
        with pytest.raises(StoreError, match="follows the first: give each trace a file of its own"):
            open_file(path)
    path.write_text(f"[{text},\n{text}]")
    with pytest.raises(StoreError, match="an array of traces: give each trace a file of its own"):
        open_file(path)
    path.write_text(text + "\n \n")
    assert values(open_file(path), "k", "gpu_time") == pytest.approx([2e-6])


def notes_of(folder: Path, events: list[Any]) -> list[str]:
    return [
        note
        for note in open_file(written(folder, "a.json", trace(events))).run.notes
        if "of their stream" in note or "their stream" in note
    ]


def test_launch_that_outlasts_later_ones_is_impossible(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    events = [event(10 * n, 8) for n in range(6)]
    events[2]["dur"] = 25.0
    assert notes_of(tmp_path, events) == [
        "impossible: launches that end after a later launch of their stream has ended: 1, k by 7.00 µs"
    ]
    events[2]["dur"] = 5000.0
    events[2]["name"] = "slow"
    loaded = open_file(written(tmp_path, "a.json", trace(events)))
    assert values(loaded, "slow", "stream_overlap") == pytest.approx([4.982e-3])
    # The first finding of its case, and the only one.
    capsys.readouterr()
    cli.main(["advise", str(loaded.folder), "slow"])
    out = capsys.readouterr().out
    assert "after a later launch of the same stream has ended, by up to 4.98 ms" in out
    assert "2. " not in out
    cli.main(["advise", str(loaded.folder), "k"])
    assert "same stream" not in (out := capsys.readouterr().out) and "--collect" not in out


def test_launch_that_begins_before_the_last_ends_is_noted(tmp_path: Path) -> None:
    (note,) = notes_of(tmp_path, [event(0, 14), event(10, 8), event(20, 8)])
    assert note.startswith("launches that begin before the one before them") and note.endswith("1, k by 4.00 µs")


def test_launches_that_may_overlap_are_not_noted(tmp_path: Path) -> None:
    assert notes_of(tmp_path, [event(0, 50), event(10, 8, stream=8), event(20, 8, device=1)]) == []
    # Times are rounded to a microsecond in old traces; branches of a graph share a stream.
    assert notes_of(tmp_path, [event(0, 11), event(10, 8), event(18, 1)]) == []
    assert notes_of(tmp_path, [event(0, 50, **{"graph id": 3}), event(10, 8, **{"graph id": 3})]) == []
    assert notes_of(tmp_path, [event(0, 50, stream=None), event(10, 8, stream=None)]) == []
    assert notes_of(tmp_path, json.loads(TRACE.read_text())["traceEvents"]) == []


UNREAD = {
    "nsys.csv": ("Time (%),Total Time (ns),Instances,Avg (ns),Name\n71.2,123450,10,12345.0,k\n", "a summary of Nsight Systems"),
    "old-nsys.csv": ("Time(%),Total Time (ns),Instances,Average,Name\n71.2,123450,10,12345.0,k\n", "a summary of Nsight Systems"),
    "nsys.txt": ("\n ** CUDA GPU Kernel Summary:\n\n Time (%)  Total Time (ns)  Instances  Name\n", "a summary of Nsight Systems"),
    "trace.csv": ("Start (ns),Duration (ns),CorrId,GrdX,Name\n1,2,3,4,k\n", "a list of Nsight Systems"),
    "nsys.json": ('[{"Time (%)": 71.2, "Total Time (ns)": 1, "Name": "k"}]', "a summary of Nsight Systems"),
    "a.nsys-rep": ("\x00\x01binary", "a report of Nsight Systems"),
    "a.sqlite": ("SQLite format 3\x00", "a database of Nsight Systems"),
    "kernel_trace.csv": ('"Kind","Agent_Id","Queue_Id","Kernel_Name","Start_Timestamp"\n', "a table of rocprof, for a GPU of AMD"),
    "counter_collection.csv": ('"Correlation_Id","Dispatch_Id","Agent_Id","Kernel_Name","Counter_Name"\n', "a table of rocprof"),
    "memory_copy_trace.csv": ('"Kind","Direction","Source_Agent_Id","Correlation_Id","Start_Timestamp"\n', "a table of rocprof"),
    "kern_exec.csv": ("PID,TID,DevId,Count,QCount,Kernel Name\n", "a summary of Nsight Systems"),
    "stats.csv": ('"Name","Calls","TotalDurationNs","AverageNs"\n', "a summary of rocprof"),
    "results.json": ('{"rocprofiler-sdk-tool": [{}]}', "JSON of rocprof"),
    "nsight.csv": (",Annotation,n,AvgValue,StdDev,Metric,GPU\n0,a,1,2.0,0.1,gpu__time_duration.sum,NVIDIA H200\n", "a table of nsight-python"),
    "profiled.csv": ("Annotation,Value,Metric,Kernel,GPU,Host,ComputeClock\n", "a table of nsight-python"),
    "source.csv": ('"File Path","a.py"\n"Line No","Source","Live Registers"\n', "ncu's source page"),
    "table.txt": ("----\nName  Self CPU %  Self CPU  CPU total %\n", "a printed table of torch.profiler"),
    "snapshot.pickle": (b"\x80\x04\x95", "a pickle"),
}  # fmt: skip


@pytest.mark.parametrize("name", UNREAD)
def test_known_file_that_is_not_opened_is_named_with_what_to_do(name: str, tmp_path: Path) -> None:
    content, said = UNREAD[name]
    path = tmp_path / name
    for encoding in ("utf-8", "utf-16") if name.endswith(".csv") else ("utf-8",):
        path.write_bytes(content.encode(encoding) if isinstance(content, str) else content)
        with pytest.raises(StoreError, match=said) as raised:
            open_file(path)
        assert "export_chrome_trace" in str(raised.value) or "ncu --csv --page raw" in str(raised.value)
