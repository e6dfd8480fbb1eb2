"""What ``benchmarks/tuning.py`` found, as text: a line a step, a table, and how it stands to what is aimed at. Pure."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

#: The spread between processes is told of configs this near the best.
_NEAR = 0.03
#: A winner within this ratio of the best is as good.
_WITHIN = 0.01
#: What is aimed at: seconds of a cold and of a warm search, and the least of how much quicker than Triton's.
_COLD, _WARM, _QUICKER = 7.0, 0.5, 5.0
_HEADS = ("problem", "configs", "timed", "triton.autotune", "tilescope, cold", "quicker (median, least)", "warm",
          "regret here; within 1 %", "elsewhere; within 1 %", "triton's", "between processes")  # fmt: skip


def begun(name: str, found: Mapping[str, Any]) -> str:
    """What is known of a problem before its first trial."""
    took = f"{found['triton']['seconds']:.1f} s" if found["triton"] else "no answer"
    spread = _spread(found)
    apart = f", processes {spread:.2%} apart" if spread is not None else ""
    return f"{name}: triton.autotune {took}; {len(found['exhaustive'])} configs timed{apart}"


def told(name: str, found: Mapping[str, Any], trial: Mapping[str, Any]) -> str:
    """One trial."""
    if not (cold := trial["cold"]):
        return f"{name}: the search failed"
    regrets = [_regret(times, cold["config"]) for times in (cold["here"], found["exhaustive"])]
    here, elsewhere = ("not known" if regret is None else f"{regret:+.2%}" for regret in regrets)
    warm = f", warm {trial['warm']['seconds']:.2f} s" if trial["warm"] else ""
    return f"{name}: cold {cold['seconds']:.2f} s{warm}: {cold['config']}, here {here}, elsewhere {elsewhere}"


def table(results: Mapping[str, Any]) -> Iterator[str]:
    """The table's lines, and how all of it stands to what is aimed at."""
    yield f"| {' | '.join(_HEADS)} |"
    yield "|---" * len(_HEADS) + "|"
    for name, found in results.items():
        yield row(name, found)
    yield from judged(results)


def judged(results: Mapping[str, Any]) -> Iterator[str]:
    """A line an aim: what was found, and whether that is it."""

    def aim(said: str, met: bool) -> str:
        return f"{said}: {'met' if met else 'missed'}"

    trials = [one for found in results.values() for one in found["trials"]]
    for kind, of in (("here", "in its own process"), ("elsewhere", "by the median of others")):
        regrets = [regret for found in results.values() for regret in _regrets(found, kind)]
        near = sum(map(_near, regrets))
        most = max((regret for regret in regrets if regret is not None), default=None)
        worst = f", at most {most:.2%} from it" if most is not None else ""
        yield aim(f"winners within 1 % of the best {of}, {near} of {len(trials)}{worst}", 0 < near == len(trials))
    cold = [one["cold"]["seconds"] for one in trials if one["cold"]]
    warm = [one["warm"]["seconds"] for one in trials if one["warm"]]
    if cold:
        yield aim(f"cold searches {min(cold):.2f} to {max(cold):.2f} s, at most {_COLD:g} s", max(cold) <= _COLD)
    if warm:
        yield aim(f"warm searches {min(warm):.2f} to {max(warm):.2f} s, at most {_WARM:g} s", max(warm) <= _WARM)
    quicker = {
        name: found["triton"]["seconds"] / max(seconds)
        for name, found in results.items()
        if (seconds := [one["cold"]["seconds"] for one in found["trials"] if one["cold"]]) and found["triton"]
    }
    if quicker:
        least = min(quicker, key=lambda name: quicker[name])
        said = f"quicker than triton.autotune, least {quicker[least]:.1f}x ({least}), at least {_QUICKER:g}x"
        yield aim(said, quicker[least] >= _QUICKER)


def row(name: str, found: Mapping[str, Any]) -> str:
    """The table's line of what was found of a problem."""
    triton_s = found["triton"]["seconds"] if found["triton"] else None
    cold = [one["cold"] for one in found["trials"] if one["cold"]]
    warm = [one["warm"]["seconds"] for one in found["trials"] if one["warm"]]
    truth, seconds = found["exhaustive"], [one["seconds"] for one in cold]
    middle = statistics.median(seconds) if seconds else None
    told = [(_regrets(found, kind), kind) for kind in ("here", "elsewhere")]
    cells = [
        name,
        str(cold[0]["configs"] if cold else len(truth)),
        f"{statistics.median(one['timed'] for one in cold):.0f}" if cold else "",
        _seconds([triton_s] if triton_s else []),
        _seconds(seconds),
        f"{triton_s / middle:.1f}x, {triton_s / max(seconds):.1f}x" if triton_s and middle else "",
        _seconds(warm),
        *(f"{_percent(regrets)}; {sum(_near(one) for one in regrets)}/{len(found['trials'])}" for regrets, _ in told),
        _percent([_regret(truth, found["triton"]["config"])]) if found["triton"] else "",
        _percent([_spread(found)]),
    ]
    return f"| {' | '.join(cells)} |"


def _regrets(found: Mapping[str, Any], kind: str) -> list[float | None]:
    """Of each cold search: in its own process (``here``), or by the median of others."""
    cold = [one["cold"] for one in found["trials"] if one["cold"]]
    return [_regret(one["here"] if kind == "here" else found["exhaustive"], one["config"]) for one in cold]


def _near(regret: float | None) -> bool:
    return regret is not None and regret <= _WITHIN


def _spread(found: Mapping[str, Any]) -> float | None:
    """The largest difference between processes in the time of one of the configs that are near the best; None without two."""
    truth, processes = found["exhaustive"], found["processes"]
    near = [text for text, seconds in truth.items() if seconds <= (1 + _NEAR) * min(truth.values())]
    apart = [max(one[text] for one in processes) / min(one[text] for one in processes) - 1 for text in near]
    return max(apart, default=None) if len(processes) > 1 else None


def _regret(times: Mapping[str, float], config: str) -> float | None:
    return times[config] / min(times.values()) - 1 if config in times else None


def _seconds(values: Sequence[float]) -> str:
    if len(values) < 2:
        return "".join(f"{value:.2f} s" for value in values)
    return f"{statistics.median(values):.2f} ({min(values):.2f} to {max(values):.2f}) s"


def _percent(values: Sequence[float | None]) -> str:
    known = [value for value in values if value is not None]
    if len(known) < 2:
        return "".join(f"{value:.2%}" for value in known)
    return f"{statistics.median(known):.2%}, at most {max(known):.2%}"


def good(found: Mapping[str, Any]) -> bool:
    """Whether each trial has a winner that is near the best, by either way to know it."""
    every = [_regrets(found, kind) for kind in ("here", "elsewhere")]
    return all(len(regrets) == len(found["trials"]) and all(map(_near, regrets)) for regrets in every)
