"""How long a search takes, and how far its winner is from the best: ``tilescope.autotune`` beside ``triton.autotune``.

``python -m benchmarks.tuning`` needs a GPU. Each search is a process of its own with empty caches (cold), or with those that the cold one
left (warm): a fork of one that has imported what it needs, has compiled nothing and has not touched the GPU. The clock runs from the
first call of the tuned kernel to the end of that call. Outside it are imports, CUDA's context, the inputs, and what decorating begins: the
process that forks compilers, and reading Triton for its digest. ``triton.autotune`` searches once a problem, alone, by the same clock.

Every config is timed with a cold L2, a few samples in each pass over all of them; those that are near the best take a hundred turns of one
sample each, in random order. A config's time is the mean of the middle four fifths of its samples: reading HBM an H200 is 2 % slower for
a millisecond or two, then quicker again, so that what is timed at once shares its luck and a median of few jumps. Of a kernel that takes
longer than emptying the L2 does, those near the best are called for a while each instead, alone, and the last half of that counts: such a
kernel takes the GPU to its power limit, and in turns what one config draws lowers the clock for all. The regret of a winner, its time over
the least of all, less 1, is told twice: in the process that searched, on the tensors that it was searched for, and by the median of ``_PROCESSES`` others, whose spread is told, too.
Trials take turns over the problems, as many as are done ``--within`` so many seconds. ``--out`` keeps all of it as JSON, and ``--go-on``
adds to it. A round on a GPU is ``python -m benchmarks.tuning --trials 20 --within 480 --out FILE``.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib
import json
import math
import os
import platform
import random
import signal
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch
import triton
from tilescope.hardware import device
from tilescope.jobs.versions import versions
from tilescope.tuning import autotuning
from tilescope.tuning.cold_times import cold_times
from triton.runtime.cache import triton_key

from benchmarks import tuning_problems, tuning_table
from benchmarks.forking import forked
from benchmarks.tuning_problems import OPTIONS, Problem, Values

#: Of timing every config: processes, passes of each over all configs, samples of each in a pass, and turns of those that are near.
_PROCESSES, _PASSES, _SAMPLES, _TURNS = 5, 4, 5, 100
#: Configs this near the best, by the first passes, take turns.
_CLOSE = 0.04
#: A kernel this long, in seconds, keeps the GPU at its power limit for most of the time between two calls.
_LONG = 5e-4
#: Of those that are near then: rounds, and the seconds that each is called for in a round.
_ROUNDS, _ALONE = 4, 0.4
#: The part of the samples that is left out at either end.
_CUT = 0.1
#: Seconds that are kept for telling what was found.
_TELLING = 3.0
#: What a step takes of which none has been taken, in seconds: before the first of its kind.
_GUESS = {"begin": 60.0, "trial": 12.0}


def tuned(problem: Problem, autotune: Callable[..., Any]) -> Any:
    """The problem's function in an autotuner; ``texts`` has the text of each config by what it sets."""
    texts, configs = dict[str, str](), []
    for text, values in problem.configs.items():
        options = {name: values[name] for name in OPTIONS if name in values}
        config = triton.Config({n: v for n, v in values.items() if n not in OPTIONS}, **options)
        texts[_key(problem, config.all_kwargs())] = text
        configs.append(config)
    tuner = autotune(configs, key=[])(problem.function)
    tuner.texts = texts
    return tuner


def _key(problem: Problem, values: Mapping[str, Any]) -> str:
    names = {name for one in problem.configs.values() for name in one}
    return json.dumps({name: values.get(name) for name in sorted(names)})


def search(make: Callable[[str], Problem], way: str, look: bool = False) -> dict[str, Any]:
    """One search in this process: how many ``seconds`` it took, which ``config`` it chose, and how many were timed.

    With ``look`` every config that was timed is timed again after it: ``here``.
    """
    problem = make(_target())
    # A kernel that is decorated when the GPU is in use finds no process that compiles, and nothing may be known beforehand.
    state = {"gpu_in_use": torch.cuda.is_initialized(), "digest_known": triton_key.cache_info().currsize > 0}
    tuner = tuned(problem, triton.autotune if way == "triton" else autotuning.autotune)
    given = problem.given()
    state["compiled_before"] = sum(len(cache[0]) for cache in problem.function.device_caches.values())
    torch.cuda.synchronize()
    began = time.perf_counter()
    tuner[problem.grid](**given)
    torch.cuda.synchronize()
    seconds = time.perf_counter() - began
    lanes = getattr(getattr(tuner, "search", None), "lanes", ())
    raced = {lane.config for lane in lanes if lane.samples}
    tried = [tuner.texts[_key(problem, one.all_kwargs())] for one in tuner.configs if autotuning.text_of(one) in raced]
    return {
        "seconds": seconds,
        "config": tuner.texts[_key(problem, tuner.best_config.all_kwargs())],
        "configs": len(problem.configs),
        "timed": len(tried) if lanes else len(problem.configs),
        **state,
        "here": timed(problem, given, {text: problem.configs[text] for text in tried}) if look else {},
        "out": {lane.config: lane.out for lane in lanes if lane.out and not lane.samples},
    }


