"""How long a search takes, and how far its winner is from the best: ``tilescope.autotune`` beside ``triton.autotune``.

``python -m benchmarks.tuning`` needs a GPU. Each search is a process of its own with empty caches (cold), or with those that the cold one
left (warm): a fork of one that has imported what it needs, has compiled nothing and has not touched the GPU. The clock runs from the
first call of the tuned kernel to the end of that call. Outside it are imports, CUDA's context, the inputs, and what decorating begins: the
process that forks compilers, and reading Triton for its digest. ``triton.autotune`` searches once a problem, alone, by the same clock.

Every config is timed with a cold L2, a few samples in each pass over all of them; those that are near the best take a hundred turns of one
sample each, in random order. A config's time is the mean of the middle four fifths of its samples: reading HBM an H200 is 2 % slower for
a millisecond or two, then quicker again, so that what is timed at once shares its luck and a median of few jumps. The regret of a winner, its time over the least of all, less 1, is told twice: in the
process that searched, on the tensors that it was searched for, and by the median of ``_PROCESSES`` others, whose spread is told, too.
Trials take turns over the problems, until ``--limit``. ``--out`` keeps all of it as JSON.
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
import traceback
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

from benchmarks import tuning_problems
from benchmarks.tuning_problems import OPTIONS, Problem, Values

#: Of timing every config: processes, passes of each over all configs, samples of each in a pass, and turns of those that are near.
_PROCESSES, _PASSES, _SAMPLES, _TURNS = 5, 4, 5, 100
#: Configs this near the best, by the first passes, take turns.
_CLOSE = 0.04
#: The part of the samples that is left out at either end.
_CUT = 0.1
#: The spread between processes is told of configs this near the best.
_NEAR = 0.03
#: A winner within this ratio of the best is as good.
_WITHIN = 0.01
#: Longest that one process may take, in seconds.
_LIMIT = 240.0


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
    near = {text: configs[text] for text in first if first[text] <= (1 + _CLOSE) * min(first.values())}
    samples |= _passes(problem, given, near, _TURNS, 1)
    return {text: typical(found) for text, found in samples.items()}


def typical(samples: Sequence[float]) -> float:
    """The mean of the samples without the least and the greatest of them."""
    ranked, cut = sorted(samples), int(_CUT * len(samples))
    return statistics.mean(ranked[cut : len(ranked) - cut])


def _passes(
    problem: Problem, given: Mapping[str, Any], configs: Mapping[str, Values], passes: int, count: int
) -> dict[str, list[float]]:
    """Samples of each config that can be launched, so many in each pass over all of them, in random order."""
    samples: dict[str, list[float]] = {text: [] for text in configs}
    numbers = random.Random(1)  # noqa: S311 - no secret
    for _ in range(passes):
        for text in numbers.sample(list(samples), len(samples)):
            values = configs[text]
            launched = problem.function[problem.grid(values)]

            def call(launched: Any = launched, values: Values = values) -> None:
                launched(**given, **values)

            try:
                samples[text] += cold_times(call, count)
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


def forked(work: Callable[[], Any], caches: Path) -> Any:
    """What ``work`` answers in a fork of this process whose caches are in a folder; None where it fails or takes too long."""
    read, write = os.pipe()
    sys.stdout.flush()
    pid = os.fork()
    if pid == 0:
        status = 1
        try:
            os.close(read)
            os.setsid()
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
            os.environ["TRITON_CACHE_DIR"] = str(caches / "triton")
            os.environ["TILESCOPE_TUNING"] = str(caches / "tuning.sqlite3")
            signal.setitimer(signal.ITIMER_REAL, _LIMIT)
            with os.fdopen(write, "w") as answer:
                answer.write(json.dumps(work()))
            status = 0
        except BaseException:
            traceback.print_exc()
        finally:
            sys.stderr.flush()
            os._exit(status)
    os.close(write)
    try:
        with os.fdopen(read) as answer:
            said = answer.read()
    except BaseException:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
        raise
    finally:
        os.waitpid(pid, 0)
    return json.loads(said) if said else None


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


def begin(make: Callable[[str], Problem]) -> dict[str, Any]:
    """Triton's search, every config's time in each of several processes, and the median of those."""
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as theirs:
        triton_s = forked(lambda: search(make, "triton"), Path(theirs))
        processes = [forked(lambda: exhaustive(make), Path(theirs)) or {} for _ in range(_PROCESSES)]
    common = [text for text in processes[0] if all(text in one for one in processes)]
    truth = {text: statistics.median(one[text] for one in processes) for text in common}
    return {"triton": triton_s, "processes": processes, "exhaustive": truth, "trials": []}


def trial(make: Callable[[str], Problem], warm: bool) -> dict[str, Any]:
    """A cold search, and a warm one after it if that is wanted."""
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as ours:
        cold = forked(lambda: search(make, "tilescope", look=True), Path(ours))
        return {"cold": cold, "warm": forked(lambda: search(make, "tilescope"), Path(ours)) if warm else None}


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


def main(argv: Sequence[str] | None = None, write: Callable[[str], object] = print) -> int:
    """Compares the two on every problem. Status 1 where a search failed or its winner was too far, 2 where there is no GPU."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    problems = tuning_problems.every()
    parser.add_argument("problems", nargs="*", metavar="PROBLEM", help=f"of {', '.join(problems)}; all unless named")
    parser.add_argument("--trials", type=int, default=1, help="how often each search is made")
    parser.add_argument("--warm", type=int, default=3, help="in how many of the trials the search is made again, warm")
    parser.add_argument("--limit", type=float, default=math.inf, help="seconds after which no trial is begun")
    parser.add_argument("--out", type=Path, help="a JSON file of everything that was measured")
    arguments = parser.parse_args(argv)
    if unknown := [name for name in arguments.problems if name not in problems]:
        parser.error(f"no problem {', '.join(unknown)}: there are {', '.join(problems)}")
    chosen = {name: make for name, make in problems.items() if name in (arguments.problems or problems)}
    until = time.monotonic() + arguments.limit
    # Else PyTorch asks the driver whether there is a GPU, and a fork could not use it.
    os.environ.setdefault("PYTORCH_NVML_BASED_CUDA_CHECK", "1")
    conditions, reason = forked(_conditions, Path(tempfile.gettempdir()))
    write(", ".join(f"{name} {value}" for name, value in conditions.items()))
    if reason:
        for name, make in chosen.items():
            write(f"{name}: {len(make(_target()).configs)} configs")
        write(f"nothing can be timed here: {reason}")
        return 2
    heads = ("problem", "configs", "timed", "triton.autotune", "tilescope, cold", "quicker (median, least)", "warm",
             "regret here; within 1 %", "elsewhere; within 1 %", "triton's", "between processes")  # fmt: skip
    write(f"| {' | '.join(heads)} |")
    write("|---" * len(heads) + "|")
    results: dict[str, Any] = {}

    def keep() -> None:
        if arguments.out:
            arguments.out.write_text(json.dumps({"conditions": conditions, "problems": results}, indent=1))

    signal.signal(signal.SIGTERM, _end)
    with contextlib.suppress(_Ended):
        with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as scratch:
            prepare(list(chosen.values()), Path(scratch))
        for name, make in chosen.items():
            if time.monotonic() < until:
                results[name] = begin(make)
                keep()
        for number in range(arguments.trials):
            for name in results:
                if time.monotonic() < until:
                    results[name]["trials"].append(trial(chosen[name], number < arguments.warm))
                    keep()
    for name, found in results.items():
        write(row(name, found))
    return 0 if results and all(_good(found) for found in results.values()) else 1


class _Ended(Exception):
    """Somebody wants it to end: what is done is told."""


def _end(*_: object) -> None:
    raise _Ended


def _good(found: Mapping[str, Any]) -> bool:
    every = [_regrets(found, kind) for kind in ("here", "elsewhere")]
    return all(len(regrets) == len(found["trials"]) and all(map(_near, regrets)) for regrets in every)


if __name__ == "__main__":
    raise SystemExit(main())
