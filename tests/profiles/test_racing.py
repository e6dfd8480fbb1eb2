"""The race of configs, on made-up and on recorded times."""

import random
import statistics

import pytest
from tilescope.tuning import racing

from benchmarks import regret


def timer(times, noise=0.005, seed=0):
    """A ``measure`` of configs with these ``times``, and the number of samples taken of each."""
    numbers, asked = random.Random(seed), dict.fromkeys(times, 0)  # noqa: S311 - no secret

    def measure(config, count):
        asked[config] += count
        return [times[config] * numbers.lognormvariate(0, noise) for _ in range(count)]

    return measure, asked


def raced(measure, configs, rules=None):
    race = racing.Race(measure, len(configs), rules)
    for config in configs:
        race.offer(config)
    return race.finish()


def test_the_quickest_wins_and_the_slow_take_few_samples():
    times = {"slow": 2e-3, "best": 1e-3, "close": 1.01e-3, "slower": 3e-3}
    measure, asked = timer(times)
    outcome = raced(measure, times)
    assert outcome.winner == "best"
    assert outcome.clear
    assert 1 == asked["slower"] < asked["slow"] == racing.Rules().first < asked["close"]
    assert all("slower than the leader by" in lane.out for lane in outcome.lanes if lane.config.startswith("slow"))


def test_one_sample_drops_its_own_config_only():
    """A new config's first sample is half of its time, as where a clock fails."""
    measure, asked = timer({"best": 1e-3, "close": 1.01e-3, "lucky": 1.1e-3})

    def lucky(config, count):
        first = config == "lucky" and not asked[config]
        return [value * (0.5 if first else 1.0) for value in measure(config, count)]

    outcome = raced(lucky, asked)
    assert outcome.winner == "best" and asked["close"] > racing.Rules().first


@pytest.mark.parametrize("unlucky", [1, 5], ids=["its first", "in a turn"])
def test_race_one_long_sample_does_not_beat_the_best(unlucky):
    """A call of 50 ms takes the fewest turns."""
    measure, asked = timer({"near": 51e-3, "slow": 150e-3, "best": 50e-3})

    def interrupted(config, count):
        times = measure(config, count)
        return [times[0] * 1.8, *times[1:]] if config == "best" and asked["best"] == unlucky else times

    assert raced(interrupted, asked).winner == "best" and asked["slow"] == 1


def test_config_with_one_first_sample_is_timed_once():
    measure, asked = timer({"best": 1e-3, "slow": 3e-3})
    race = racing.Race(measure, 2, racing.Rules(first=1))
    assert [race.offer(config).samples != [] for config in asked] == [True, True]
    assert set(asked.values()) == {1} and not race.lanes["best"].out


def test_the_best_is_seldom_dropped_where_all_are_alike_in_noise():
    """The rules allow 5 % of races. A test that ignores how often it is repeated would drop more."""
    times = {"best": 1e-3, **{f"c{number}": 1.002e-3 for number in range(15)}}
    dropped = 0
    for seed in range(60):
        measure, _ = timer(times, noise=0.03, seed=seed)
        outcome = raced(measure, times)
        dropped += bool(next(lane.out for lane in outcome.lanes if lane.config == "best"))
    assert dropped <= 3


def test_a_race_ends():
    measure, asked = timer(dict.fromkeys("abc", 1e-4), noise=0.2)
    outcome = raced(measure, "abc")
    assert not outcome.clear
    assert max(asked.values()) == outcome.taken / 3 == racing.Rules().first + racing.Rules().turns
    measure, asked = timer({"a": 50e-3, "b": 50.05e-3, "c": 50.1e-3})
    raced(measure, "abc")
    assert max(asked.values()) <= racing.Rules().first + racing.Rules().fewest
    assert raced(lambda config, count: [], "ab").winner == ""


