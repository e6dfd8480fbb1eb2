"""The recordings from a real GPU: what they hold, and that the models and the offline compiler agree with them."""

import json
import math
import re

import pandas as pd
import pytest
from tilescope.hardware import occupancy, roofs
from tilescope.models import lanes
from tilescope.runs import changes, steps, store
from tilescope.table import schema
from tilescope.table.case import Case
from tilescope.table.sources import COUNTERS

from tests.recorded import AS_RECORDED

from .capturing import capture

FOLDERS = sorted(path for path in store.recorded_dir().iterdir() if path.is_dir())
#: Read from the files: opening all recordings takes five seconds.
RUNS = [json.loads((folder / "run.json").read_text()) for folder in FOLDERS]
#: Those of a model's step, whose kernels are other libraries'.
STEPS = {run["id"] for run in RUNS if run["settings"].get("tool") == "tilescope model"}
# A sweep is of one pass, whatever its kernels have got since they were recorded by every collector.
KERNELS = {
    name: facts["passes"]
    for run in RUNS
    if "sweep" not in run["title"] and run["id"] not in STEPS
    for name, facts in run["kernels"].items()
}
CASE = ["kernel", "impl", "pass", "workload", "config"]


@pytest.fixture(scope="module")
def rows(recordings):
    return pd.concat([loaded.table for loaded in recordings], ignore_index=True)


def launches(rows, source, *metrics):
    """One row a recorded launch, one column a metric."""
    found = rows[(rows["source"] == source) & rows["metric"].isin(metrics) & rows["launch"].notna()]
    index = ["run_id", *CASE, "launch", "function"]
    return found.groupby([*index, "metric"])["value"].median().unstack("metric").reset_index()


def test_recording_is_whole_measured_and_small(recording):
    loaded, folder = recording, recording.folder
    assert loaded.run.complete
    assert not schema.validate(loaded.table).empty
    json.dumps(loaded.run.to_json())
    assert loaded.run.device.measured
    assert loaded.run.device.name == "NVIDIA H200"
    assert {"torch", "triton", "driver"} <= loaded.run.versions.keys()
    assert sum(path.stat().st_size for path in folder.iterdir()) < 1_000_000
    more = {"lines.parquet", "configs.parquet", "sources.json.gz", "listings.json.xz", "artefacts", "step.json.gz"}
    assert (
        {"run.json", "table.parquet"}
        <= {path.name for path in folder.iterdir()}
        <= {"run.json", "table.parquet", *more}
    )
    assert set(loaded.table["kernel"]) == set(loaded.run.kernels)


def test_nothing_recorded_is_called_wrong(rows):
    # Liger-Kernel writes results over its inputs, from which the reference is computed.
    checked = rows[(rows["source"] == "check") & (rows["impl"] != "liger")]
    case = ["run_id", "kernel", "impl", "pass", "workload", "config"]
    values = checked.pivot_table(index=case, columns="metric", values="value")
    for error, accepted in (("relative_error", "tolerance"), ("row_error", "row_tolerance")):
        both = values.dropna(subset=[error, accepted])
        assert len(both) > 1000
        assert both[both[error] > both[accepted]].empty


def test_recordings_have_digests_of_their_functions(recordings):
    digests = {
        (loaded.run.id, name): changes.recorded(loaded, name) for loaded in recordings for name in loaded.run.kernels
    }
    assert all(digests.values())
    changed = {(loaded.run.id, name) for loaded in recordings for name in changes.changed_kernels(loaded)}
    assert changed < digests.keys()


