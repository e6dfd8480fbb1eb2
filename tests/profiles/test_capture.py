"""Launches of live code: recorded, written to files, made again. They are interpreted at once, as there is no GPU."""

import dataclasses
import json
import mmap
import threading
import time
from pathlib import Path
from typing import Any

import pytest
import torch
import triton
from tilescope import Capture
from tilescope.captures import recording
from tilescope.collectors import compiler, interpreter
from tilescope.execution import describe, execute, launches
from tilescope.files import bounded_reading
from tilescope.table.case import Case
from triton.compiler.compiler import CompiledKernel
from triton.tools.tensor_descriptor import TensorDescriptor

from . import foreign_launches as foreign

pytestmark = pytest.mark.usefixtures("no_gpu")

FIGURES = ("unique_bytes_read", "unique_bytes_written", "requested_bytes_read", "requested_bytes_written")


def again(reference: str, number: int = 0, on: str = "cpu") -> launches.Launch:
    """The launch that a written record makes."""
    spec = execute.load_spec(reference)
    case = Case(reference, "triton", "forward", spec.workloads[number].id)
    with launches.catch() as caught:
        execute.prepare(spec, case, on)()
    (launch,) = caught
    return launch


def interpreted(reference: str, folder: Path) -> dict[str, float]:
    """What the interpreter counts of a record without knowing what it counted when the launch was made."""
    spec = dataclasses.replace(execute.load_spec(reference), record=lambda workload: {})
    case = Case(reference, "triton", "forward", spec.workloads[0].id)
    interpreter.capture(case, spec, folder / "counted.json.gz", {})
    rows = interpreter.parse(folder / "counted.json.gz", case)
    assert set(rows["launch"]) == {0}
    return rows.set_index("metric")["value"].to_dict()


def compiled(reference: str, folder: Path, target: str = "sm_90") -> dict[str, Any]:
    spec = execute.load_spec(reference)
    case = Case(reference, "triton", "forward", spec.workloads[0].id)
    compiler.capture(case, spec, folder / "compiled.json.gz", {"target": target})
    return bounded_reading.data_of(folder / "compiled.json.gz")


def test_launch_is_recorded_and_made_again(tmp_path):
    table, where = torch.randn(10, 64), torch.tensor([3, 3, 9])
    with Capture() as capture:
        out = foreign.gather(table, where)
    assert torch.equal(out, table[where])
    (record,) = capture.records
    assert record.data["grid"] == [3, 1, 1]
    assert "foreign_launches.py:" in next(iter(record.sites))
    (reference,) = capture.write(tmp_path)
    launch = again(reference)
    assert launch.arguments["columns"] == 64
    assert torch.equal(launch.arguments["where_ptr"], where)  # whole numbers are kept as they are
    counted = interpreted(reference, tmp_path)
    # Two rows are read, for one is read twice.
    assert counted["unique_bytes_read"] == 2 * 64 * 4 + 3 * 8
    assert {name: counted[name] for name in FIGURES} == {name: record.data["counted"][name] for name in FIGURES}
    made = compiled(reference, tmp_path)["launches"][0]
    assert (made["function"], made["file"]) == ("gather_kernel", "foreign_launches.py")


def test_cost_is_distinct_bytes_or_whole_tensors(tmp_path):
    with Capture() as capture:
        foreign.gather(torch.randn(10, 64), torch.tensor([3, 3, 9]))
    (reference,) = capture.write(tmp_path / "counted")
    (cost,) = describe.entry(reference, execute.load_spec(reference))["cost"].values()
    assert (cost["forward"]["bytes_read"], cost["forward"]["bytes_written"]) == (2 * 64 * 4 + 3 * 8, 3 * 64 * 4)
    assert "whole_tensors" not in cost["forward"]
    with Capture(limit=0) as capture:
        foreign.gather(torch.randn(10, 64).cuda(), torch.tensor([3, 3, 9]).cuda())
        foreign.grouped_kernel[(1,)](torch.tensor([1]), torch.tensor([1]), 64)
    assert "was not made" in capture.notes[0] and "test_capture.py" in capture.notes[-1]
    gathered, grouped = capture.write(tmp_path / "uncounted")
    # Without counts the floor is the tensors that the compiled code reads and writes, and the operations are unknown.
    (cost,) = describe.entry(gathered, execute.load_spec(gathered))["cost"].values()
    least = {"bytes_read": 10 * 64 * 4 + 3 * 8, "bytes_written": 3 * 64 * 4}
    assert cost["forward"] == {**least, "pipe": "fp32", "whole_tensors": True}
    # Its addresses come from memory.
    (cost,) = describe.entry(grouped, execute.load_spec(grouped))["cost"].values()
    assert cost == {}


