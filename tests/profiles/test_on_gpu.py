"""The collectors that need a GPU, on one: forward and backward, fused and not."""

import gc
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from tilescope.collectors import events, torch_profiler
from tilescope.collectors.cupti import counters as cupti
from tilescope.collectors.ncu import counters
from tilescope.execution import execute
from tilescope.hardware import device
from tilescope.table import launch_configs, schema
from tilescope.table.case import Case

ADD = Case("vector_add", "triton", "forward", "4194304-fp32")
SOFTMAX = Case("softmax", "eager", "forward", "4096x4096-bf16")
BACKWARD = Case("softmax", "triton", "backward", "4096x4096-bf16")
COMPILED = Case("softmax", "compile", "backward", "4096x4096-bf16")
SETTINGS = {"repetitions": 10, "warmup": 3}

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(device.unavailable() is not None, reason=str(device.unavailable())),
    # PyTorch's own, of its profiler and of what Inductor imports; a worker shows them and goes on.
    pytest.mark.filterwarnings("ignore:Warning. Profiler clears events:UserWarning"),
    pytest.mark.filterwarnings("ignore:.torch.jit.script:DeprecationWarning"),
]


@pytest.mark.parametrize("case", [ADD, SOFTMAX, BACKWARD, COMPILED], ids=lambda case: case.id)
def test_events(case, tmp_path):
    # Graphs of the test before have had their memory; with it no peak is told.
    gc.collect()
    torch.cuda.empty_cache()
    out = tmp_path / f"a{events.SUFFIX}"
    events.capture(case, execute.load_spec(case.kernel), out, SETTINGS)
    table = schema.validate(events.parse(out, case))
    counts = table.groupby("metric")["value"].count()
    assert counts["interval"] == counts["graph_time"] == 10
    medians = table.groupby("metric")["value"].median()
    assert 1e-6 < medians["graph_time"] < 1e-2
    assert medians["peak_memory"] >= 4194304 * 4  # the smallest output


def test_events_of_a_call_that_cannot_be_captured_keep_no_memory():
    """PyTorch's allocator would keep allocating from the graph's pool, and return nothing to the GPU any more."""

    def asks_the_gpu():
        ones = torch.ones(2**20, device="cuda")
        return ones * ones.sum().item()

    torch.cuda.empty_cache()
    before = torch.cuda.memory_reserved()
    with torch.cuda.stream(torch.cuda.Stream()):
        found = events.measured(asks_the_gpu, 3, 1)
    assert "graph_time" not in found and found["notes"][0].startswith("not captured as a CUDA graph")
    assert found["peak_memory"] >= 2**22
    torch.ones(2**28, device="cuda")
    torch.cuda.empty_cache()
    assert torch.cuda.memory_reserved() - before < 2**28


@pytest.mark.parametrize("case", [ADD, SOFTMAX, BACKWARD, COMPILED], ids=lambda case: case.id)
def test_torch_profiler(case, tmp_path):
    out = tmp_path / f"a{torch_profiler.SUFFIX}"
    torch_profiler.capture(case, execute.load_spec(case.kernel), out, SETTINGS)
    table = schema.validate(torch_profiler.parse(out, case))
    times = table[table["metric"] == "gpu_time"]
    assert sorted(times["sample"].unique()) == list(range(10))
    launches = times.groupby("sample")["launch"].count()
    assert launches.nunique() == 1
    assert launches.iloc[0] > 1 if case.impl == "eager" else launches.iloc[0] >= 1
    assert not times["function"].str.contains("FillFunctor|Memset").any()
    assert out.stat().st_size < 100_000


@pytest.mark.parametrize("collector", [events, torch_profiler], ids=["events", "torch_profiler"])
def test_autotuners_choice_is_recorded(collector, tmp_path):
    case = Case(f"{Path(__file__).parent / 'small_kernels.py'}:TIMES", "triton", "backward", "5000-fp32")
    spec, out = execute.load_spec(case.kernel), tmp_path / f"a{collector.SUFFIX}"
    collector.capture(case, spec, out, SETTINGS)
    (row,) = launch_configs.beside(out, case, "events").to_dict("records")
    best = spec.implementations["triton"].call.__globals__["scale_kernel"].best_config
    assert row["function"] == "scale_kernel"
    assert row["autotuned"] == f"BLOCK={best.kwargs['BLOCK']},num_warps={best.num_warps},num_stages={best.num_stages}"
    assert "EVEN=False" in row["launched"]


def test_kernels_own_choice_is_recorded(tmp_path):
    for case in (BACKWARD, Case("matmul", "triton", "forward", "4096x4096x4096-bf16"), SOFTMAX):
        events.capture(case, execute.load_spec(case.kernel), tmp_path / "a.json", SETTINGS)
        found = launch_configs.beside(tmp_path / "a.json", case, "events")
        assert len(found) > 0 or case is SOFTMAX
        assert found["launched"].str.contains("num_warps=").all()


def script(collector, cases, folder):
    """A command that captures the cases in a process of its own: CUPTI serves one profiler a process."""
    file = folder / "capture.py"
    file.write_text(
        "from pathlib import Path\nfrom tilescope.execution import execute\nfrom tilescope.table.case import Case\n"
        f"from {collector.__package__} import counters\n"
        f"for data in {[case.to_json() for case in cases]!r}:\n"
        "    case = Case(**data)\n"
        f"    out = Path({str(folder)!r}) / (case.slug + counters.SUFFIX)\n"
        "    counters.capture(case, execute.load_spec(case.kernel), out, {})\n"
    )
    return [sys.executable, str(file)]