def exhaustive(make: Callable[[str], Problem]) -> dict[str, float]:
    """The GPU time in seconds of every config that can be launched, in this process."""
    problem = make(_target())
    return timed(problem, problem.given(), problem.configs)


def timed(problem: Problem, given: Mapping[str, Any], configs: Mapping[str, Values]) -> dict[str, float]:
    """The GPU time in seconds of those configs that can be launched, with a cold L2."""
    samples = _passes(problem, given, configs, _PASSES, _SAMPLES)
    first = {text: typical(found) for text, found in samples.items()}
    least = min(first.values())
    near = {text: configs[text] for text in first if first[text] <= (1 + _CLOSE) * least}
    if least < _LONG:
        samples |= _passes(problem, given, near, _TURNS, 1)
    elif len(near) > 1:
        count = math.ceil(_ALONE / least)
        samples |= _passes(problem, given, near, _ROUNDS, count, of_each=count // 2)
    return {text: typical(found) for text, found in samples.items()}


def typical(samples: Sequence[float]) -> float:
    """The mean of the samples without the least and the greatest of them."""
    ranked, cut = sorted(samples), int(_CUT * len(samples))
    return statistics.mean(ranked[cut : len(ranked) - cut])


def _passes(
    problem: Problem,
    given: Mapping[str, Any],
    configs: Mapping[str, Values],
    passes: int,
    count: int,
    *,
    of_each: int = 0,
) -> dict[str, list[float]]:
    """Samples of each config that can be launched, so many in each pass over all of them, in random order.

    ``of_each`` says how many of a pass's samples are kept, the last ones; all unless given.
    """
    samples: dict[str, list[float]] = {text: [] for text in configs}
    numbers = random.Random(1)  # noqa: S311 - no secret
    for _ in range(passes):
        for text in numbers.sample(list(samples), len(samples)):
            values = configs[text]
            launched = problem.function[problem.grid(values)]

            def call(launched: Any = launched, values: Values = values) -> None:
                launched(**given, **values)

            try:
                samples[text] += cold_times(call, count)[-of_each:]
            except Exception as error:
                print(f"{problem.name} {text}: {type(error).__name__}", file=sys.stderr)
                del samples[text]
    return samples


def _target() -> str:
    here = device.detect()
    return here.target if here else "sm_90"


def _conditions() -> tuple[dict[str, Any], str | None]:
    """What is measured on, and why nothing can be; None where it can."""
    here, known = device.detect(), versions()
    conditions = {
        "gpu": here.name if here else "no GPU", "cores": len(os.sched_getaffinity(0)), "machine": platform.machine(),
        "date": f"{datetime.now(UTC):%Y-%m-%d}", **{n: v for n, v in known.items() if n != "tilescope"},
    }  # fmt: skip
    return conditions, device.unavailable()


def modules(problems: Sequence[Callable[[str], Problem]]) -> list[str]:
    """What making the problems and drawing their inputs imports."""
    before = set(sys.modules)
    for make in problems:
        make(_target()).given()
    return [name for name in sys.modules if name not in before and not name.startswith("__")]


def import_ahead(names: Sequence[str]) -> None:
    """Imports the modules, as far as they can be."""
    for name in names:
        with contextlib.suppress(Exception):
            importlib.import_module(name)


def prepare(problems: Sequence[Callable[[str], Problem]], caches: Path) -> None:
    """Imports what the problems need, so that a fork of this process has it; but for what would keep forks from the GPU."""
    wanted: list[str] = forked(lambda: modules(problems), caches) or []

    def serves(names: Sequence[str]) -> bool:
        import_ahead(names)
        return forked(lambda: float(torch.ones(1, device="cuda").sum()), caches) == 1.0

    for names in (wanted, [name for name in wanted if not name.startswith(("torch._inductor", "liger_kernel"))]):
        if forked(lambda names=names: serves(names), caches):
            import_ahead(names)
            break


def begin(make: Callable[[str], Problem], processes: int) -> dict[str, Any]:
    """Triton's search, every config's time in each of several processes, and the median of those."""
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as theirs:
        triton_s = forked(lambda: search(make, "triton"), Path(theirs))
        found = [forked(lambda: exhaustive(make), Path(theirs)) or {} for _ in range(processes)]
    common = [text for text in found[0] if all(text in one for one in found)]
    truth = {text: statistics.median(one[text] for one in found) for text in common}
    return {"triton": triton_s, "processes": found, "exhaustive": truth, "trials": []}


def trial(make: Callable[[str], Problem], warm: bool) -> dict[str, Any]:
    """A cold search, and a warm one after it if that is wanted."""
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as ours:
        cold = forked(lambda: search(make, "tilescope", look=True), Path(ours))
        return {"cold": cold, "warm": forked(lambda: search(make, "tilescope"), Path(ours)) if warm else None}


class Clock:
    """How long steps have taken, so that none is begun that would not be done ``within`` so many seconds."""

    def __init__(self, within: float) -> None:
        self._until = time.monotonic() + within
        self._longest: dict[tuple[str, str], float] = {}

    def room(self, kind: str, name: str) -> bool:
        """Whether a step of the kind, on the problem of that name, would be done in time, were it as long as the longest yet."""
        alike = [took for (of, _), took in self._longest.items() if of == kind]
        likely = self._longest.get((kind, name), max(alike, default=_GUESS[kind]))
        return time.monotonic() + likely < self._until

    def timed(self, kind: str, name: str, work: Callable[[], dict[str, Any]]) -> dict[str, Any]:
        """What the step answers."""
        began = time.monotonic()
        answer = work()
        self._longest[kind, name] = max(self._longest.get((kind, name), 0.0), time.monotonic() - began)
        return answer


def going_on(file: Path, conditions: Mapping[str, Any]) -> dict[str, Any]:
    """What a file has of searches under the same conditions on another day or the same one; nothing where there is no file.

    Raises ValueError where the conditions were others.
    """
    if not file.exists():
        return {}
    kept = json.loads(file.read_text())
    before, now = ({n: v for n, v in one.items() if n != "date"} for one in (kept["conditions"], conditions))
    if changed := [name for name in {*before, *now} if before.get(name) != now.get(name)]:
        raise ValueError(f"{file} is of another {', '.join(sorted(changed))}")
    found: dict[str, Any] = kept["problems"]
    return found


def say(line: str) -> None:
    """Prints a line at once: who is cut off has told what was found until then."""
    print(line, flush=True)


def main(argv: Sequence[str] | None = None, write: Callable[[str], object] = say) -> int:
    """Compares the two on every problem. Status 1 where a search failed or its winner was too far, 2 where there is no GPU."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    problems = tuning_problems.every()
    parser.add_argument("problems", nargs="*", metavar="PROBLEM", help=f"of {', '.join(problems)}; all unless named")
    parser.add_argument("--trials", type=int, default=1, help="how often each search is made")
    parser.add_argument("--warm", type=int, default=3, help="in how many of the trials the search is made again, warm")
    parser.add_argument("--processes", type=int, default=_PROCESSES, help="in how many others every config is timed")
    parser.add_argument("--within", type=float, default=math.inf, help="seconds in which all is to be done, and told")
    parser.add_argument("--out", type=Path, help="a JSON file of everything that was measured")
    parser.add_argument("--go-on", action="store_true", help="begin with what --out has, under the same conditions")
    arguments = parser.parse_args(argv)
    if unknown := [name for name in arguments.problems if name not in problems]:
        parser.error(f"no problem {', '.join(unknown)}: there are {', '.join(problems)}")
    chosen = {name: make for name, make in problems.items() if name in (arguments.problems or problems)}
    clock = Clock(arguments.within - _TELLING)
    # Else PyTorch asks the driver whether there is a GPU, and a fork could not use it.
    os.environ.setdefault("PYTORCH_NVML_BASED_CUDA_CHECK", "1")
    conditions, reason = forked(_conditions, Path(tempfile.gettempdir()))
    write(", ".join(f"{name} {value}" for name, value in conditions.items()))
    if reason:
        for name, make in chosen.items():
            write(f"{name}: {len(make(_target()).configs)} configs")
        write(f"nothing can be timed here: {reason}")
        return 2
    results: dict[str, Any] = {}
    if arguments.go_on and arguments.out:
        try:
            results = going_on(arguments.out, conditions)
        except ValueError as error:
            parser.error(str(error))

    def keep() -> None:
        if arguments.out:
            arguments.out.write_text(json.dumps({"conditions": conditions, "problems": results}, indent=1))

    signal.signal(signal.SIGTERM, _end)
    with contextlib.suppress(_Ended):
        with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as scratch:
            prepare(list(chosen.values()), Path(scratch))
        for name, make in chosen.items():
            if name not in results and clock.room("begin", name):
                results[name] = clock.timed("begin", name, lambda make=make: begin(make, arguments.processes))
                keep()
                write(tuning_table.begun(name, results[name]))
        for number in range(arguments.trials):
            for name, found in results.items():
                if name in chosen and len(found["trials"]) <= number and clock.room("trial", name):
                    warm = number < arguments.warm
                    found["trials"].append(clock.timed("trial", name, lambda n=name, w=warm: trial(chosen[n], w)))
                    keep()
                    write(tuning_table.told(name, found, found["trials"][-1]))
    for line in tuning_table.table(results):
        write(line)
    return 0 if results and all(tuning_table.good(found) for found in results.values()) else 1


class _Ended(Exception):
    """Somebody wants it to end: what is done is told."""


def _end(*_: object) -> None:
    raise _Ended


if __name__ == "__main__":
    raise SystemExit(main())