@pytest.mark.parametrize(("target", "rows"), [("sm_90", 128), ("sm_86", 16)])
def test_config_that_does_not_fit_is_passed_over(tmp_path, target, rows):
    x = torch.randn(128, 256)
    with Capture(target) as capture:
        assert torch.equal(foreign.turned(x), 3 * x.T)
    assert capture.records[0].data["config"]["ROWS"] == foreign.turned_kernel.best_config.kwargs["ROWS"] == rows
    (reference,) = capture.write(tmp_path)
    launch = again(reference)
    assert (launch.arguments["ROWS"], launch.arguments["EVEN"], launch.config["ROWS"]) == (rows, True, rows)
    assert launch.kwargs["num_warps"] == capture.records[0].data["config"]["num_warps"]


def test_config_search_that_compiles_too_long_is_ended(monkeypatch):
    monkeypatch.setattr(recording.offline, "fits", lambda launch, target: time.sleep(600))
    monkeypatch.setattr(recording, "FITTING", 0.5)
    x = torch.randn(128, 256)
    with Capture("sm_90") as capture:
        assert torch.equal(foreign.turned(x), 3 * x.T)
    # The first config, which nobody knows not to fit.
    assert capture.records[0].data["config"]["ROWS"] == foreign.turned_kernel.configs[0].kwargs["ROWS"]


def test_launches_are_distinguished_and_calls_counted(tmp_path):
    table = torch.randn(10, 64)
    with Capture() as capture:
        for _ in range(3):
            foreign.gather(table, torch.tensor([1, 2]))
        foreign.gather(table, torch.tensor([1, 3]))
        foreign.gather(table[:, :32].contiguous(), torch.tensor([1, 2]))
    assert [record.calls for record in capture.records] == [3, 1, 1]
    assert capture.launches["calls"].tolist() == [3, 1, 1]
    (reference,) = capture.write(tmp_path)
    spec = execute.load_spec(reference)
    assert [workload.id for workload in spec.workloads] == ["10x64x2-fp32", "10x64x2-fp32-s1", "10x32x2-fp32"]
    assert again(reference, 1).arguments["where_ptr"].tolist() == [1, 3]


def test_shared_memory_is_shared_and_aligned_again(tmp_path):
    whole = torch.arange(100, dtype=torch.float32)
    with Capture() as capture:
        foreign.two_views_kernel[(1,)](whole[1:], whole[33:], 32)
    assert whole[1:33].tolist() == list(range(33, 65))
    (reference,) = capture.write(tmp_path)
    launch = again(reference)
    first, second = (launch.arguments[name] for name in ("a_ptr", "b_ptr"))
    assert second.data_ptr() - first.data_ptr() == 32 * 4
    assert first.data_ptr() % 16 == 4
    on_meta = again(reference, on="meta").arguments
    assert (on_meta["a_ptr"].storage_offset(), on_meta["b_ptr"].storage_offset()) == (1, 33)


def test_workload_is_as_large_as_its_largest_tensor(tmp_path):
    # Sizes of several tensors, as a page table has beside keys and queries, multiply to more than any file holds.
    with Capture(limit=0) as capture:
        foreign.two_views_kernel[(1,)](torch.ones(1).expand(30000, 32001, 16), torch.ones(1).expand(1001, 9048, 128), 1)
        foreign.two_views_kernel[(1,)](torch.ones(64), torch.ones(64, 0), 1)
    (reference,) = capture.write(tmp_path)
    large, other = execute.load_spec(reference).workloads
    assert (large.elements, other.elements) == (30000 * 32001 * 16, 64)


def test_arguments_of_every_kind_come_back(tmp_path):
    with Capture() as capture:
        out = foreign.odd_arguments(torch.tensor([1, 2, 5], dtype=torch.int8))
    assert out.item() == 15
    (reference,) = capture.write(tmp_path)
    launch = again(reference)
    pair = launch.arguments["pair"]
    assert (pair[0].tolist(), pair[0].dtype, pair[1]) == ([1, 2, 5], torch.int8, 2)
    assert launch.arguments["nothing"] is None
    assert interpreted(reference, tmp_path)["unique_bytes_written"] == 4
    assert compiled(reference, tmp_path)["launches"][0]["registers"] > 0


