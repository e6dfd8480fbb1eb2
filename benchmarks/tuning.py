"""How long a search takes, and how far its winner is from the best: ``tilescope.autotune`` beside ``triton.autotune``.

``python benchmarks/tuning.py`` needs a GPU. Each search is a process of its own with empty caches (cold), or with those that the cold one
left (warm); the clock runs from the first call of the tuned kernel to the end of that call, so that imports and CUDA's start are
not in it. The regret is the median of the chosen config over the least median of all, each config timed 20 times with a cold L2 by one
further process, less 1. Kernels, configs and shapes are those of the catalog: of the configs that launch one and the same function.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from tilescope.execution.launches import Launch
from tilescope.hardware import device
from tilescope.table.case import Case, config_text, parse_config

#: Kernel, direction and workload of each problem.
PROBLEMS = (
    ("matmul", "forward", "4096x4096x4096-bf16"),
    ("softmax", "forward", "16384x4096-bf16"),
    ("layer_norm", "forward", ""),
    ("attention", "forward", ""),
)
#: Options of a launch that are arguments of ``triton.Config``.
_OPTIONS = ("num_warps", "num_stages")
_SAMPLES = 20


@dataclass(frozen=True)
class Problem:
    """One function to be tuned: what each config sets, by its text, and the grid that it is launched with."""

    case: Case
    configs: Mapping[str, Mapping[str, Any]]
    grids: Mapping[str, tuple[int, int, int]]

    @property
    def name(self) -> str:
        return f"{self.case.kernel} {self.case.direction} {self.case.workload}"


def problem(kernel: str, direction: str, workload: str, target: str) -> Problem:
    """The problem as the catalog has it. Nothing is launched. Raises ValueError where there is nothing to choose from."""
    from tilescope.collectors import compiler  # noqa: PLC0415 - torch comes with it
    from tilescope.execution import execute  # noqa: PLC0415

    spec = execute.load_spec(kernel)
    workload = workload or max(spec.workloads, key=lambda each: each.elements).id
    found: dict[str, Launch] = {}
    for config in spec.implementations["triton"].configs:
        case = Case(kernel, "triton", direction, workload, config_text(config))
        try:
            launches, _ = compiler.launches_of(case, spec, target)
        except (ValueError, execute.NotApplicable):
            continue  # a config that these operands do not allow
        if len(launches) == 1:
            found[case.config] = launches[0]
    functions = Counter(launch.function for launch in found.values())
    if not functions:
        raise ValueError(f"{kernel} {workload}: no config makes a single launch")
    most = functions.most_common(1)[0][0]
    same = {text: launch for text, launch in found.items() if launch.function is most and _plain(launch)}
    values = {text: {**launch.arguments, **launch.kwargs} for text, launch in same.items()}
    names = {name for one in values.values() for name in one if _varies(name, values) or name in _OPTIONS}
    return Problem(
        Case(kernel, "triton", direction, workload),
        {text: {name: one[name] for name in sorted(names) if name in one} for text, one in values.items()},
        {text: launch.grid for text, launch in same.items()},
    )


def _plain(launch: Launch) -> bool:
    """Whether no tensor descriptor is among its arguments, whose blocks would depend on the config."""
    return not any(type(value).__name__ == "TensorDescriptor" for value in launch.arguments.values())


def _varies(name: str, values: Mapping[str, Mapping[str, Any]]) -> bool:
    plain = [one.get(name) for one in values.values()]
    return all(isinstance(value, (int, str, type(None))) for value in plain) and len(set(plain)) > 1


def tuned(
    found: Problem, autotune: Callable[..., Any], function: Any
) -> tuple[Any, Callable[..., tuple[int, int, int]]]:
    """The function in an autotuner, and its grid."""
    import triton  # noqa: PLC0415

    texts: dict[str, str] = {}
    configs = []
    for text, values in found.configs.items():
        options = {name: values[name] for name in _OPTIONS if name in values}
        config = triton.Config({n: v for n, v in values.items() if n not in _OPTIONS}, **options)
        texts[_key(config.all_kwargs(), found)] = text
        configs.append(config)

    def grid(meta: Mapping[str, Any]) -> tuple[int, int, int]:
        # Triton tells the grid of the blocks and not of warps, on which no grid of the catalog depends.
        return next(
            found.grids[text]
            for text, values in found.configs.items()
            if all(meta.get(name) == value for name, value in values.items() if name not in _OPTIONS)
        )

    tuner = autotune(configs, key=[])(function)
    tuner.texts = texts
    return tuner, grid


def _key(values: Mapping[str, Any], found: Problem) -> str:
    names = {name for one in found.configs.values() for name in one}
    return json.dumps({name: values.get(name) for name in sorted(names)})


def search(found: Problem, way: str) -> dict[str, Any]:
    """One search in this process: how many ``seconds`` it took, which ``config`` it chose."""
    import triton  # noqa: PLC0415
    from tilescope.collectors import compiler  # noqa: PLC0415
    from tilescope.execution import execute, launches  # noqa: PLC0415
    from tilescope.tuning import autotuning  # noqa: PLC0415

    spec = execute.load_spec(found.case.kernel)
    first = next(iter(found.configs))
    case = Case(found.case.kernel, "triton", found.case.direction, found.case.workload, first)
    function = compiler.launches_of(case, spec, _target())[0][0].function
    tuner, grid = tuned(found, triton.autotune if way == "triton" else autotuning.autotune, function)
    with launches.catch() as caught:
        execute.prepare(spec, case, "cuda")()
    given = {name: value for name, value in caught[0].arguments.items() if name not in found.configs[first]}
    import torch  # noqa: PLC0415

    torch.cuda.synchronize()
    began = time.perf_counter()
    tuner[grid](**given)
    torch.cuda.synchronize()
    seconds = time.perf_counter() - began
    lanes = getattr(getattr(tuner, "search", None), "lanes", ())
    return {
        "seconds": seconds,
        "config": tuner.texts[_key(tuner.best_config.all_kwargs(), found)],
        "timed": sum(bool(lane.samples) for lane in lanes) or len(found.configs),
    }


def exhaustive(found: Problem) -> dict[str, float]:
    """The median GPU time of every config that can be launched, in seconds."""
    from tilescope.execution import execute  # noqa: PLC0415
    from tilescope.tuning import autotuning  # noqa: PLC0415

    spec, medians = execute.load_spec(found.case.kernel), {}
    for text in found.configs:
        case = Case(found.case.kernel, "triton", found.case.direction, found.case.workload, text)
        try:
            assert parse_config(text)  # noqa: S101 - a config of the catalog
            medians[text] = statistics.median(autotuning.cold_times(execute.prepare(spec, case, "cuda"), _SAMPLES))
        except Exception as error:
            print(f"{case.id}: {type(error).__name__}", file=sys.stderr)
    return medians


def _target() -> str:
    here = device.detect()
    return here.target if here else "sm_90"


def _process(arguments: Sequence[str], caches: Path) -> Any:
    """What a process of this file with these arguments answers, its caches in a folder."""
    variables = {"TRITON_CACHE_DIR": str(caches / "triton"), "TILESCOPE_TUNING": str(caches / "tuning.sqlite3")}
    done = subprocess.run(
        [sys.executable, __file__, *arguments],
        env={**os.environ, **variables},
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    return json.loads(done.stdout.splitlines()[-1])


def compare(number: int, trials: int, write: Callable[[str], object]) -> None:
    """Writes a line of the table for each trial of one problem."""
    for _ in range(trials):
        with tempfile.TemporaryDirectory() as theirs, tempfile.TemporaryDirectory() as ours:
            one = str(number)
            triton = _process(["--search", one, "triton"], Path(theirs))
            cold, warm = (_process(["--search", one, "tilescope"], Path(ours)) for _ in range(2))
            medians = _process(["--exhaustive", one], Path(ours))
        best = min(medians.values())
        regrets = [f"{medians[found['config']] / best - 1:.2%}" for found in (triton, cold)]
        kernel, direction, _ = PROBLEMS[number]
        write(
            f"| {kernel} {direction} | {len(medians)} | {cold['timed']} | {triton['seconds']:.2f} s | {cold['seconds']:.2f} s "
            f"| {triton['seconds'] / cold['seconds']:.1f}x | {warm['seconds']:.3f} s | {' | '.join(regrets)} |"
        )


def main(argv: Sequence[str] | None = None, write: Callable[[str], object] = print) -> int:
    """Compares the two on every problem. Status 2 where there is no GPU to time on."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--trials", type=int, default=1, help="how often each search is made")
    parser.add_argument("--search", nargs=2, metavar=("NUMBER", "WAY"), help=argparse.SUPPRESS)
    parser.add_argument("--exhaustive", metavar="NUMBER", help=argparse.SUPPRESS)
    arguments = parser.parse_args(argv)
    if number := arguments.exhaustive or (arguments.search or [None])[0]:
        found = problem(*PROBLEMS[int(number)], _target())
        write(json.dumps(search(found, arguments.search[1]) if arguments.search else exhaustive(found)))
        return 0
    known = device.versions()
    here = device.detect()
    write(
        f"{here.name if here else 'no GPU'}, {len(os.sched_getaffinity(0))} CPU cores ({platform.machine()}), "
        f"{datetime.now(UTC):%Y-%m-%d}; " + ", ".join(f"{n} {v}" for n, v in known.items() if n != "tilescope")
    )
    if reason := device.unavailable():
        for kernel, direction, workload in PROBLEMS:
            found = problem(kernel, direction, workload, _target())
            write(f"{found.name}: {len(found.configs)} configs")
        write(f"nothing can be timed here: {reason}")
        return 2
    write(
        "| problem | configs | timed | triton.autotune | tilescope, cold | quicker | warm | regret, triton | regret, tilescope |"
    )
    write("|---|---|---|---|---|---|---|---|---|")
    for number, _ in enumerate(PROBLEMS):
        compare(number, arguments.trials, write)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