def test_race_close_configs_take_turns_anew():
    """The best config's first samples are slow, as on a busy machine, by more than its lead."""
    numbers, turns, asked = random.Random(1), list[str](), dict.fromkeys(("best", "close", "slow"), 0)  # noqa: S311 - no secret
    times = {"best": 1e-3, "close": 1.006e-3, "slow": 1.07e-3}

    def measure(config, count):
        asked[config] += count
        turns.append(config)
        luck = 1.012 if config == "best" and asked[config] <= racing.Rules().first else 1.0
        return [times[config] * luck * numbers.lognormvariate(0, 0.004) for _ in range(count)]

    outcome = raced(measure, times)
    assert outcome.winner == "best"
    lanes = {lane.config: lane for lane in outcome.lanes}
    assert "slower than the leader" in lanes["slow"].out
    assert lanes["best"].median < 1.003e-3, "what was timed before is gone"
    last = turns[len(turns) - turns[::-1].index("slow") :]
    last = last[len(last) % 2 :]  # the turn that dropped the slow one
    assert {*zip(last[::2], last[1::2], strict=True)} == {("best", "close"), ("close", "best")}, "in random order"


@pytest.mark.parametrize("twin", ["", "twin"])
def test_race_baseline_or_its_twin_takes_turns_with_the_winner(twin):
    measure, asked = timer({"best": 1e-3, "slow": 3e-3, twin or "default": 2e-3})
    race = racing.Race(measure, 3, baseline="default")
    for config in asked:
        race.offer(config)
    if twin:
        race.refuse("default", "the same code", twin)
    assert race.finish().winner == "best"
    assert asked[twin or "default"] == (1 if twin else race.rules.first) + race.rules.fewest
    assert asked["slow"] == 1


def test_race_drifting_machine_drops_nobody():
    """Samples taken together are all 2 % slower for a while, as on an H200 that reads HBM."""
    numbers, now = random.Random(3), 0.0  # noqa: S311 - no secret
    times = {f"c{n}": 65e-6 * (1 + 0.012 * (n > 0)) for n in range(9)}

    def measure(config, count):
        nonlocal now
        found = []
        now += 200e-6 * numbers.random()
        for _ in range(count):
            now += 165e-6
            slow = (now % 3.3e-3) < 1.65e-3
            found.append(times[config] * (1.022 if slow else 1.0) * numbers.lognormvariate(0, 0.004))
        return found

    won = [raced(measure, times).winner for _ in range(20)]
    assert won.count("c0") >= 19


def test_turns_are_fewer_where_the_gap_is_clear():
    measure, asked = timer({"best": 1e-3, "near": 1.025e-3})
    assert raced(measure, asked).clear
    fewest = asked["near"]
    measure, asked = timer({"best": 1e-3, "nearer": 1.004e-3})
    raced(measure, asked)
    assert fewest <= racing.Rules().first + racing.Rules().fewest + 2 < asked["nearer"]


def test_race_failing_config_is_out_with_its_reason():
    measure, asked = timer({"good": 1e-3, "near": 1.001e-3, "late": 1.0005e-3})

    def failing(config, count):
        if config == "faults" or (config == "late" and asked["late"] >= racing.Rules().first):
            raise racing.ConfigFailed("an illegal address")
        return measure(config, count) if config in asked else []

    race = racing.Race(failing, 6)
    race.refuse("huge", "262144 bytes of shared memory")
    for config in ("faults", "silent", "good", "near", "late"):
        race.offer(config)
    outcome = race.finish()
    assert outcome.winner in ("good", "near")
    assert {lane.config: lane.out for lane in outcome.lanes if lane.config not in ("good", "near")} == {
        "huge": "262144 bytes of shared memory", "faults": "an illegal address", "late": "an illegal address",
        "silent": "no time could be taken",
    }  # fmt: skip


@pytest.mark.parametrize(
    ("degrees", "quantile"), [(5, 2.570582), (10, 2.228139), (30, 2.042272)]
)  # of Student's table, two-sided 5 %
def test_student_s_quantiles(degrees, quantile):
    assert racing.student(0.975, degrees) == pytest.approx(quantile, rel=2e-4)


def test_recorded_sweeps_are_won_within_one_percent():
    for sweep in regret.recorded("attention"):
        found = regret.trial(sweep, None)
        assert found.regret <= 0.01
        assert found.launches < 0.6


def test_replay_deals_recorded_samples_in_a_cycle():
    sweep = regret.Sweep("s", "d", {"a": [1.0, 2.0, 3.0], "b": [4.0, 4.0, 4.0]})
    measure = regret.replayed(sweep, None)
    assert [*measure("a", 2), *measure("a", 2)] == [1.0, 2.0, 3.0, 1.0]
    assert sweep.best == statistics.median(sweep.times["a"])
    assert sweep.regret("b") == 1.0
