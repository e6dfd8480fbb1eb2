"""``make bench-tuning``: its problems can be launched, its foreign kernel is right, and its table says what was measured."""

import sys

import pytest
import tilescope

from benchmarks import chunk_states, forking, tuning, tuning_problems, tuning_table


@pytest.mark.parametrize("name", ["softmax", "layer_norm", "attention", "conv2d", "states"])
def test_each_config_of_a_problem_is_another_one_and_has_a_grid(name):
    problem = tuning_problems.every()[name]("sm_90")
    assert len(problem.configs) >= 18
    assert len({str(sorted(values.items())) for values in problem.configs.values()}) == len(problem.configs)
    for values in problem.configs.values():
        told = {name: value for name, value in values.items() if name != "num_warps"}
        assert all(size > 0 for size in problem.grid(told))


def test_the_foreign_kernel_computes_what_its_reference_does():
    extents = {"batch": 1, "steps": 128, "heads": 2, "channels": 32, "state": 32, "chunk": 64}
    blocks = {"BLOCK_P": 32, "BLOCK_N": 32, "BLOCK_T": 32}
    with tilescope.capture("sm_90") as captured:
        given = chunk_states.arguments(**extents, device="cuda")
        chunk_states.chunk_states_kernel[chunk_states.grid_of(**extents)(blocks)](**given, **blocks)
    assert captured.notes == []
    error = given["s_ptr"] - chunk_states.reference(**given)
    assert error.norm() < 5e-3 * chunk_states.reference(**given).norm()


@pytest.mark.skipif(sys.platform != "linux", reason="trials are forked")
def test_a_fork_answers_with_its_caches_in_place_or_not_at_all(tmp_path, capfd):
    import os

    found = forking.forked(lambda: [os.environ["TRITON_CACHE_DIR"], os.environ["TILESCOPE_TUNING"]], tmp_path)
    assert found == [str(tmp_path / "triton"), str(tmp_path / "tuning.sqlite3")]
    assert forking.forked(lambda: 1 // 0, tmp_path) is None
    assert "ZeroDivisionError" in capfd.readouterr().err


def test_the_table_tells_how_many_winners_were_near_the_best():
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
    cells = [cell.strip() for cell in tuning_table.row("softmax", found).strip("|").split("|")]
    assert cells == [
        "softmax", "3", "3", "10.00 s", "2.00 (1.00 to 4.00) s", "5.0x, 2.5x", "0.20 (0.20 to 0.20) s",
        "0.10%, at most 0.60%; 3/3", "0.50%, at most 100.00%; 2/3", "0.50%", "2.00%",
    ]  # fmt: skip
    assert not tuning_table.good(found)
    found["trials"][1]["cold"]["config"] = "b"
    assert tuning_table.good(found)


def test_timed_near_the_best_take_turns_without_outliers(monkeypatch):
    from types import SimpleNamespace

    asked: list[tuple[str, int]] = []
    times = {"a": 1e-4, "b": 1.02e-4, "c": 2e-4}

    def cold_times(call, count):
        call()
        name, _ = asked[-1] = asked[-1][0], count
        if name == "fails":
            raise RuntimeError("out of resources")
        return [times[name]] * (count - 1) + [9e-4 if len(asked) % 30 == 0 else times[name]]

    monkeypatch.setattr(tuning, "cold_times", cold_times)
    function = {(1,): lambda given, name: asked.append((name, 0))}
    problem = SimpleNamespace(name="p", function=function, grid=lambda values: (1,))
    found = tuning.timed(problem, {"given": 0}, {name: {"name": name} for name in (*times, "fails")})
    assert found == pytest.approx(times)
    taken = {name: [count for other, count in asked if other == name] for name in (*times, "fails")}
    assert len(taken["fails"]) == 1, "what cannot be launched is not tried again"
    assert taken["c"] == [5] * 4
    assert taken["a"] == taken["b"] == [5] * 4 + [1] * 100
    turns = [name for name, count in asked if count == 1]
    assert {*zip(turns[::2], turns[1::2], strict=True)} == {("a", "b"), ("b", "a")}, "in random order"
