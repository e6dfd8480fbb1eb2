"""``make bench-tuning``: its problems can be launched, its foreign kernel is right, and its table says what was measured."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import tilescope

from benchmarks import chunk_states, tuning, tuning_problems


@pytest.mark.parametrize("name", ["softmax", "layer_norm", "attention", "conv2d", "states"])
def test_each_config_of_a_problem_is_another_one_and_has_a_grid(name: str) -> None:
    problem = tuning_problems.every()[name]("sm_90")
    assert len(problem.configs) >= 18
    assert len({str(sorted(values.items())) for values in problem.configs.values()}) == len(problem.configs)
    for values in problem.configs.values():
        told = {name: value for name, value in values.items() if name != "num_warps"}
        assert all(size > 0 for size in problem.grid(told))


def test_the_foreign_kernel_computes_what_its_reference_does() -> None:
    extents = {"batch": 1, "steps": 128, "heads": 2, "channels": 32, "state": 32, "chunk": 64}
    given = chunk_states.arguments(**extents, device="cpu")
    blocks = {"BLOCK_P": 32, "BLOCK_N": 32, "BLOCK_T": 32}
    with tilescope.capture("sm_90") as captured:
        chunk_states.chunk_states_kernel[chunk_states.grid_of(**extents)(blocks)](**given, **blocks)
    assert captured.notes == []
    error = given["s_ptr"] - chunk_states.reference(**given)
    assert error.norm() < 5e-3 * chunk_states.reference(**given).norm()


@pytest.mark.skipif(sys.platform != "linux", reason="trials are forked")
def test_a_fork_answers_with_its_caches_in_place_or_not_at_all(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    import os

    found = tuning.forked(lambda: [os.environ["TRITON_CACHE_DIR"], os.environ["TILESCOPE_TUNING"]], tmp_path)
    assert found == [str(tmp_path / "triton"), str(tmp_path / "tuning.sqlite3")]
    assert tuning.forked(lambda: 1 // 0, tmp_path) is None
    assert "ZeroDivisionError" in capfd.readouterr().err


def test_the_table_tells_how_many_winners_were_near_the_best() -> None:
    truth = {"a": 1e-3, "b": 1.005e-3, "c": 2e-3}
    found = {
        "triton": {"seconds": 10.0, "config": "b"},
        "processes": [truth, {**truth, "b": 1.0251e-3}],
        "exhaustive": truth,
        "trials": [
            {
                "cold": {
                    "seconds": seconds,
                    "config": config,
                    "configs": 3,
                    "timed": 3,
                    "here": {**truth, "c": 0.999e-3},
                },
                "warm": {"seconds": 0.2},
            }
            for seconds, config in ((2.0, "a"), (1.0, "c"), (4.0, "b"))
        ],
    }
    cells = [cell.strip() for cell in tuning.row("softmax", found).strip("|").split("|")]
    assert cells == [
        "softmax", "3", "3", "10.00 s", "2.00 (1.00 to 4.00) s", "5.0x, 2.5x", "0.20 (0.20 to 0.20) s",
        "0.10%, at most 0.60%; 3/3", "0.50%, at most 100.00%; 2/3", "0.50%", "2.00%",
    ]  # fmt: skip
    assert not tuning._good(found)
    found["trials"][1]["cold"]["config"] = "b"
    assert tuning._good(found)


def test_those_near_the_best_are_timed_again_and_outliers_do_not_count(monkeypatch: pytest.MonkeyPatch) -> None:
    from types import SimpleNamespace

    asked: list[str] = []

    def cold_times(call: Callable[[], None], count: int) -> list[float]:
        call()
        if asked[-1] == "fails":
            raise RuntimeError("out of resources")
        return [{"a": 1.0, "b": 1.02, "c": 2.0}[asked[-1]]] * (count - 1) + [9.0 if len(asked) == 1 else 1.01]

    monkeypatch.setattr(tuning, "cold_times", cold_times)
    function = {(1,): lambda given, name: asked.append(name)}
    problem = SimpleNamespace(name="p", function=function, grid=lambda values: (1,))
    configs = {name: {"name": name} for name in ("a", "b", "c", "fails")}
    found = tuning.timed(problem, {"given": 0}, configs)
    assert set(found) == {"a", "b", "c"}
    assert asked.count("fails") == 1, "what cannot be launched is not tried again"
    assert asked.count("a") == asked.count("b") == tuning._PASSES + tuning._AGAIN
    assert asked.count("c") == tuning._PASSES
    assert found["a"] == pytest.approx(1.0, rel=0.01) and found["c"] == pytest.approx(1.9, rel=0.06)
    first = [name for name in asked if name != "fails"]
    assert first[:6] == ["c", "b", "a", "a", "b", "c"], "there and back"
