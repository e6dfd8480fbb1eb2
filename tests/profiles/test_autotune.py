"""``tilescope.autotune``, which compiles for a GPU that is not here and has made-up times."""

import pytest
import tilescope
import torch
import triton
import triton.language as tl
from tilescope.execution import launches, offline
from tilescope.tuning import autotuning, compile_jobs, compile_pool, early_resources, memory, pruning, racing, sweep
from triton.runtime.errors import AutotunerError


@triton.jit
def copy_kernel(x_ptr, y_ptr, n, BLOCK: tl.constexpr):
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(y_ptr + offsets, tl.load(x_ptr + offsets, mask=offsets < n), mask=offsets < n)


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
        seen.append(config.kwargs["BLOCK"])
        return [TIMES[config.kwargs["BLOCK"]]] * count

    monkeypatch.setenv("TILESCOPE_TUNING", str(tmp_path / "tuning.sqlite3"))
    monkeypatch.setattr(autotuning, "can_time", lambda: True)
    monkeypatch.setattr(autotuning, "device", lambda: ("NVIDIA H200", "GPU-1"))
    monkeypatch.setattr(autotuning.Tuner, "_samples", samples)
    monkeypatch.setattr(compile_pool, "host", lambda: None)
    with offline.targeting("sm_90"):
        copy_kernel.device_caches.clear()
        yield seen
    copy_kernel.device_caches.clear()


def tuner(*blocks: int, **more) -> autotuning.Tuner:
    configs = [triton.Config({"BLOCK": block}, num_warps=4) for block in blocks]
    return tilescope.autotune(configs, key=["n"], **more)(copy_kernel)


def run(kernel: autotuning.Tuner, n: int = 1024) -> int:
    """The chosen block; nothing is launched."""
    x = torch.empty(n, device="meta")
    kernel.run(offline._AlignedTensor(x), offline._AlignedTensor(x), n, grid=(1,), warmup=True)
    return kernel.best_config.kwargs["BLOCK"]


def test_a_config_is_the_same_in_whatever_order_its_parameters_were_written():
    one, other = ({"BM": 64, "BN": 32}, {"BN": 32, "BM": 64})
    texts = {autotuning.text_of(triton.Config(kwargs, num_warps=8)) for kwargs in (one, other)}
    assert len(texts) == 1
    assert autotuning.text_of(triton.Config(one, num_warps=4)) not in texts


def test_the_quickest_is_chosen_and_remembered_by_another_tuner(timed):
    assert run(tuner(64, 128, 256)) == 128
    assert set(timed) == {64, 128, 256}
    timed.clear()
    assert run(tuner(64, 128, 256)) == 128
    assert timed == []


def test_a_changed_list_times_only_what_is_new(timed):
    assert run(tuner(64, 256)) == 256
    timed.clear()
    assert run(tuner(64, 128, 256)) == 128
    assert set(timed) == {128}


def staged(*stages: int) -> autotuning.Tuner:
    """Configs with the same code: a kernel without a loop is the same with any number of stages."""
    configs = [triton.Config({"BLOCK": 128}, num_warps=4, num_stages=count) for count in stages]
    return tilescope.autotune(configs, key=["n"])(copy_kernel)


def test_configs_of_the_same_code_are_timed_once_and_say_whose_time_is_theirs(timed):
    kernel = staged(1, 2, 3)
    run(kernel)
    raced, *others = kernel.search.lanes
    assert raced.samples
    assert [(lane.like, lane.samples) for lane in others] == [(raced.config, [])] * 2
    assert others[0].out == f"not timed: the same code, launched alike, as {raced.config}"
    assert len({tuple(times) for times in kernel.configs_timings.values()}) == 1
    first = len(timed)
    run(staged(1, 2, 3))
    assert len(timed) == first, "all three are remembered"
    other = next(count for count in (1, 2, 3) if f"num_stages: {count}," not in raced.config)
    run(staged(other, 9))
    assert len(timed) > first, "what stood for it is not among these"


def test_the_same_code_on_another_grid_is_another_launch(timed):
    kernel = staged(1, 2)
    x = offline._AlignedTensor(torch.empty(1024, device="meta"))
    kernel.run(x, x, 1024, grid=lambda meta: (meta["num_stages"],), warmup=True)
    assert [lane.like for lane in kernel.search.lanes] == ["", ""]


def test_another_shape_is_another_problem_and_its_neighbour_s_winner_goes_first(timed):
    run(tuner(64, 128, 256))
    timed.clear()
    run(tuner(64, 128, 256), n=2048)
    assert timed[0] == 128


def test_without_memory_each_tuner_searches(timed):
    run(tuner(64, 128, cache_results=False))
    timed.clear()
    assert run(tuner(64, 128, cache_results=False)) == 128
    assert set(timed) == {64, 128}


def test_exported_winners_count_before_any_timing(timed, monkeypatch, tmp_path):
    run(tuner(64, 256))
    memory.export(memory.Memory().winners(), tmp_path / "winners.json")
    timed.clear()
    monkeypatch.setenv("TILESCOPE_TUNING", str(tmp_path / "empty.sqlite3"))
    monkeypatch.setenv("TILESCOPE_WINNERS", str(tmp_path / "winners.json"))
    assert run(tuner(64, 128, 256)) == 256
    assert timed == []


