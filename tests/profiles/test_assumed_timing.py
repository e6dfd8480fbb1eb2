"""Benchmarks without a GPU: what would be timed is called once, its time is NaN, and the code goes on."""

import importlib
import math
import statistics
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import triton
from tilescope import Capture
from tilescope.execution.assumed_device import assumed
from torch._inductor import utils as inductor_utils
from torch.utils import benchmark

from . import unseen_launches as unseen

pytestmark = pytest.mark.usefixtures("no_gpu")
#: Triton's function as a module that was imported earlier has it.
IMPORTED = triton.testing.do_bench


def launch() -> None:
    unseen.copy_kernel[(1,)](torch.ones(16, device="cuda"), torch.empty(16, device="cuda"), BLOCK=16)


def own_loop(fn: Callable[[], None]) -> float:
    """A benchmark as people write it: events, and a count that follows from a first estimate."""
    start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    start.record()
    fn()
    end.record()
    torch.cuda.synchronize()
    once = start.elapsed_time(end) / 1
    times = []
    for _ in range(max(1, int(100 / once)), math.ceil(25 // once) + 2):
        start.record()
        fn()
        end.record()
        times.append(start.elapsed_time(end))
    return statistics.mean(times) - 0.5 * once + round(once) + round(3 % once, 2) - once**2


BENCHMARKS: dict[str, tuple[Callable[[Callable[[], None]], Any], int]] = {
    "do_bench": (lambda fn: triton.testing.do_bench(fn, warmup=1, rep=10), 1),
    "do_bench of a quantile": (lambda fn: triton.testing.do_bench(fn, quantiles=[0.5]), 1),
    "do_bench_cudagraph": (triton.testing.do_bench_cudagraph, 1), "imported do_bench": (IMPORTED, 8),
    "events": (own_loop, 2), "timeit": (lambda fn: benchmark.Timer("fn()", globals={"fn": fn}).timeit(50).median, 1),
    "blocked_autorange": (lambda fn: benchmark.Timer("fn()", globals={"fn": fn}).blocked_autorange().mean, 1),
    "print_performance": (lambda fn: inductor_utils.print_performance(fn, repeat=5), 1),
    "adaptive_autorange": (lambda fn: benchmark.Timer("fn()", globals={"fn": fn}).adaptive_autorange().mean, 1),
}  # fmt: skip


@pytest.mark.parametrize("name", BENCHMARKS)
def test_benchmark_without_gpu_gives_nan_and_goes_on(name: str) -> None:
    bench, calls = BENCHMARKS[name]
    with Capture("sm_90") as capture:
        # The original function runs with its own module's do_bench_cudagraph: ask for the name when it is used.
        bench = triton.testing.do_bench_cudagraph if name == "do_bench_cudagraph" else bench
        time = bench(launch)
        assert math.isnan(time) and f"{3 / time * 1e-6:.0f} GB/s" == "nan GB/s"
    assert (len(capture.records), capture.calls) == (1, calls)
    (said,) = [note for note in capture.notes if "timed" in note]
    assert said.startswith("no GPU is here, so nothing was timed: ") and said.endswith(" returned NaN")


def test_benchmark_keeps_the_form_of_times() -> None:
    with assumed("sm_90") as there:
        times = triton.testing.do_bench(lambda: None, quantiles=[0.5, 0.2, 0.8])
        assert len(times) == 3 and all(map(math.isnan, times))
        (time,) = triton.testing.do_bench(lambda: None, return_mode="all")
        assert math.isnan(time) and math.isnan(max(times)) and str(time) == "nan"
        assert "nan" in str(benchmark.Measurement(1, [time], benchmark.TaskSpec("x", "", "")).mean)
        with pytest.raises(ZeroDivisionError):
            triton.testing.do_bench(lambda: 1 / 0)
    assert list(there.answers.untimed) == ["triton.testing.do_bench"]


def test_report_of_benchmarks_ends_and_keeps_modules_it_imports(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "first_used_in_a_benchmark.py").touch()

    @triton.testing.perf_report(
        triton.testing.Benchmark(["n"], [1, 2], "provider", ["a"], ["A"], plot_name="", args={}, ylabel="GB/s")
    )
    def bench(n: int, provider: str) -> float:
        importlib.import_module("first_used_in_a_benchmark")
        return 8 * n / triton.testing.do_bench(launch)

    with Capture("sm_90"):
        frame = bench.run(print_data=True, show_plots=True, return_df=True)
    assert capsys.readouterr().out.count("NaN") == 2 and list(frame["A (GB/s)"].isna()) == [True, True]
    assert sys.modules.pop("first_used_in_a_benchmark", None)


def graphed(graph: torch.cuda.CUDAGraph) -> None:
    with torch.cuda.graph(graph, pool=torch.cuda.graph_pool_handle()):
        launch()


def begun(graph: torch.cuda.CUDAGraph) -> None:
    graph.capture_begin()
    launch()
    graph.capture_end()


@pytest.mark.parametrize("capturing", [graphed, begun])
def test_graph_launches_when_captured_and_says_so(capturing: Callable[[Any], None]) -> None:
    with Capture("sm_90") as capture:
        graph = torch.cuda.CUDAGraph()
        capturing(graph)
        assert not capture.notes
        for _ in range(3):
            graph.replay()
    assert capture.calls == 1
    assert capture.notes == [
        "no GPU is here, so CUDA graphs launch once, when they are captured: replays change no values"
    ]


def test_graphed_callable_without_gpu_computes() -> None:
    with Capture("sm_90") as capture:
        doubled = torch.cuda.make_graphed_callables(lambda x: x * 2, (torch.ones(2, device="cuda"),))
        assert doubled(torch.ones(2, device="cuda")).tolist() == [2, 2]
    assert len(capture.notes) == 1