def test_a_step_and_the_inside_of_a_kernel_are_recorded(recordings):
    """So that they can be seen without a GPU."""
    shown = {loaded.run.title: loaded for loaded in recordings}
    model = shown["GPT-2, a training step"]
    step = steps.read(model.folder)
    assert len(step.launches) > 500 and step.plain > 0.01
    declared = next(run["kernels"] for run in RUNS if run["id"] == model.run.id)
    assert model.of_step and declared and not model.run.kernels, "older runs declare what a step launched"
    (listed,) = (run for run in store.list_runs([model.folder.parent]) if run.of_step)
    assert (listed.id, listed.kernels, listed.cases) == (model.run.id, (), 0)
    inside = shown["matmul: inside"]
    found = lanes.of_case(inside, Case("matmul", "triton", "forward", "4096x4096x4096-bf16"))
    assert len(found.spans) > 1000 and found.launches[0]["function"] == "matmul_hopper_kernel"


def test_recordings_name_no_folder_of_the_machine():
    named = [
        folder.name
        for folder in FOLDERS
        if re.search(r"/(tmp|home|root|opt|usr|var)/", (folder / "run.json").read_text())
    ]
    assert named == []


def test_lines_of_libraries_are_apart(recording):
    loaded = recording
    for (kernel, impl), rows in loaded.lines.groupby(["kernel", "impl"]):
        foreign = bool(loaded.run.kernels[kernel]["implementations"][impl].get("requires"))
        assert set(rows["file"].str.startswith(f"{impl}/")) == {foreign}


def test_every_kernel_was_checked_timed_and_counted(rows):
    """At two sizes or more, beside PyTorch. The study of compiled regions was recorded without counters."""
    found = rows[(rows["config"] == "") & rows["impl"].isin(["triton", "eager"])]
    counted = found["source"].isin(COUNTERS)
    seen = found.assign(source=found["source"].mask(counted, "counters"))
    sizes = seen.groupby(["kernel", "impl", "source"])["workload"].nunique().unstack("source")
    sizes = sizes[sizes.index.get_level_values("kernel").isin(KERNELS)]
    assert set(sizes.index.get_level_values("kernel")) == set(KERNELS)
    assert (sizes[["events", "torch_profiler"]] >= 2).all().all()
    assert (sizes["counters"].xs("triton", level="impl").drop("mlp_compile_regions") >= 2).all()


def test_ceilings_were_measured_on_the_device(recordings):
    measured = [loaded.run for loaded in recordings if loaded.run.settings.get("measure_ceilings", True)]
    assert measured
    for run in measured:
        expected = [("bf16", "flop/second"), ("fp32", "flop/second")]
        if not any("memory roofs" in note and "left out" in note for note in run.notes):
            expected.append(("hbm", "byte/second"))
        for name, unit in expected:
            roof = roofs.roof(run.device, name)
            assert roof is not None
            assert (roof.origin, roof.unit) == ("measured", unit)
            sheet = run.device.ceiling(name, "datasheet")
            assert 0.5 * sheet.value < roof.value <= sheet.value


def test_theoretical_occupancy_is_that_of_ncu(rows):
    limits = ["registers", "shared_memory", "warps", "blocks", "barriers"]
    names = [f"occupancy_limit_{name}" for name in limits]
    asked = ["registers", "shared_memory", "shared_memory_configured", "block_threads", "barriers"]
    found = launches(rows, "ncu", *names, *asked, "theoretical_occupancy")
    assert len(found) > 200
    for launch in found.dropna(subset=names).to_dict("records"):
        mine = occupancy.blocks(
            "sm_90", int(launch["registers"]), int(launch["shared_memory"]), int(launch["block_threads"]),
            int(launch["barriers"]), configured=int(launch["shared_memory_configured"]),
        )  # fmt: skip
        theirs = {name: int(launch[f"occupancy_limit_{name}"]) for name in limits}
        assert mine.limits == theirs, launch
        # ncu prints the percentage with two decimals.
        assert mine.ratio == pytest.approx(launch["theoretical_occupancy"], abs=6e-5), launch


