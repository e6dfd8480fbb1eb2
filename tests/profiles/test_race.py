"""``tilescope tune``: configs are compiled for a GPU that is not here, and raced with made-up times."""

import asyncio
import dataclasses
import json
from types import SimpleNamespace

import pytest
from tilescope import cli
from tilescope.jobs import supervisor, tuning
from tilescope.models import sweeps
from tilescope.runs import store
from tilescope.table.case import Case
from tilescope.tuning import memory, race, racing, search

from . import made_up
from .fake_jobs import KIT, tune_with
from .full_disk import fill

FIXTURES = KIT.parent

OWN = f"{KIT / 'tunable.py'}:SPEC"
TIMES = {"": 3e-6, "BLOCK=64,num_warps=64": 9e-6, "BLOCK=256,num_warps=4": 2e-6, "BLOCK=512,num_warps=4": 4e-6}


@pytest.fixture
def events():
    """The events of the jobs that ``raced`` ran."""
    return []


@pytest.fixture
def raced(torch_and_catalog, monkeypatch, tmp_path, events):
    """Tunes with the fake GPU; a call runs the job and returns its run and the configs that were timed."""
    monkeypatch.setenv("TILESCOPE_RUNS", str(tmp_path / "runs"))
    monkeypatch.setenv("TILESCOPE_TUNING", str(tmp_path / "tuning.sqlite3"))
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setenv("FAKES_LOG", str(tmp_path / "log"))
    monkeypatch.setenv("COLUMNS", "200")
    made_up.machine(monkeypatch)
    tune_with(monkeypatch, "fakes.raced")

    def go(times=TIMES, **more):
        monkeypatch.setenv("FAKES_TIMES", json.dumps(times))
        log = tmp_path / "log"
        log.unlink(missing_ok=True)
        job, _ = asyncio.run(tuning.plan_tuning([OWN], **more))
        loaded = store.open_run(asyncio.run(supervisor.run(job, events.append)))
        return loaded, log.read_text().splitlines() if log.exists() else []

    return go


def rows(loaded, metric):
    found = loaded.table[loaded.table["metric"] == metric]
    return found.groupby("config")["value"].median().to_dict()


def test_tune_run_has_every_config_and_remembers_times(raced, events, tmp_path, capsys):
    loaded, timed = raced()
    assert {0, 1, 2, 3} <= {event["index"] for event in events if event["event"] == "case"}, (
        "counts configs as they race"
    )
    assert loaded.run.complete
    assert set(timed) == {"", "BLOCK=256,num_warps=4", "BLOCK=512,num_warps=4"}
    times = rows(loaded, "interval")
    assert min(times, key=times.get) == "BLOCK=256,num_warps=4"
    assert set(rows(loaded, "registers")) == {"", "BLOCK=256,num_warps=4", "BLOCK=512,num_warps=4"}
    assert rows(loaded, "grid_blocks") == {"": 16, "BLOCK=256,num_warps=4": 8, "BLOCK=512,num_warps=4": 4}
    (failed,) = loaded.run.failures
    assert failed.message == "2048 threads a block, sm_90 has 1024: cannot be launched"
    (tmp_path / "log").unlink()
    assert cli.main(["tune", OWN, "--workload", "2048-fp32"]) == 0
    assert not (tmp_path / "log").exists(), "timed again"
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "tunable.py triton forward 2048-fp32, 3 configs and the default, fastest first"
    assert [line.split()[0] for line in lines[2:6]] == [
        "BLOCK=256,num_warps=4", "default", "BLOCK=512,num_warps=4", "BLOCK=64,num_warps=64",
    ]  # fmt: skip
    assert [line.split()[1] for line in lines[2:6]] == ["0", "50", "100", "–"], "per cent over the best"
    assert failed.message[:40] in lines[5]
    assert 'best: triton.Config({"BLOCK": 256}, num_warps=4): 1.500 times the default\'s speed' in lines
    assert any(line.endswith("costs: BLOCK +100 %") for line in lines)


@pytest.mark.parametrize(
    ("sustained", "said"),
    [
        (
            "3.3e-3 3.2e-3",
            'best: triton.Config({"BLOCK": 256}, num_warps=4): 1.031 times the default\'s speed without rests',
        ),
        ("3.3e-3 3.4e-3", "the default stays: no config is 0.5 % faster"),
    ],
    ids=["faster", "slower"],
)
def test_tune_long_winner_must_win_without_rests(raced, monkeypatch, sustained, said):
    monkeypatch.setenv("FAKES_SUSTAINED", sustained)
    loaded, _ = raced({name: 1e3 * value for name, value in TIMES.items()})
    ((_, lines),) = sweeps.conclusions(loaded.table)
    assert lines[0].startswith(said)
    (loaded.folder / "artefacts" / "fakes.raced").rename(loaded.folder / "artefacts" / "race")
    (winner,) = tuning.winners(loaded)
    assert winner.config == ("default" if "stays" in said else "BLOCK=256,num_warps=4")


