"""The torch.profiler collector on a trace of two repetitions of a backward pass, each after a flush of the L2."""

import copy
import gzip
import json
from pathlib import Path
from typing import Any

import pytest
from tilescope.collectors import torch_profiler
from tilescope.table import schema
from tilescope.table.case import Case

GOLDEN = Path(__file__).parent / "fixtures" / "torch_profiler_trace.json"
CASE = Case("layer_norm", "triton", "backward", "4096x4096-bf16")


@pytest.fixture
def trace():
    loaded: dict[str, Any] = json.loads(GOLDEN.read_text())
    return loaded


def written(trace, folder):
    artefact = folder / f"trace{torch_profiler.SUFFIX}"
    artefact.write_bytes(gzip.compress(json.dumps(trace).encode()))
    return artefact


def test_launches_of_every_repetition():
    table = schema.validate(torch_profiler.parse(GOLDEN, CASE))
    times = table[table["metric"] == "gpu_time"].set_index(["sample", "launch"])["value"]
    assert times.to_dict() == pytest.approx(
        {(0, 0): 34.976e-6, (0, 1): 1.504e-6, (0, 2): 27.712e-6, (1, 0): 35.232e-6, (1, 1): 1.504e-6, (1, 2): 27.84e-6}
    )
    functions = table[["launch", "function"]].drop_duplicates().set_index("launch")["function"]
    assert functions[0] == "layer_norm_backward_kernel"
    assert functions[1] == "Memset (Device)"
    assert functions[2].startswith("void at::native::reduce_kernel")
    starts = table[(table["metric"] == "launch_start") & (table["sample"] == 1)].set_index("launch")["value"]
    assert starts.to_dict() == pytest.approx({0: 0.0, 1: 36e-6, 2: 39e-6})
    calls = table[table["metric"] == "launch_call"].set_index(["sample", "launch"])["value"]
    # The trace has its first launch begin at 1040 us, called at 1020, 1026 and 1030 us.
    assert calls[0].to_dict() == pytest.approx({0: -20e-6, 1: -14e-6, 2: -10e-6})
    assert len(calls) == 6
    assert set(table.loc[table["metric"] == "launch_call", "unit"]) == {"second"}
    kernel = table[(table["launch"] == 0) & table["sample"].isna()].set_index("metric")["value"]
    assert kernel.to_dict() == pytest.approx(
        {"registers": 96, "shared_memory": 4128, "block_threads": 256, "grid_blocks": 264, "estimated_occupancy": 0.31}
    )
    reduction = table[(table["launch"] == 2) & table["sample"].isna()].set_index("metric")["value"]
    assert (reduction["block_threads"], reduction["grid_blocks"]) == (512, 128)
    # A memset has no registers: absent, not 0.
    assert table[(table["launch"] == 1) & table["sample"].isna()].empty
    assert not torch_profiler.parse(GOLDEN, CASE)["function"].str.contains("FillFunctor").any()


def test_the_clock_is_the_cases(trace, tmp_path):
    table = torch_profiler.parse(written(trace | {"clocks": {"sm_clock": 1.98e9}}, tmp_path), CASE)
    clocks = table[table["metric"] == "sm_clock"]
    assert clocks[["value", "source"]].values.tolist() == [[1.98e9, "torch_profiler"]]
    assert clocks["launch"].isna().all()


def test_a_launch_without_its_call_is_placed_by_its_start(trace, tmp_path):
    whole = torch_profiler.parse(GOLDEN, CASE)
    trace["traceEvents"] = [e for e in trace["traceEvents"] if e.get("cat") not in ("cuda_runtime", "cuda_driver")]
    # When the CPU called is then not known, and all else is as before.
    rest = whole[whole["metric"] != "launch_call"].reset_index(drop=True)
    assert torch_profiler.parse(written(trace, tmp_path), CASE).equals(rest)


def test_trimmed_trace_says_the_same_and_is_smaller(trace, tmp_path):
    before = copy.deepcopy(trace)
    trimmed = torch_profiler.trim(trace)
    assert trace == before
    assert torch_profiler.parse(written(trimmed, tmp_path), CASE).equals(torch_profiler.parse(GOLDEN, CASE))
    names = [event["name"] for event in trimmed["traceEvents"]]
    assert not any("FillFunctor" in name for name in names)
    # The operators of the first repetition alone.
    assert sum("LayerNormBackward" in name for name in names) == 1
    assert sum(event["name"] == "cuLaunchKernelEx" for event in trimmed["traceEvents"]) == 2
    assert len(json.dumps(trimmed)) < len(json.dumps(before))


@pytest.mark.parametrize("events", [[], [{"ph": "M", "name": "process_name"}]])
def test_empty_trace(events, tmp_path):
    table = torch_profiler.parse(written({"traceEvents": events}, tmp_path), CASE)
    assert table.empty
    assert list(table.columns) == list(schema.COLUMNS)


def test_a_real_trace_has_the_ranges_we_look_for(tmp_path):
    """On the CPU there are no launches, but ranges and operators look the same."""
    import torch
    from torch.autograd.profiler import profile, record_function

    with profile(use_kineto=True) as profiler:
        for sample in range(3):
            with record_function(f"{torch_profiler.RANGE}#{sample}"):
                torch.ones(8).exp()
    path = tmp_path / "trace.json"
    profiler.export_chrome_trace(str(path))
    real = json.loads(path.read_text())
    assert torch_profiler.samples(real) == {0: [], 1: [], 2: []}
    trimmed = torch_profiler.trim(real)
    assert sum(event["name"] == "aten::exp" for event in trimmed["traceEvents"]) == 1
    assert torch_profiler.parse(written(trimmed, tmp_path), CASE).empty