RESOURCES = ["registers", "shared_memory"]
#: Kernels that choose their config by timing a few.
TIMED = (
    "matmul", "fp8_matmul", "fp8_matmul_rows", "int8_matmul", "int8_matmul_rows", "w8a16_matmul", "lora_linear",
    "layer_norm_linear", "rms_norm_gelu_linear", "conv2d",
)  # fmt: skip
#: Kernels that stand for all: every config of every kernel would take minutes.
COMPILED = ("softmax", "matmul", "cross_entropy", "gelu")
SPILLS = ["spill_bytes_stored", "spill_bytes_loaded"]
SHAPE = ["grid_blocks", "block_threads"]


def resources(launch):
    """A thread gets registers in eights: the ptxas of Inductor, which may have set it, names 39 where Triton's names 40."""
    exact = {name: launch[name] for name in (*RESOURCES, *SPILLS)}
    return {**exact, "registers": 8 * math.ceil(launch["registers"] / 8)}


def side_by_side(on_gpu, compiled):
    """Launches of one function in one case, in order: PyTorch's own, which a GPU sees between them, were not compiled."""
    nth = ["run_id", *CASE, "function"]
    compiled = compiled[compiled["impl"] == "triton"]
    numbered = [frame.assign(nth=frame.sort_values("launch").groupby(nth).cumcount()) for frame in (compiled, on_gpu)]
    return numbered[0].merge(numbered[1].drop(columns="launch"), on=[*nth, "nth"])


@AS_RECORDED
def test_offline_compiler_finds_what_the_gpu_had(recordings, rows):
    """Compiled here, without a GPU: registers and shared memory as the GPU's launches had them, spills as ptxas said there."""
    on_gpu, said = launches(rows, "torch_profiler", *RESOURCES), launches(rows, "compiler", *SPILLS, *SHAPE)
    merged = side_by_side(on_gpu, said)
    timed = said["run_id"].isin(on_gpu["run_id"])  # ncu may count without times beside it
    assert len(merged) == len(said[timed & (said["impl"] == "triton")])
    # Left to itself a product times its configs on the GPU and may choose another than the guess made here: a sweep
    # names the config.
    merged = merged[(merged["config"] != "") | ~merged["kernel"].isin(TIMED)]
    changed = {(loaded.run.id, *problem) for loaded in recordings for problem in changes.changed_problems(loaded)}
    problems = merged[["run_id", "kernel", "pass", "workload"]].itertuples(index=False, name=None)
    merged = merged[[problem not in changed for problem in problems]]
    merged = merged[merged["kernel"].isin(COMPILED)]
    swept = merged.loc[merged["config"] != "", "config"].drop_duplicates().iloc[::60]
    merged = merged[(merged["config"] == "") | merged["config"].isin(swept)]
    keys = [tuple(key) for key in merged[CASE].drop_duplicates().to_numpy()]
    answers = capture("compiler", [Case(*key) for key in keys], target="sm_90")
    compared = 0
    for key, rows_of in merged.groupby(CASE):
        answer = answers[Case(*key).id]
        assert "rows" in answer, answer
        here: dict[tuple[int, str], dict[str, float]] = {}
        for launch, function, metric, value in zip(
            *(answer["rows"][column] for column in ("launch", "function", "metric", "value")), strict=True
        ):
            here.setdefault((int(launch), function), {})[metric] = value
        for launch in rows_of.to_dict("records"):
            found = here.get((int(launch["launch"]), launch["function"]))
            # The launcher chooses another function or config today, which no digest of a function shows.
            if found is None or any(found[name] != launch[name] for name in SHAPE):
                continue
            assert resources(found) == resources(launch), launch
            compared += 1
    assert compared > 15


def test_gpu_spills_where_the_compiler_does(rows):
    merged = side_by_side(launches(rows, "ncu", "spill_loads", "spill_stores"), launches(rows, "compiler", *SPILLS))
    assert len(merged) > 50
    assert ((merged["spill_stores"] > 0) == (merged["spill_bytes_stored"] > 0)).all()
    assert ((merged["spill_loads"] > 0) == (merged["spill_bytes_loaded"] > 0)).all()
    assert (merged["spill_loads"] > 0).any()
