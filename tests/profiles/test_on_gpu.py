"""The collectors that need a GPU, on one: forward and backward, fused and not."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest
from tilescope.collectors import events, torch_profiler
from tilescope.collectors.ncu import counters
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
def test_events(case: Case, tmp_path: Path) -> None:
    from tilescope.execution import execute

    out = tmp_path / f"a{events.SUFFIX}"
    events.capture(case, execute.load_spec(case.kernel), out, SETTINGS)
    table = schema.validate(events.parse(out, case))
    counts = table.groupby("metric")["value"].count()
    assert counts["interval"] == counts["graph_time"] == 10
    medians = table.groupby("metric")["value"].median()
    assert 1e-6 < medians["graph_time"] < 1e-2
    assert medians["peak_memory"] >= 4194304 * 4  # the smallest output


@pytest.mark.parametrize("case", [ADD, SOFTMAX, BACKWARD, COMPILED], ids=lambda case: case.id)
def test_torch_profiler(case: Case, tmp_path: Path) -> None:
    from tilescope.execution import execute

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
def test_the_config_that_an_autotuner_chose_is_recorded(collector: ModuleType, tmp_path: Path) -> None:
    from tilescope.execution import execute

    case = Case(f"{Path(__file__).parent / 'small_kernels.py'}:TIMES", "triton", "backward", "5000-fp32")
    spec, out = execute.load_spec(case.kernel), tmp_path / f"a{collector.SUFFIX}"
    collector.capture(case, spec, out, SETTINGS)
    (row,) = launch_configs.beside(out, case, "events").to_dict("records")
    best = spec.implementations["triton"].call.__globals__["scale_kernel"].best_config
    assert row["function"] == "scale_kernel"
    assert row["autotuned"] == f"BLOCK={best.kwargs['BLOCK']},num_warps={best.num_warps},num_stages={best.num_stages}"
    assert "EVEN=False" in row["launched"]


def test_what_kernels_choose_by_themselves_is_recorded(tmp_path: Path) -> None:
    from tilescope.execution import execute

    for case in (BACKWARD, Case("matmul", "triton", "forward", "4096x4096x4096-bf16"), SOFTMAX):
        events.capture(case, execute.load_spec(case.kernel), tmp_path / "a.json", SETTINGS)
        found = launch_configs.beside(tmp_path / "a.json", case, "events")
        assert len(found) > 0 or case is SOFTMAX
        assert found["launched"].str.contains("num_warps=").all()


@pytest.mark.ncu
@pytest.mark.skipif(counters.unavailable() is not None, reason=str(counters.unavailable()))
def test_ncu(tmp_path: Path) -> None:
    cases = [ADD, SOFTMAX, BACKWARD]
    script = tmp_path / "capture.py"
    script.write_text(
        "from pathlib import Path\nfrom tilescope.execution import execute\nfrom tilescope.table.case import Case\n"
        "from tilescope.collectors.ncu import counters as ncu\n"
        f"for data in {[case.to_json() for case in cases]!r}:\n"
        "    case = Case(**data)\n"
        f"    ncu.capture(case, execute.load_spec(case.kernel), Path({str(tmp_path / 'unused')!r}), {{}})\n"
    )
    done = subprocess.run(
        counters.command([sys.executable, str(script)], tmp_path), capture_output=True, text=True, check=False
    )
    log = (tmp_path / counters.LOG).read_text()
    assert done.returncode == 0, counters.explain(log + done.stderr) or done.stderr
    counters.finish(tmp_path, cases)
    tables = {case: schema.validate(counters.parse(tmp_path / (case.slug + counters.SUFFIX), case)) for case in cases}
    add = tables[ADD].set_index("metric")["value"]
    assert add["l2_to_l1_bytes"] == pytest.approx(2 * 4194304 * 4, rel=0.05)
    assert tables[ADD]["launch"].nunique() == 1
    assert tables[SOFTMAX]["launch"].nunique() > 1
    assert tables[BACKWARD]["launch"].nunique() >= 1
    launched = launch_configs.beside(tmp_path / (ADD.slug + counters.SUFFIX), ADD, "ncu")
    assert launched["function"].tolist() == tables[ADD]["function"].unique().tolist()
