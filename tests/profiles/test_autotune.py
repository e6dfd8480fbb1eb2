"""``tilescope.autotune``, which compiles for a GPU that is not here and has made-up times; and other autotuners' configs."""

import pytest
import tilescope
import torch
import triton
import triton.language as tl
from tilescope.captures import recording
from tilescope.captures.recorder import Recorder
from tilescope.execution import launches, offline
from tilescope.tuning import autotuning, compile_jobs, compile_pool, memory, pruning, racing, sweep
from triton import knobs
from triton.runtime.errors import AutotunerError

from .full_disk import fill
from .small_kernels import copy_kernel


@triton.jit
def mm_kernel(a_ptr, b_ptr, c_ptr, K, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr):  # noqa: PLR0917
    m, n, k = tl.arange(0, BM)[:, None], tl.arange(0, BN)[None, :], tl.arange(0, BK)
    total = tl.zeros((BM, BN), tl.float32)
    for start in range(0, K, BK):
        a = tl.load(a_ptr + m * K + start + k[None, :])
        b = tl.load(b_ptr + (start + k[:, None]) * BN + n)
        total = tl.dot(a, b, total)
    tl.store(c_ptr + m * BN + n, total.to(tl.bfloat16))


TIMES = {64: 3e-3, 128: 1e-3, 256: 2e-3}


@pytest.fixture
def timed(monkeypatch, tmp_path):
    """Gives configs of ``copy_kernel`` the times in ``TIMES``; yields the list of timed blocks."""
    seen: list[int] = []

    def samples(tuner, config, count):
        block = config.kwargs["BLOCK"]
        seen.append(block)
        if TIMES[block] is None:
            raise KeyboardInterrupt
        return [TIMES[block]] * count

    monkeypatch.setenv("TILESCOPE_TUNING", str(tmp_path / "tuning.sqlite3"))
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setattr(autotuning, "device", lambda: ("NVIDIA H200", "GPU-1"))
    monkeypatch.setattr(autotuning.Tuner, "_samples", samples)
    monkeypatch.setattr(compile_pool, "host", lambda: None)
    with offline.targeting("sm_90"):
        copy_kernel.device_caches.clear()
        yield seen
    copy_kernel.device_caches.clear()


def tuner(*blocks, warps=4, stages=(3,), **more):
    configs = [triton.Config({"BLOCK": block}, num_warps=warps, num_stages=n) for block in blocks for n in stages]
    return tilescope.autotune(configs, key=["n"], **more)(copy_kernel)


def run(kernel, n=1024, grid=(1,)):
    """The chosen block; nothing is launched."""
    kernel.run(torch.empty(n), torch.empty(n), n, grid=grid, warmup=True)
    return kernel.best_config.kwargs["BLOCK"]


def test_text_of_sorts_parameters():
    one, other = ({"BM": 64, "BN": 32}, {"BN": 32, "BM": 64})
    texts = {autotuning.text_of(triton.Config(kwargs, num_warps=8)) for kwargs in (one, other)}
    assert len(texts) == 1
    assert autotuning.text_of(triton.Config(one, num_warps=4)) not in texts


def test_autotune_fastest_is_remembered_and_new_configs_timed(timed):
    assert run(tuner(64, 256)) == 256
    assert set(timed) == {64, 256}
    timed.clear()
    assert run(tuner(64, 256)) == 256
    assert timed == []
    assert run(tuner(64, 128, 256)) == 128
    assert set(timed) == {128}
    timed.clear()
    assert run(tuner(64, 128, cache_results=False)) == 128
    assert set(timed) == {64, 128}


def test_autotune_without_a_memory_warns_and_chooses(timed, tmp_path):
    path = tmp_path / "tuning.sqlite3"
    path.write_text("no database" * 100)
    with pytest.warns(UserWarning, match=r"cannot remember timings \(file is not a database\): set TILESCOPE_TUNING"):
        assert run(tuner(64, 256)) == 256
    path.unlink()
    fill(path)
    with pytest.warns(UserWarning, match="database or disk is full"):
        assert run(tuner(64, 256)) == 256


def test_autotune_same_launch_is_timed_once(timed):
    """A kernel without a loop has the same code with any number of stages."""
    kernel = tuner(128, stages=(1, 2, 3))
    run(kernel)
    raced, *others = kernel.search.lanes
    assert raced.samples
    assert [(lane.like, lane.samples) for lane in others] == [(raced.config, [])] * 2
    assert others[0].out == f"not timed: the same code, launched alike, as {raced.config}"
    assert len({tuple(times) for times in kernel.configs_timings.values()}) == 1
    first = len(timed)
    run(tuner(128, stages=(1, 2, 3)))
    assert len(timed) == first, "all three are remembered"
    other = next(count for count in (1, 2, 3) if f"num_stages: {count}," not in raced.config)
    run(tuner(128, stages=(other, 9)))
    assert len(timed) > first, "the config that was timed for them is not among these"
    grids = tuner(128, stages=(1, 2))
    run(grids, grid=lambda meta: (meta["num_stages"],))
    assert [lane.like for lane in grids.search.lanes] == ["", ""], "another grid is another launch"