def test_tune_memory_broken_is_refused_and_full_costs_nothing(raced, tmp_path, capsys):
    path = tmp_path / "tuning.sqlite3"
    fill(path)
    loaded, _ = raced()
    assert loaded.run.complete and len(rows(loaded, "interval")) == 3
    path.write_text("no database" * 100)
    assert cli.main(["tune", OWN]) == 2
    assert f"{path} cannot remember timings (file is not a database): set TILESCOPE_TUNING" in capsys.readouterr().err


def test_tune_fault_costs_one_config(raced):
    loaded, _ = raced({**TIMES, "BLOCK=512,num_warps=4": "fault"})
    why = {failure.case.rpartition("/")[2]: failure.message for failure in loaded.run.failures}
    assert "illegal memory access" in why["BLOCK=512,num_warps=4"]
    assert set(rows(loaded, "interval")) == {"", "BLOCK=256,num_warps=4"}
    assert loaded.run.complete


def test_search_known_configs_alone_are_not_timed():
    contest = racing.Race(lambda config, count: pytest.fail("timed"), 2)
    known = {"a": memory.Timing((2.0, 2.1), "", ""), "b": memory.Timing((1.0, 1.1), "", "")}
    assert search.run(contest, known, (), more=False).winner == "b"


def test_search_keep_dates_only_new_timings(tmp_path):
    kept = memory.Memory(tmp_path / "tuning.sqlite3")
    problem = memory.Problem("scale", "digest", "(1,)", "GPU", "GPU-1", "versions")
    before = "2026-01-01T00:00:00+00:00"
    known = {
        "near": memory.Timing((1.0, 1.001, 1.002), "", before),
        "slow": memory.Timing((9.0, 9.001, 9.002), "", before),
        "large": memory.Timing((), "too large", before),
    }
    kept.take(problem, known)
    contest = racing.Race(lambda config, count: [0.999] * count, 4)
    search.run(contest, known, [("new", search.Compiled())])
    assert {lane.config for lane in search.found_out(contest, known)} == {"near", "new"}
    search.keep(kept, problem, contest, known, facts={name: {} for name in contest.lanes}, certain=lambda lane: True)
    found = kept.known(problem)
    assert {name for name, timing in found.items() if timing.at == before} == {"slow", "large"}
    assert found["slow"] == known["slow"]
    assert found["near"].samples != known["near"].samples


def test_search_same_launch_shares_its_time(tmp_path):
    timed = []
    contest = racing.Race(lambda name, count: timed.append(name) or [1e-3] * count, 3)
    found = [(name, search.Compiled("", [{"code": code}])) for name, code in (("a", "x"), ("b", "y"), ("c", "x"))]
    outcome = search.run(contest, {}, found, launched=lambda name, kernels: kernels[0]["code"])
    assert set(timed) == {"a", "b"}
    facts = {lane.config: {memory.LIKE: lane.like} if lane.like else {} for lane in outcome.lanes}
    timings = {
        lane.config: memory.Timing(tuple(lane.samples), lane.out, "", facts[lane.config]) for lane in outcome.lanes
    }
    assert set(memory.usable(timings, ("b", "c"))) == {"b"}, "whose time c has is not among these"
    problem = memory.Problem("copy/triton", "digest", "(1,)", "NVIDIA H200", "GPU-1", "triton 3.6")
    told = memory.shared(timings)
    for name in "ac":
        race.write(tmp_path / name, problem, told[name], remembered=False)
    assert told["c"].samples == told["a"].samples
    assert race.remark(tmp_path / "c") == "measurements are of a, which makes the same launch of the same code"
    assert (race.remark(tmp_path / "a"), race.failure(tmp_path / "c")) == ("", "")


def test_parse_has_counters_without_their_clock(tmp_path):
    counted = json.loads((FIXTURES / "cupti_softmax_h100.json").read_text())
    timing = memory.Timing((1e-4, 1.1e-4), "", "", {"config": "ROWS=1", "counted": counted})
    race.write(tmp_path / "a", memory.Problem("softmax", "d", "(1,)", "NVIDIA H100", "", ""), timing, remembered=False)
    table = race.parse(tmp_path / "a", Case("softmax", "triton", "forward", "16384x4096-bf16", "ROWS=1"))
    sources = dict(zip(table["metric"], table["source"], strict=True))
    assert (sources["interval"], sources["dram_bytes_read"]) == ("events", "cupti")
    assert "gpu_time" not in sources


def test_order_longest_to_compile_first():
    small, large, wide = ({"B": block, "num_warps": warps} for block, warps in ((32, 4), (256, 4), (256, 8)))
    assert search.order({"small": small, "large": large, "wide": wide}) == ["large", "wide", "small"]