def by_ncu(cases, folder):
    command = counters.command(script(counters, cases, folder), folder)
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    log = (folder / counters.LOG).read_text()
    assert done.returncode == 0, counters.explain(log + done.stderr) or done.stderr
    counters.finish(folder, cases)
    return {case: schema.validate(counters.parse(folder / (case.slug + counters.SUFFIX), case)) for case in cases}


@pytest.mark.ncu
@pytest.mark.skipif(counters.unavailable() is not None, reason=str(counters.unavailable()))
def test_ncu(tmp_path):
    cases = [ADD, SOFTMAX, BACKWARD]
    tables = by_ncu(cases, tmp_path)
    add = tables[ADD].set_index("metric")["value"]
    assert add["l2_to_l1_bytes"] == pytest.approx(2 * 4194304 * 4, rel=0.05)
    assert tables[ADD]["launch"].nunique() == 1
    assert tables[SOFTMAX]["launch"].nunique() > 1
    assert tables[BACKWARD]["launch"].nunique() >= 1
    launched = launch_configs.beside(tmp_path / (ADD.slug + counters.SUFFIX), ADD, "ncu")
    assert launched["function"].tolist() == tables[ADD]["function"].unique().tolist()


@pytest.mark.skipif(cupti.unavailable() is not None, reason=str(cupti.unavailable()))
def test_cupti(tmp_path):
    cases = [ADD, BACKWARD, Case("matmul", "triton", "forward", "1023x517x769-fp16")]
    done = subprocess.run(script(cupti, cases, tmp_path), capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    add, backward, product = (
        schema.validate(cupti.parse(tmp_path / (case.slug + cupti.SUFFIX), case)) for case in cases
    )
    found = add.set_index("metric")["value"]
    assert found["dram_bytes_read"] == pytest.approx(2 * 4194304 * 4, rel=0.05)
    assert found["l1_bytes"] == pytest.approx(3 * 4194304 * 4, rel=0.05)
    assert 1e-6 < found["gpu_time"] < 1e-3
    assert backward["launch"].nunique() >= 1
    assert product.set_index("metric").loc[["tensor_ops_fp16"], "value"].sum() >= 2 * 1023 * 517 * 769
    launched = launch_configs.beside(tmp_path / (ADD.slug + cupti.SUFFIX), ADD, "cupti")
    assert launched["function"].tolist() == add["function"].unique().tolist()


#: Counts the bytes that a kernel reads from HBM which has the L2 keep them, after a flush.
KEEPING = """
import torch
import triton
import triton.language as tl
from tilescope.collectors.cupti.counters import launched, of_calls

@triton.jit
def keeping_kernel(x_ptr, out_ptr, BLOCK: tl.constexpr):
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out_ptr + tl.program_id(0), tl.sum(tl.load(x_ptr + offsets, eviction_policy="evict_last")))

x, out = torch.randn(2**21, device="cuda"), torch.empty(2**9, device="cuda")
run = lambda: keeping_kernel[(2**9,)](x, out, 2**12)
((launch,),) = (found["launches"] for found in of_calls([run], [launched(run)]))
print(launch["counters"]["dram__bytes_read.sum"] / 2**23)
"""


@pytest.mark.skipif(cupti.unavailable() is not None, reason=str(cupti.unavailable()))
def test_flush_evicts_lines_that_a_kernel_keeps(tmp_path):
    (tmp_path / "keeping.py").write_text(KEEPING)
    done = subprocess.run([sys.executable, tmp_path / "keeping.py"], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert float(done.stdout) == pytest.approx(1, rel=0.01)


@pytest.mark.ncu
@pytest.mark.skipif(counters.unavailable() is not None, reason=str(counters.unavailable()))
@pytest.mark.skipif(cupti.unavailable() is not None, reason=str(cupti.unavailable()))
def test_cupti_counts_what_ncu_counts(tmp_path):
    cases = [
        Case("vector_add", "triton", "forward", "67108864-bf16"),
        Case("softmax", "triton", "forward", "16384x4096-bf16"),
        Case("matmul", "triton", "forward", "4096x4096x4096-bf16"),
    ]
    theirs = by_ncu(cases, tmp_path)
    done = subprocess.run(script(cupti, cases, tmp_path), capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    for case in cases:
        mine = schema.validate(cupti.parse(tmp_path / (case.slug + cupti.SUFFIX), case))
        assert mine["function"].unique().tolist() == theirs[case]["function"].unique().tolist()
        ours, ncus = (table.set_index("metric")["value"] for table in (mine, theirs[case]))
        assert ours["dram_bytes_read"] == pytest.approx(ncus["dram_bytes_read"], rel=0.05)
        assert ours["dram_bytes_written"] == pytest.approx(ncus["dram_bytes_written"], rel=0.1)
        assert ours["l1_bytes"] == pytest.approx(ncus["l1_bytes"], rel=1e-3)
        assert ours["l2_bytes"] == pytest.approx(ncus["l2_bytes"], rel=0.1)
        assert ours["tensor_ops_bf16"] == ncus["tensor_ops_bf16"]
        assert ours["gpu_time"] == pytest.approx(ncus["gpu_time"], rel=0.15)