def test_table_of_addresses_points_to_the_new_memory(tmp_path):
    # Debian's Python has small tensors at low addresses; this flag of Linux makes one anywhere.
    low = mmap.mmap(-1, 4096, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | 0x40)
    tensors = [torch.zeros(10), torch.zeros(30), torch.frombuffer(low, dtype=torch.float32, count=50)]
    addresses = torch.tensor([tensor.data_ptr() for tensor in tensors])
    sparse = torch.eye(3).to_sparse()  # has no one memory to look at
    with Capture() as capture:
        foreign.grouped_kernel[(3,)](addresses, torch.tensor([10, 30, 50]), 64)
    assert [tensor.sum() for tensor in tensors] == [10, 30, 50] and sparse.is_sparse
    (reference,) = capture.write(tmp_path)
    given = again(reference).arguments["addresses_ptr"]
    assert not set(given.tolist()) & set(addresses.tolist())
    counted = interpreted(reference, tmp_path)
    assert (counted["unique_bytes_written"], counted["unique_bytes_read"]) == (90 * 4, 90 * 4 + 2 * 3 * 8)


def test_code_shows_what_is_read_and_written(tmp_path):
    counter, out = torch.zeros(1, dtype=torch.int32), torch.zeros(4, dtype=torch.int32)
    with Capture(limit=0) as capture:
        foreign.counting_kernel[(4,)](counter, out)
        given = [TensorDescriptor.from_tensor(torch.randn(32, 64), [16, 64]) for _ in range(2)]
        foreign.described_kernel[(2,)](*given, 16)
        foreign.odd_arguments(torch.ones(4, dtype=torch.int8))
    assert [record.data["touched"] for record in capture.records] == [
        {"read": ["counter_ptr"], "written": ["counter_ptr", "out_ptr"]},
        {"read": ["x"], "written": ["out"]},
        {"read": ["pair"], "written": ["out_ptr"]},
    ]
    reference, *_ = capture.write(tmp_path)
    assert interpreted(reference, tmp_path)["unique_bytes_written"] == 4 + 4 * 4
    # A default that is a name is looked up by the compiler.
    assert compiled(reference, tmp_path)["launches"][0]["registers"] > 0


def test_descriptor_of_the_host_comes_back(tmp_path):
    x, out = torch.randn(32, 64), torch.empty(32, 64)
    given = (TensorDescriptor.from_tensor(tensor, [16, 64]) for tensor in (x, out))
    with Capture() as capture:
        foreign.described_kernel[(2,)](*given, 16)
    assert torch.equal(out, 2 * x)
    (reference,) = capture.write(tmp_path)
    assert interpreted(reference, tmp_path)["unique_bytes_written"] == out.nbytes
    assert compiled(reference, tmp_path)["launches"][0]["registers"] > 0


def test_launch_returns_its_compiled_kernel():
    with Capture("sm_80") as capture:
        x, y = torch.zeros(128).cuda(), torch.ones(128).cuda()
        kernel = foreign.two_views_kernel[(1,)](x, y, 128, num_warps=2)
        assert isinstance(kernel, CompiledKernel)
        assert 0 < kernel.n_regs < 64 and kernel.n_spills == 0 and kernel.n_max_threads >= 64
        assert (kernel.metadata.num_warps, kernel.metadata.shared, kernel.name) == (2, 0, "two_views_kernel")
        assert ".target sm_80" in kernel.asm["ptx"] and kernel.hash
        with pytest.raises(AttributeError, match="of_no_kernel"):
            _ = kernel.of_no_kernel
        kernel[(1, 1, 1)](x, y + 1, 128)
        # A launch of an autotuned kernel returns a handle, too.
        tuned = foreign.tripled_kernel[(8,)](x, y, 128)
        assert tuned.metadata.num_warps == 4 and tuned.n_regs > 0
    assert x[0] == 2
    assert capture.calls == 3


def test_wrapped_kernel_is_launched_eagerly():
    with Capture() as capture:
        x, y = torch.zeros(128).cuda(), torch.ones(128).cuda()
        torch.library.wrap_triton(foreign.two_views_kernel)[(1,)](x, y, 128)
        torch.library.wrap_triton(foreign.tripled_kernel)[(8,)](x, y, 128)
    assert (x[0], y[0]) == (1, 3)
    assert capture.calls == 2 and capture.notes == []