def test_export_keeps_other_winners_of_the_file(tmp_path):
    problem = memory.Problem("softmax/triton", "d", "('forward', 'fp32', 8)", "NVIDIA H200", "GPU-1", "v")
    case = Case("softmax", "triton", "forward", "8-fp32", "BLOCK=128")
    launch = {"function": "k", "digest": "x", "arguments": {"n": 8, "x": "torch.float32", "BLOCK": 128}}
    timing = memory.Timing(
        (2e-6, 3e-6, 1e-6), "", "2026-11-25T10:00:00+00:00", {"config": case.config, "launches": [launch]}
    )
    race.write(tmp_path / "a.json", problem, timing, remembered=False)
    found = race.winner(tmp_path / "a.json", 4)
    assert (found.config, found.median, found.configs) == ("BLOCK=128", 2e-6, 4)
    path = tmp_path / "winners.json"
    other = dataclasses.replace(found, problem=dataclasses.replace(problem, kernel="rms_norm/triton"))
    older = dataclasses.replace(found, median=9.0)
    memory.export([other, older], path)
    assert tuning.export([found], path) == (1, 1)
    kept = memory.load(path)
    assert {(one.problem.kernel, one.median) for one in kept} == {("rms_norm/triton", 2e-6), ("softmax/triton", 2e-6)}
    asked = dataclasses.replace(problem, kernel="k", digest="x")
    assert memory.launched(kept, asked, {"n": 8, "x": "torch.float32"})[0]["BLOCK"] == 128
    assert memory.launched(kept, asked, {"n": 9}) == []
    with pytest.raises(ValueError, match="nothing was timed"):
        tuning.export([], path)


def test_tune_exhaustive_and_fresh_is_refused(kit, capsys):
    assert cli.main(["tune", OWN, "--exhaustive", "--fresh"]) == 2
    assert "--exhaustive remembers nothing" in capsys.readouterr().err


def test_sweep_backward_call_is_forgotten_without_room(torch_and_catalog, monkeypatch):
    from tilescope.tuning import sweep

    made: list[Case] = []
    room = [True, True, False, True]
    monkeypatch.setattr(sweep.execute, "prepare", lambda spec, case, place, rotate: made.append(case) or (lambda: case))
    monkeypatch.setattr(sweep, "roomy", lambda: room.pop(0))
    cases = [Case("softmax", "triton", "backward", "8x8-fp32", f"BLOCK={block}") for block in (1, 2, 4)]
    raced = sweep.Sweep(cases, None, {}, lambda case, doing: None)
    for case in (*cases[:2], *cases[:2]):
        assert raced.call(case)() is case
    assert made == cases[:2], "a turn draws nothing"
    raced.call(cases[2])
    raced.call(cases[0])
    assert made == [*cases, cases[0]], "the first was forgotten to make room"


@pytest.mark.parametrize("found", [{}, {"relative_error": 0.0}])
def test_sweep_checks_a_config_before_it_holds_inputs(torch_and_catalog, monkeypatch, found):
    """The reference in fp64 needs most memory."""
    from tilescope.tuning import sweep

    told = []

    class Sweep(sweep.Sweep):
        def call(self, case):
            return told.append("inputs") or (lambda: told.append("called"))

    monkeypatch.setattr(sweep, "checked", lambda *given: told.append("checked") or found)
    cold = SimpleNamespace(rest=lambda call: told.append("timed") or 0.0, Flush=lambda rest: "flush")
    monkeypatch.setattr(sweep, "cold", cold)
    monkeypatch.setattr(sweep, "cold_times", lambda call, count, flush: [1.0] * count)
    cases = [Case("softmax", "triton", "backward", "8x8-fp32", config) for config in ("", "ROWS=1")]
    raced = Sweep(cases, None, {}, lambda case, doing: None)
    assert raced._samples("default", 1) == raced._samples("ROWS=1", 1) == [1.0]
    first, second = told[: told.index("timed")], told[told.index("timed") + 1 :]
    assert first == ["checked", "inputs", "called"] and second == (first[:2] if found else first)
    told.clear()
    assert raced._samples("default", 2) == [1.0, 1.0] and told == ["inputs"]


def test_sweep_counts_together_and_alone_where_that_fails(torch_and_catalog, monkeypatch):
    from tilescope.tuning import sweep

    asked = []

    def of_calls(runs, functions, metrics):
        asked.append([run() for run in runs])
        if "ROWS=2" in asked[-1]:
            raise ValueError("2 launches were seen and 3 counted")
        return [{"launches": names} for names in functions]

    class Sweep(sweep.Sweep):
        def call(self, case):
            return lambda: case.config

    counters = SimpleNamespace(unavailable=lambda: None, launched=lambda run: [run()], of_calls=of_calls)
    monkeypatch.setattr(sweep, "counters", counters)
    cases = [Case("softmax", "triton", "forward", "8x8-fp32", config) for config in ("", "ROWS=1", "ROWS=2")]
    raced = Sweep(cases, None, {}, lambda case, doing: None)
    raced._count(["default", "ROWS=1"])
    raced._count(["ROWS=1", "ROWS=2"])
    raced._count([])
    assert asked == [["", "ROWS=1"], ["ROWS=1", "ROWS=2"], ["ROWS=1"], ["ROWS=2"]]
    assert {name: facts.get("counted", {}).get("launches") for name, facts in raced._facts.items()} == {
        "default": [""], "ROWS=1": ["ROWS=1"], "ROWS=2": None,
    }  # fmt: skip
    assert raced._facts["ROWS=2"]["uncounted"] == "not counted: 2 launches were seen and 3 counted"