def test_autotune_winners_of_the_command_match_by_launch(timed, tmp_path):
    problem = memory.Problem("copy/triton", "library", "('forward', 1024)", "NVIDIA H200", "", autotuning.versions())
    arguments = {"n": 1024, "x_ptr": "torch.float32", "y_ptr": "torch.float32", "BLOCK": 256, "num_warps": 4}
    launch = {"function": "copy_kernel", "digest": compile_jobs.source_digest(copy_kernel), "arguments": arguments}
    memory.export([memory.Winner(problem, "BLOCK=256", 1e-6, 3, "", [launch])], tmp_path / "winners.json")
    assert run(tuner(64, 128, 256, winners=tmp_path / "winners.json")) == 256
    assert timed == []
    assert run(tuner(64, 128, 256, winners=tmp_path / "winners.json"), n=2048) == 128, "another shape is searched for"


def test_autotune_without_any_time_says_why(timed):
    with pytest.raises(AutotunerError, match="none of 2 configs of copy_kernel could be timed: 2048 threads a block"):
        run(tuner(64, 128, warps=64))


def test_autotune_without_gpu_takes_the_first(timed, monkeypatch):
    monkeypatch.setattr(autotuning, "device", lambda: None)
    assert run(tuner(256, 128)) == 256
    assert timed == []


def test_autotune_launch_is_caught_as_tritons_is():
    x = torch.empty(64, device="meta")
    with launches.catch() as caught:
        tuner(256, 128)[(1,)](x, x, 64)
    assert [launch.config["BLOCK"] for launch in caught] == [256]


def test_autotune_within_a_race_is_refused(timed):
    with sweep.without_autotuners():
        with pytest.raises(racing.ConfigFailed, match="an autotuner chooses for it"):
            run(tuner(64, 128))
        assert run(tuner(256)) == 256
    assert timed == []


def test_autotune_interruption_keeps_what_was_timed(timed, monkeypatch):
    monkeypatch.setitem(TIMES, 64, None)
    with pytest.raises(KeyboardInterrupt):
        run(tuner(64, 128, 256))
    monkeypatch.setitem(TIMES, 64, 3e-3)
    assert list(dict.fromkeys(timed)) == [256, 128, 64], "configs that take longest to compile go first"
    timed.clear()
    assert run(tuner(64, 128, 256)) == 128
    assert set(timed) == {64}


def test_autotune_other_triton_compiles_in_this_process(timed, monkeypatch):
    monkeypatch.setattr(compile_jobs, "_ARGUMENTS", 5)
    assert run(tuner(64, 128, 256)) == 128


def multiply(stages, **blocks):
    a = torch.empty(1, dtype=torch.bfloat16)
    mm_kernel.device_caches.clear()
    return mm_kernel.run(a, a, a, 512, **blocks, num_stages=stages, grid=(1,), warmup=True)


def test_refusing_ends_hopeless_compilations(monkeypatch, tmp_path):
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    with offline.targeting("sm_90"), pruning.refusing():
        with pytest.raises(pruning.Refused, match="shared memory a block, sm_90 has 232448: cannot be launched"):
            multiply(4, BM=256, BN=128, BK=128, num_warps=8)
        with pytest.raises(pruning.Refused, match="256 registers a thread for accumulators, 255 exist: spills"):
            multiply(2, BM=256, BN=128, BK=32, num_warps=4)
        assert multiply(2, BM=64, BN=64, BK=32, num_warps=4).asm["cubin"]
    mm_kernel.device_caches.clear()


def test_refusal_begins_above_the_limits():
    assert pruning.refusal("sm_90", threads=1024, shared_memory=232448, accumulators=255) == ""


def search(prune=lambda configs, args, **more: configs, hook=None):
    """Triton's autotuner after a search with made-up times."""
    configs = [triton.Config({"BLOCK": block}, num_warps=4, pre_hook=hook) for block in (64, 128, 256, 512)]

    def bench(call, quantiles):
        call()
        return [1.0, 1.0, 1.0]

    kernel = triton.autotune(configs, key=["n"], do_bench=bench, prune_configs_by={"early_config_prune": prune})(
        copy_kernel
    )
    run(kernel)
    return kernel


def test_ahead_compiles_all_that_another_autotuner_tries(timed):
    told: list[tuple[list[int], int]] = []
    hits: list[bool] = []

    def searching(tuner, configs, args, keywords):
        done = autotuning.compile_ahead(tuner, configs, args, keywords)
        told.append(([config.kwargs["BLOCK"] for config in configs], done))
        hits.clear()

    with recording.on_gpu(Recorder(), searching), knobs.compilation.scope():
        knobs.compilation.listener = lambda *, cache_hit=False, **_: hits.append(cache_hit)
        kernel = search(prune=lambda configs, args, **more: configs[1:])
        assert told == [([128, 256, 512], 3)], "once a search, for the configs that its pruning leaves"
        assert hits == [True, True, True], "each is in the cache when it is tried"
        assert [config.kwargs["BLOCK"] for config in kernel.configs_timings] == [128, 256, 512]
        run(kernel)
        assert len(told) == 1, "the chosen config is not searched for again"


def test_ahead_leaves_hooks_our_searches_and_errors_alone(timed, monkeypatch):
    done: list[int] = []

    def fail(*about):
        raise OSError("no more processes")

    with recording.on_gpu(Recorder(), lambda *about: done.append(autotuning.compile_ahead(*about))):
        search(hook=lambda args: None)
        monkeypatch.setattr(compile_pool, "Pool", fail)
        assert search().best_config.kwargs["BLOCK"] == 64
    assert done == [0, 0]
    monkeypatch.undo()
    ours, x = tuner(64, 128, 256), torch.empty(8)
    assert autotuning.compile_ahead(ours, ours.configs, (x, x, 8), {"grid": (1,)}) == 0
