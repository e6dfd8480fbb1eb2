"""Launches that a GPU makes are captured while it makes them, and timed from their records."""

import pytest
import tilescope
import torch
import triton
from tilescope.execution import execute
from tilescope.table.case import Case
from triton import knobs

from . import foreign_launches as foreign

pytestmark = [
    pytest.mark.gpu,
    # PyTorch's own, of what Inductor imports.
    pytest.mark.filterwarnings("ignore:.torch.jit.script:DeprecationWarning"),
]


def test_tuned_launch_is_recorded_once_with_its_config():
    x = torch.randn(128, 256, device="cuda")
    with tilescope.capture() as capture:
        for _ in range(2):
            assert torch.equal(foreign.turned(x), 3 * x.T)
    (record,) = capture.records
    assert record.calls == 2  # trials are not the person's launches
    assert record.data["config"]["ROWS"] in (16, 128)
    assert record.data["touched"] == {"read": ["x_ptr"], "written": ["out_ptr"]}


def test_autotuner_finds_its_configs_compiled(monkeypatch, tmp_path):
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    hits: list[bool] = []
    x, y = torch.randn(4096, device="cuda"), torch.empty(4096, device="cuda")
    with knobs.compilation.scope(), tilescope.capture() as capture:
        knobs.compilation.listener = lambda *, cache_hit=False, **_: hits.append(cache_hit)
        foreign.tripled_kernel[lambda given: (triton.cdiv(4096, given["BLOCK"]),)](x, y, 4096)
    assert torch.equal(y, 3 * x)
    assert hits[-4:] == [True] * 4 and not all(hits)
    (record,) = capture.records
    assert record.calls == 1 and record.data["config"]["BLOCK"] in (128, 256, 512, 1024)


def test_backward_pass_is_recorded():
    x = torch.ones(16, requires_grad=True, device="cuda")
    with tilescope.capture() as capture:
        foreign.Doubled.apply(x).sum().backward()
    assert capture.calls == 2


def test_generated_kernel_is_recorded():
    with tilescope.capture() as capture:
        torch.compile(lambda x: torch.tanh(x).relu() + 1)(torch.randn(1000, device="cuda"))
    record = capture.records[-1]
    assert record.function.__name__.startswith("triton_")
    assert all(record.data["touched"][way] for way in ("read", "written")), "its floor is not known without"


def test_live_call_is_timed_and_counted(tmp_path):
    table, where = torch.randn(1000, 64, device="cuda"), torch.randint(0, 1000, (500,), device="cuda")
    run = tilescope.profile(foreign.gather, table, where, reference=lambda t, w: t[w], runs_dir=tmp_path)
    assert run.failures == ()
    metrics = set(run.table["metric"])
    assert {"interval", "gpu_time", "registers", "unique_bytes_read"} <= metrics
    assert any(note.startswith("check: right") for note in run.run.notes)


def test_counter_is_restored_before_each_launch(tmp_path):
    counter, out = torch.zeros(1, dtype=torch.int32, device="cuda"), torch.zeros(4, dtype=torch.int32, device="cuda")
    with tilescope.capture() as capture:
        foreign.counting_kernel[(4,)](counter, out)
    (reference,) = capture.write(tmp_path)
    spec = execute.load_spec(reference)
    run = execute.prepare(spec, Case(reference, "triton", "forward", spec.workloads[0].id), "cuda")
    for _ in range(3):
        first, second = run()
        assert (first.item(), sorted(second.tolist())) == (4, [0, 1, 2, 3])