def test_winners_that_tilescope_tune_wrote_are_taken_by_the_launch_they_make(timed, tmp_path):
    name, _ = autotuning.device()
    problem = memory.Problem("copy/triton", "library", "('forward', 1024)", name, "", autotuning.versions())
    arguments = {"n": 1024, "x_ptr": "torch.float32", "y_ptr": "torch.float32", "BLOCK": 256, "num_warps": 4}
    launch = {"function": "copy_kernel", "digest": compile_jobs.source_digest(copy_kernel), "arguments": arguments}
    memory.export([memory.Winner(problem, "BLOCK=256", 1e-6, 3, "", [launch])], tmp_path / "winners.json")
    assert run(tuner(64, 128, 256, winners=tmp_path / "winners.json")) == 256
    assert timed == []
    assert run(tuner(64, 128, 256, winners=tmp_path / "winners.json"), n=2048) == 128, "another shape is searched for"


def test_where_no_config_can_be_timed_the_reasons_are_said(timed, monkeypatch):
    monkeypatch.setattr(pruning, "refusal", lambda target, **needs: "too large")
    with pytest.raises(AutotunerError, match="none of 2 configs of copy_kernel could be timed: too large"):
        run(tuner(64, 128))


def test_without_a_gpu_the_first_config_is_taken(timed, monkeypatch):
    monkeypatch.setattr(autotuning, "can_time", lambda: False)
    assert run(tuner(256, 128)) == 256
    assert timed == []


def test_a_launch_is_caught_as_triton_s_autotuner_s_is():
    x = torch.empty(64, device="meta")
    with launches.catch() as caught:
        tuner(256, 128)[(1,)](x, x, 64)
    assert [launch.config["BLOCK"] for launch in caught] == [256]


def test_hooks_and_resets_are_triton_s(timed):
    kernel = tuner(64, 128, reset_to_zero=["y_ptr"], restore_value=["x_ptr"])
    assert (kernel.reset_to_zero, kernel.restore_value) == (["y_ptr"], ["x_ptr"])


def launch(**constants) -> launches.Launch:
    a = torch.empty(256 * 512, dtype=torch.bfloat16, device="meta")
    with launches.catch() as caught:
        mm_kernel[(1,)](a, a, a, 512, **constants)
    return caught[0]


@pytest.mark.parametrize("stages", [2, 4])
def test_shared_memory_and_threads_are_known_before_llvm_as_after_it(stages, monkeypatch, tmp_path):
    known: list[dict[str, int]] = []
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    monkeypatch.setattr(pruning, "refusal", lambda target, **needs: known.append(needs))
    with offline.targeting("sm_90"), early_resources.refusing():
        kernel = offline.compile_launch(launch(BM=128, BN=128, BK=64, num_warps=8, num_stages=stages))
    assert known == [{"threads": 256, "shared_memory": kernel.metadata.shared, "accumulators": 64, "held": 0}]


def test_a_hopeless_config_is_refused_with_its_reason_and_others_compile(monkeypatch):
    a = offline._AlignedTensor(torch.empty(1, dtype=torch.bfloat16, device="meta"))
    with offline.targeting("sm_90"), early_resources.refusing():
        mm_kernel.device_caches.clear()
        with pytest.raises(
            early_resources.Refused, match="shared memory a block, sm_90 has 232448: cannot be launched"
        ):
            mm_kernel.run(a, a, a, 512, BM=256, BN=256, BK=64, num_warps=8, num_stages=5, grid=(1,), warmup=True)
        with pytest.raises(early_resources.Refused, match="256 registers a thread for accumulators"):
            mm_kernel.run(a, a, a, 512, BM=256, BN=128, BK=32, num_warps=4, num_stages=2, grid=(1,), warmup=True)
        kernel = mm_kernel.run(a, a, a, 512, BM=64, BN=64, BK=32, num_warps=4, num_stages=2, grid=(1,), warmup=True)
    mm_kernel.device_caches.clear()
    assert kernel.asm["cubin"]


def test_reasons():
    fine = {"threads": 128, "shared_memory": 1024, "accumulators": 128}
    assert pruning.refusal("sm_90", **fine) == ""
    assert (
        pruning.refusal("sm_90", **{**fine, "threads": 2048})
        == "2048 threads a block, sm_90 has 1024: cannot be launched"
    )
    assert pruning.refusal("sm_90", **{**fine, "shared_memory": None}) == ""


def test_a_choice_that_is_an_autotuner_s_is_not_searched_for_within_a_race(timed):
    with sweep.without_autotuners():
        with pytest.raises(racing.ConfigFailed, match="an autotuner chooses for it"):
            run(tuner(64, 128))
        run_one = tuner(256)
        x = offline._AlignedTensor(torch.empty(64, device="meta"))
        run_one.run(x, x, 64, grid=(1,), warmup=True)
    assert timed == []


def test_what_was_timed_before_an_interruption_is_known(timed, monkeypatch):
    samples = autotuning.Tuner._samples

    def interrupted(one, config, count):
        if config.kwargs["BLOCK"] == 64:
            raise KeyboardInterrupt
        return samples(one, config, count)

    monkeypatch.setattr(autotuning.Tuner, "_samples", interrupted)
    with pytest.raises(KeyboardInterrupt):
        run(tuner(64, 128, 256))
    monkeypatch.setattr(autotuning.Tuner, "_samples", samples)
    timed.clear()
    assert run(tuner(64, 128, 256)) == 128
    assert 64 in timed
    assert timed[0] == 64, "what takes longest to compile goes first, so that those were timed before"


def test_where_triton_compiles_by_other_arguments_a_search_compiles_here(timed, monkeypatch):
    monkeypatch.setattr(compile_jobs, "_ARGUMENTS", 5)
    assert run(tuner(64, 128, 256)) == 128
