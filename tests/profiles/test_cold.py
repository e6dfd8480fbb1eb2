"""Cold caches: the flush, and that collectors flush and take inputs in turn."""

import contextlib
import itertools
import json
import re
from pathlib import Path

import pytest
import torch
import triton
from tilescope.collectors import events, torch_profiler
from tilescope.execution import assumed_device, cold, execute, launches
from tilescope.table.case import Case
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

CASE = Case("softmax", "triton", "forward", "1823x781-fp32")


@pytest.mark.skipif(torch.cuda.is_available(), reason="a GPU is here, which would be flushed")
@pytest.mark.parametrize(("target", "l2"), [("sm_86", 6 * 2**20), ("sm_90", 60 * 2**20)])
def test_flush_reads_a_buffer_several_times_the_cache(target, l2):
    with assumed_device.assumed(target), launches.catch() as caught:
        flush = cold.Flush()
        flush()
    given, programs = caught[0].arguments, caught[0].grid[0]
    assert flush.nbytes >= max(4 * l2, 64 * 2**20)
    assert given["source"] is flush.buffer and not given["source"].any(), "the kernel stores a sum that is not zero"
    assert given["count"] * 4 == flush.nbytes
    assert (programs - 1) * given["CHUNK"] < given["count"] <= programs * given["CHUNK"]


def test_flush_reads_are_wide_and_evicted_last():
    signature = {"source": "*fp32", "total": "*fp32", "count": "i32"}
    aligned = {(0,): [["tt.divisibility", 16]], (2,): [["tt.divisibility", 16]]}
    source = ASTSource(cold.read_zeros, signature, {"CHUNK": 4096}, aligned)
    code = triton.compile(source, target=GPUTarget("cuda", 90, 32)).asm["ptx"]
    loads = re.findall(r"ld\.global\S*", code)
    assert loads and all(".L2::cache_hint.v4." in load for load in loads)
    assert set(re.findall(r"createpolicy\S*", code)) == {"createpolicy.fractional.L2::evict_last.b64"}


@pytest.fixture
def calls(monkeypatch, cuda):
    """What a collector does, in order, on a machine without a GPU: each flush, each call with its set of inputs."""
    happened: list[str] = []

    def prepare(spec, case, device, rotate=1):
        turns = iter(range(1000))
        return lambda: happened.append(f"inputs {next(turns) % rotate}")

    class Flush(cold.Flush):
        nbytes = 1

        def __init__(self, rest):
            self.rest = rest

        def __call__(self):
            happened.append("flush")

    class Event:
        def __init__(self, enable_timing): ...
        def record(self): ...
        def elapsed_time(self, end):
            return 1.0

    class Graph:
        held = ""

        def capture_begin(self, pool):
            """What is called from here on is not run: a replay runs it."""
            self.before = len(happened)

        def capture_end(self):
            (self.held,) = happened[self.before :]
            del happened[self.before :]

        def replay(self):
            happened.append(f"replay {self.held}")

    monkeypatch.setattr(execute, "prepare", prepare)
    monkeypatch.setattr(cold, "Flush", Flush)
    cuda({
        "Event": Event, "CUDAGraph": Graph, "graph_pool_handle": object, "empty_cache": lambda: None, "stream": lambda stream: contextlib.nullcontext(),
        "Stream": lambda: None, "synchronize": lambda: None,
        "memory_allocated": lambda: 0, "max_memory_allocated": lambda: 0, "reset_peak_memory_stats": lambda: None,
        "memory_snapshot": lambda: [{"segment_pool_id": (0, 0)}],
    })  # fmt: skip
    return happened


def repetitions(happened, of):
    """What follows each flush."""
    return [after for before, after in itertools.pairwise(happened) if before == "flush" and of in after]


def test_events_begin_cold_with_the_next_inputs(calls, tmp_path):
    events.capture(CASE, None, tmp_path / "a.json", {"repetitions": 7, "warmup": 2})
    replayed = repetitions(calls, "replay")
    for timed in ([one for one in repetitions(calls, "inputs") if one not in replayed], replayed):
        assert len(timed) == 7
        assert all(one != other for one, other in itertools.pairwise(timed))
        assert len(set(timed)) == events.ROTATE > 1
    assert json.loads((tmp_path / "a.json").read_text())["rotate"] == events.ROTATE


@pytest.mark.parametrize(("seconds", "count"), [(1e-4, 50), (6e-4, 50), (1e-3, 33), (2e-3, 20), (1.0, 20)])
def test_long_call_is_repeated_less_often(calls, tmp_path, cuda, seconds, count):
    cuda({"Event.elapsed_time": lambda self, end: 1e3 * seconds})
    events.capture(CASE, None, tmp_path / "a.json", {})
    told = json.loads((tmp_path / "a.json").read_text())
    assert told["repetitions"] == len(told["interval"]) == len(told["graph_time"]) == count


def test_peak_memory_of_a_cuda_graph_is_absent(calls, tmp_path, cuda):
    events.capture(CASE, None, tmp_path / "plain.json", {"repetitions": 2})
    assert json.loads((tmp_path / "plain.json").read_text())["peak_memory"] == 0
    pools = [{"segment_pool_id": (0, 0)}, {"segment_pool_id": (0, 1)}]
    cuda({"memory_snapshot": lambda: pools})
    events.capture(CASE, None, tmp_path / "graph.json", {"repetitions": 2})
    found = json.loads((tmp_path / "graph.json").read_text())
    assert "peak_memory" not in found
    assert any("CUDA graph holds" in note for note in found["notes"])


def test_torch_profiler_begins_cold_with_the_next_inputs(calls, tmp_path, monkeypatch):
    class Profiler:
        def __enter__(self):
            return self

        def __exit__(self, *error): ...
        def export_chrome_trace(self, path):
            Path(path).write_text('{"traceEvents": []}')

    monkeypatch.setattr(torch.autograd.profiler, "profile", lambda **settings: Profiler())
    torch_profiler.capture(CASE, None, tmp_path / "a.json.gz", {"repetitions": 7, "warmup": 2})
    timed = repetitions(calls, "inputs")
    assert len(timed) == 9, "two of the profiler's own start-up, and seven"
    assert all(one != other for one, other in itertools.pairwise(timed))
    assert len(set(timed)) == torch_profiler.ROTATE > 1
