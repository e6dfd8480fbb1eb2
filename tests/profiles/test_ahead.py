"""Another autotuner's configs are compiled in parallel before it tries them, and it still times and chooses by itself."""

import pytest
import torch
import triton
import triton.language as tl
from tilescope.captures import recording
from tilescope.captures.recorder import Recorder
from tilescope.execution import offline
from tilescope.tuning import ahead, autotuning, compile_pool
from triton import knobs


@triton.jit
def added_kernel(x_ptr, y_ptr, n, BLOCK: tl.constexpr):
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(y_ptr + offsets, tl.load(x_ptr + offsets, mask=offsets < n) + 1, mask=offsets < n)


BLOCKS = (64, 128, 256, 512)


@pytest.fixture(autouse=True)
def fresh(monkeypatch, tmp_path):
    """Gives each test a cache of its own, a GPU that is not here, and no host."""
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setattr(compile_pool, "host", lambda: None)
    added_kernel.device_caches.clear()
    with offline.targeting("sm_90"):
        yield
    added_kernel.device_caches.clear()


def search(make=triton.autotune, prune=lambda configs, args, **more: configs, hook=None):
    """The tuner after a search for the best block with made-up times."""
    configs = [triton.Config({"BLOCK": block}, num_warps=4, pre_hook=hook) for block in BLOCKS]

    def bench(call, quantiles):
        call()
        return [1.0, 1.0, 1.0]

    tuner = make(configs, key=["n"], do_bench=bench, prune_configs_by={"early_config_prune": prune})(added_kernel)
    x = offline._AlignedTensor(torch.empty(1024, device="meta"))
    tuner.run(x, x, 1024, grid=(1,), warmup=True)
    return tuner


@pytest.fixture
def hits(monkeypatch):
    """The list of whether each compilation was found in Triton's cache."""
    found: list[bool] = []
    monkeypatch.setattr(knobs.compilation, "listener", lambda *, cache_hit=False, **_: found.append(cache_hit))
    return found


def test_what_is_tried_has_been_compiled_before_and_all_of_it_is_tried(hits):
    told: list[tuple[list[int], int]] = []

    def searching(tuner, configs, args, keywords):
        done = ahead.compile_ahead(tuner, configs, args, keywords)
        told.append(([config.kwargs["BLOCK"] for config in configs], done))
        hits.clear()

    with recording.on_gpu(Recorder(), searching):
        tuner = search(prune=lambda configs, args, **more: configs[1:])
        assert told == [([128, 256, 512], 3)], "once a search, of what its pruning leaves"
        assert hits == [True, True, True], "and each is in the cache when it is tried"
        assert [config.kwargs["BLOCK"] for config in tuner.configs_timings] == [128, 256, 512]
        x = offline._AlignedTensor(torch.empty(1024, device="meta"))
        tuner.run(x, x, 1024, grid=(1,), warmup=True)
        assert len(told) == 1, "what is chosen is not searched for again"


def test_hooks_and_our_own_searches_are_let_alone(monkeypatch, tmp_path):
    monkeypatch.setenv("TILESCOPE_TUNING", str(tmp_path / "tuning.sqlite3"))
    monkeypatch.setattr(autotuning, "can_time", lambda: True)
    monkeypatch.setattr(autotuning, "device", lambda: ("NVIDIA H200", "GPU-1"))
    done: list[int] = []
    with recording.on_gpu(Recorder(), lambda *about: done.append(ahead.compile_ahead(*about))):
        search(hook=lambda args: None)
        search(autotuning.autotune)
    assert set(done) == {0}


def test_what_cannot_be_compiled_ahead_is_left_to_the_search(monkeypatch):
    def fail(*about):
        raise OSError("no more processes")

    done: list[int] = []
    monkeypatch.setattr(compile_pool, "Pool", fail)
    with recording.on_gpu(Recorder(), lambda *about: done.append(ahead.compile_ahead(*about))):
        assert search().best_config.kwargs["BLOCK"] in BLOCKS
    assert done == [0]
