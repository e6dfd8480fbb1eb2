"""Cold caches: the flush, and that collectors flush and take inputs in turn."""

import contextlib
import itertools
import json
import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import triton
from tilescope.collectors import events, torch_profiler
from tilescope.execution import cold, execute
from tilescope.table.case import Case
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

CASE = Case("softmax", "triton", "forward", "1823x781-fp32")


@pytest.mark.parametrize("l2", [2**20, 24 * 2**20])
def test_a_flush_reads_all_of_a_buffer_several_times_the_cache(monkeypatch: pytest.MonkeyPatch, l2: int) -> None:
    """It allocates on the CPU for a GPU whose L2 has ``l2`` bytes, and its launch is looked at."""
    for name in ("zeros", "empty"):
        real = getattr(torch, name)
        monkeypatch.setattr(torch, name, lambda *shape, _real=real, device, **more: _real(*shape, **more))
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: SimpleNamespace(L2_cache_size=l2))
    launched: list[tuple[int, Any, int, int]] = []

    class Kernel:
        def __getitem__(self, grid: tuple[int]) -> Any:
            return lambda source, total, count, chunk: launched.append((grid[0], source, count, chunk))

    monkeypatch.setattr(cold, "_read", Kernel())
    flush = cold.Flush()
    flush()
    ((programs, source, count, chunk),) = launched
    assert flush.nbytes >= max(4 * l2, 64 * 2**20)
    assert source is flush.buffer and not source.any(), "the kernel stores something only if one is not zero"
    assert count * 4 == flush.nbytes and (programs - 1) * chunk < count <= programs * chunk


def test_the_reads_of_a_flush_are_wide_and_evicted_last() -> None:
    signature = {"source": "*fp32", "total": "*fp32", "count": "i32"}
    aligned = {(0,): [["tt.divisibility", 16]], (2,): [["tt.divisibility", 16]]}
    source = ASTSource(cold._read, signature, {"CHUNK": 4096}, aligned)
    code = triton.compile(source, target=GPUTarget("cuda", 90, 32)).asm["ptx"]
    loads = re.findall(r"ld\.global\S*", code)
    assert loads and all(".L2::cache_hint.v4." in load for load in loads)
    assert set(re.findall(r"createpolicy\S*", code)) == {"createpolicy.fractional.L2::evict_last.b64"}


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What a collector does, in order, on a machine without a GPU: each flush, each call with its set of inputs."""
    happened: list[str] = []

    def prepare(spec: Any, case: Case, device: str, rotate: int = 1) -> Any:
        turns = iter(range(1000))
        return lambda: happened.append(f"inputs {next(turns) % rotate}")

    class Flush:
        nbytes = 1

        def __call__(self) -> None:
            happened.append("flush")

    class Event:
        def __init__(self, enable_timing: bool) -> None: ...
        def record(self) -> None: ...
        def elapsed_time(self, end: Any) -> float:
            return 1.0

    class Graph:
        held = ""

        def capture_begin(self, pool: object) -> None:
            """What is called from here on is not run: a replay runs it."""
            self.before = len(happened)

        def capture_end(self) -> None:
            (self.held,) = happened[self.before :]
            del happened[self.before :]

        def replay(self) -> None:
            happened.append(f"replay {self.held}")

    monkeypatch.setattr(execute, "prepare", prepare)
    monkeypatch.setattr(cold, "Flush", Flush)
    for name, fake in {
        "Event": Event, "CUDAGraph": Graph, "graph_pool_handle": object, "empty_cache": lambda: None, "stream": lambda stream: contextlib.nullcontext(),
        "Stream": lambda: None, "synchronize": lambda: None,
        "memory_allocated": lambda: 0, "max_memory_allocated": lambda: 0, "reset_peak_memory_stats": lambda: None,
        "memory_snapshot": lambda: [{"segment_pool_id": (0, 0)}],
    }.items():  # fmt: skip
        monkeypatch.setattr(torch.cuda, name, fake)
    return happened


def repetitions(happened: list[str], of: str) -> list[str]:
    """What follows each flush."""
    return [after for before, after in itertools.pairwise(happened) if before == "flush" and of in after]


def test_every_interval_begins_cold_with_the_next_inputs(calls: list[str], tmp_path: Path) -> None:
    events.capture(CASE, None, tmp_path / "a.json", {"repetitions": 7, "warmup": 2})
    replayed = repetitions(calls, "replay")
    for timed in ([one for one in repetitions(calls, "inputs") if one not in replayed], replayed):
        assert len(timed) == 7
        assert all(one != other for one, other in itertools.pairwise(timed))
        assert len(set(timed)) == events.ROTATE > 1
    assert json.loads((tmp_path / "a.json").read_text())["rotate"] == events.ROTATE


def test_the_memory_that_a_cuda_graph_holds_is_not_called_zero(
    calls: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    events.capture(CASE, None, tmp_path / "plain.json", {"repetitions": 2})
    assert json.loads((tmp_path / "plain.json").read_text())["peak_memory"] == 0
    pools = [{"segment_pool_id": (0, 0)}, {"segment_pool_id": (0, 1)}]
    monkeypatch.setattr(torch.cuda, "memory_snapshot", lambda: pools)
    events.capture(CASE, None, tmp_path / "graph.json", {"repetitions": 2})
    found = json.loads((tmp_path / "graph.json").read_text())
    assert "peak_memory" not in found
    assert any("CUDA graph holds" in note for note in found["notes"])


def test_every_profiled_repetition_begins_cold_with_the_next_inputs(
    calls: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Profiler:
        def __enter__(self) -> Any:
            return self

        def __exit__(self, *error: object) -> None: ...
        def export_chrome_trace(self, path: str) -> None:
            Path(path).write_text('{"traceEvents": []}')

    monkeypatch.setattr(torch.profiler, "profile", lambda activities: Profiler())
    torch_profiler.capture(CASE, None, tmp_path / "a.json.gz", {"repetitions": 7, "warmup": 2})
    timed = repetitions(calls, "inputs")
    assert len(timed) == 9, "two of the profiler's own start-up, and seven"
    assert all(one != other for one, other in itertools.pairwise(timed))
    assert len(set(timed)) == torch_profiler.ROTATE > 1