def test_closure_is_recorded_with_its_values(tmp_path):
    x, y = torch.ones(16), torch.ones(16)
    with Capture() as capture:
        foreign.multiplier(5)(x)
        foreign.multiplier(7)(y)
    assert (x[0], y[0]) == (5, 7)
    five, seven = capture.write(tmp_path)
    assert [reference.rpartition(":")[2] for reference in (five, seven)] == ["closed_kernel", "closed_kernel_2"]
    assert again(seven).function.fn.__globals__["times"].value == 7
    assert compiled(five, tmp_path)["launches"][0]["registers"] > 0
    assert not json.loads((Path(five.rpartition(":")[0]).parent / "launches.json").read_text())["functions"][0][
        "missing"
    ]


def test_tensor_that_code_names_is_no_argument(tmp_path, monkeypatch):
    monkeypatch.setattr(foreign, "rsqrt", torch.ones(16))  # bounded_kernel calls it
    with Capture() as capture:
        foreign.bounded_kernel[(1,)](torch.ones(16), BLOCK=16)
    (reference,) = capture.write(tmp_path)
    kept = json.loads((Path(reference.rpartition(":")[0]).parent / "launches.json").read_text())
    assert kept["functions"][0]["missing"] == {"rsqrt": "rsqrt is a Tensor, which cannot be recorded"}
    assert len(kept["launches"][0]["arguments"]["storages"]) == 1


def test_launches_of_backward_operator_and_thread_are_recorded():
    with Capture() as capture:
        x = torch.ones(16, device="cuda", requires_grad=True)
        foreign.Doubled.apply(x).sum().backward()
        assert foreign.tripled(torch.ones(16).cuda())[0] == 3
        thread = threading.Thread(target=foreign.multiplier(4), args=(torch.ones(16).cuda(),))
        thread.start()
        thread.join()
    assert x.grad is not None
    assert x.grad[0] == 2
    assert capture.calls == 4
    assert capture.notes == []


def test_large_floats_are_drawn_unless_they_are_addresses(tmp_path):
    large = torch.randn(1 << 19) * 3 + 5
    places = torch.full((1 << 19,), 7.0)
    with Capture(limit=0) as capture:
        foreign.two_views_kernel[(1,)](large, large, 32)
        foreign.by_float_kernel[(2,)](places, large, torch.empty(64), 32)
    drawn, kept = capture.write(tmp_path)
    values = again(drawn).arguments["a_ptr"]
    assert values.mean().item() == pytest.approx(5, abs=0.05)
    assert values.std().item() == pytest.approx(3, rel=0.02)
    assert not torch.equal(values, large)
    assert torch.equal(again(kept).arguments["where_ptr"], places)


def test_objects_of_defaults_and_loaded_libraries_are_recorded(tmp_path):
    with Capture("sm_90") as capture:
        x = torch.tensor([4.0, 0.0], device="cuda")
        foreign.bounded_kernel[(1,)](x, BLOCK=2)
    assert (x.tolist(), capture.notes) == ([0.5, 65504.0], [])
    found = capture.profile(["compiler", "interpreter"], runs_dir=tmp_path)
    assert not found.failures
    assert {"registers", "unique_bytes_read"} <= set(found.table["metric"])


def test_view_that_is_no_tensor_is_the_memory_behind_it(tmp_path):
    with Capture("sm_90") as capture:
        x, out = torch.arange(16.0, device="cuda"), torch.empty(16, device="cuda")
        foreign.flip_kernel[(1,)](foreign.Backwards(x), out, -1, BLOCK=16)
    assert torch.equal(out, x.flip(0)) and capture.notes == []
    found = capture.profile(["compiler", "interpreter"], runs_dir=tmp_path)
    assert not found.failures
    counted = found.table[found.table["metric"].isin(["unique_bytes_read", "unique_bytes_written"])]
    assert list(counted["value"]) == [64, 64]


@pytest.mark.parametrize("kind", [triton.runtime.Autotuner, triton.KernelInterface])
def test_own_autotuner_without_a_gpu_times_nothing(kind):
    before = foreign.tuned_by_itself(kind)
    x = torch.ones(32)
    with Capture("sm_90") as capture:
        for tuner in (before, foreign.tuned_by_itself(kind)):
            tuner[(1,)](x)
    assert x.tolist() == [4] * 16 + [1] * 16 and capture.calls == 2
    assert dict(capture.records[0].data["config"])["BLOCK"] == 16
    with pytest.raises((RuntimeError, AssertionError)):
        before[(1,)](x)
