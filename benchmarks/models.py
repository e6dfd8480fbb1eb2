"""Times every kernel at the shapes of published models, beside its peers: ``python -m benchmarks.models --rows rows.jsonl``, on a GPU.

Worker processes first compile all rows side by side and compare results with the first peer's, each row in the process that will
time it. Then they take turns: each time is the GPU's busy time of a call with a cold L2, on two sets of random inputs in turn. Rows are
appended to the file as they come; run again, the command goes on with those that lack.

``--variants`` times ours alone, with and without each of the variants that serve it (``model_variants``), which shows what each gains.
``--table`` prints the tables of stored rows, and ``--json`` prints them as JSON. ``--dropped`` times ours at sizes that dropped
variants served; with ``--table --beside before.jsonl`` it prints what they cost.
"""

from __future__ import annotations

import argparse
import contextlib
import csv
import dataclasses
import fcntl
import json
import math
import multiprocessing
import os
import random
import re
import statistics
import sys
import threading
import time
import traceback
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from benchmarks import measured, model_rows
from benchmarks.model_rows import PEERS, Row

OURS = "triton"
REPETITIONS = 12
#: Bytes of a row from which no two rows are prepared at once.
_LARGE = 3 * 10**9
#: Elements of a result that are compared at most.
_COMPARED = 2**25
#: Kernels that separate repetitions: see ``tilescope.execution.cold``.
_FLUSH, _REST = "read_zeros", "spin_kernel"


def specification(row: Row) -> Any:
    """The row's declaration with the row's inputs: weights as ``nn.Linear`` holds them, and what ``given`` adds."""
    from tilescope.execution import execute  # noqa: PLC0415 - not in the parent process

    from benchmarks import model_peers  # noqa: PLC0415

    spec = execute.load_spec(row.kernel)

    def inputs(workload: Any, device: Any) -> dict[str, Any]:
        drawn = {**spec.inputs(workload, device), **row.given}
        if row.kernel == "matmul":
            drawn["b"] = drawn["b"].detach().T.contiguous().T.requires_grad_(drawn["b"].requires_grad)
        return drawn

    more = model_peers.implementations(row.kernel)
    return dataclasses.replace(spec, inputs=inputs, implementations={**spec.implementations, **more})


def implementations(row: Row, spec: Any) -> list[str]:
    """Ours, then those of the row's peers that can be imported."""
    from tilescope.execution import execute  # noqa: PLC0415

    known = (name for name in PEERS[row.kernel][0].split() if name in spec.implementations)
    return [OURS, *(name for name in known if not execute.missing(spec.implementations[name]))]


def prepared(row: Row, spec: Any, name: str, rotate: int) -> Callable[[], Any]:
    """A call of an implementation."""
    from tilescope.execution import execute  # noqa: PLC0415
    from tilescope.table.case import Case  # noqa: PLC0415

    return execute.prepare(spec, Case(row.kernel, name, row.direction, row.workload), "cuda", rotate=rotate)


def error(results: Any, expected: Any) -> float:
    """The largest relative error, in norm, of parts of all results."""
    import torch  # noqa: PLC0415

    def part(result: Any) -> Any:
        flat = result.detach().reshape(-1)
        return flat[:: 1 + flat.numel() // _COMPARED].float()

    pairs = [(a, b) for a, b in zip(_several(results), _several(expected), strict=False) if isinstance(a, torch.Tensor)]
    worst = 0.0
    for a, b in pairs:
        if a.shape != b.shape:
            raise ValueError(f"shape {tuple(a.shape)}, not {tuple(b.shape)}")
        one, other = part(a), part(b)
        worst = max(worst, float((one - other).norm() / other.norm().clamp(min=1e-30)))
    return worst


def _several(results: Any) -> tuple[Any, ...]:
    return tuple(results) if isinstance(results, (tuple, list)) else (results,)


def busy(intervals: Iterable[tuple[int, int]]) -> float:
    """Microseconds in which at least one of the intervals (start, end), in nanoseconds, runs."""
    total, until = 0, 0
    for start, end in sorted(intervals):
        total += max(0, end - max(start, until))
        until = max(until, end)
    return total / 1e3


def groups(events: Iterable[tuple[int, int, str]]) -> list[list[tuple[int, int, str]]]:
    """Events (start, end, name) of the GPU after each flush, without what the GPU did before the first."""
    found: list[list[tuple[int, int, str]]] = []
    for event in sorted(events):
        if _FLUSH in event[2]:
            found.append([])
        elif found and _REST not in event[2]:
            found[-1].append(event)
    return found


def timed(calls: Mapping[str, Callable[[], Any]]) -> dict[str, tuple[float, list[str]]]:
    """By implementation: the median busy time of a call in microseconds, and its kernels."""
    import torch  # noqa: PLC0415
    from tilescope.execution import cold  # noqa: PLC0415
    from torch.profiler import ProfilerActivity, profile  # noqa: PLC0415

    flushes = {}
    for name, call in calls.items():
        call()
        flushes[name] = cold.Flush(cold.rest(call))
    torch.cuda.synchronize()
    with profile(activities=[ProfilerActivity.CUDA]) as profiler:
        for name, call in calls.items():
            # The profiler starts up during the first call.
            for _ in range(REPETITIONS + 1):
                flushes[name]()
                call()
        torch.cuda.synchronize()
    events = profiler.profiler.kineto_results.events()
    on_gpu = torch.autograd.DeviceType.CUDA
    seen = groups((e.start_ns(), e.start_ns() + e.duration_ns(), e.name()) for e in events if e.device_type() == on_gpu)
    if len(seen) != (REPETITIONS + 1) * len(calls):
        raise RuntimeError(f"{len(seen)} repetitions on the GPU, not {(REPETITIONS + 1) * len(calls)}")
    result = {}
    for place, name in enumerate(calls):
        own = seen[place * (REPETITIONS + 1) + 1 : (place + 1) * (REPETITIONS + 1)]
        kernels = [re.sub(r"^void |<.*|\(.*", "", event[2])[:60] for event in own[-1]]
        result[name] = statistics.median(busy((a, b) for a, b, _ in each) for each in own), kernels
    return result


def _line(reason: Exception) -> str:
    """The reason on one line."""
    return " ".join(f"{type(reason).__name__}: {reason}".split())[:300]


class Prepared:
    """A row whose kernels are compiled in this process. ``choices`` are the variants that served it."""

    def __init__(self, row: Row, alone: bool, variants: bool) -> None:
        from benchmarks import model_variants  # noqa: PLC0415

        self.row, self.spec = row, specification(row)
        self.names, self.failed = implementations(row, self.spec), {}
        self.choices: list[str] = []
        limit = 2 * self.spec.tolerance.get(row.workload.rpartition("-")[2], 0.01) or 1e-6
        expected: Any = None
        peers, self.names = [] if alone else self.names[1:], [OURS]
        for name in peers:
            try:
                results = prepared(row, self.spec, name, 1)()
            except Exception as reason:
                self.failed[name] = _line(reason)
                continue
            self.names.append(name)
            expected = results if expected is None else expected
        with model_variants.watched() as chosen:
            results = prepared(row, self.spec, OURS, 1)()
        if expected is not None and not (wrong := error(results, expected)) <= limit:
            raise ValueError(f"differs from {self.names[1]} by {wrong:.2g}, more than {limit:.2g}")
        if variants:
            for variant in chosen:
                with model_variants.without(variant):
                    try:
                        prepared(row, self.spec, OURS, 1)()
                        self.choices.append(variant)
                    except Exception as reason:
                        self.failed[f"without {variant}"] = _line(reason)

    def measured(self) -> dict[str, Any]:
        """What is stored of the row."""
        from benchmarks import model_variants  # noqa: PLC0415

        found = timed({name: prepared(self.row, self.spec, name, 2) for name in self.names})
        without = {}
        for variant in self.choices:
            with model_variants.without(variant):
                without[variant] = timed({OURS: prepared(self.row, self.spec, OURS, 2)})[OURS]
        return {
            "times": {name: round(took, 3) for name, (took, _) in found.items()},
            "kernels": found[OURS][1],
            "without": {
                name: {"time": round(took, 3), "kernels": kernels} for name, (took, kernels) in without.items()
            },
            "failed": self.failed,
        }


def store(path: Path, row: Row, result: Mapping[str, Any]) -> None:
    """Appends a row to the file."""
    line = {**dataclasses.asdict(row), "id": row.id, "family": row.family, **result}
    with path.open("a") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        file.write(json.dumps(line) + "\n")


def stored(path: Path) -> list[dict[str, Any]]:
    """The rows of a file, each as it came last; none without the file."""
    lines = path.read_text().splitlines() if path.exists() else []
    return list({row["id"]: row for row in map(json.loads, lines)}.values())


def work(tasks: Any, locks: tuple[Any, Any], ready: Any, ask: argparse.Namespace, began: float) -> None:
    """A worker process: prepares rows until there are no more or time is up, waits for the others, and times its own rows."""
    import torch  # noqa: PLC0415
    from tilescope.execution import execute  # noqa: PLC0415
    from torch.profiler import ProfilerActivity, profile  # noqa: PLC0415

    turn, large = locks
    torch.backends.cudnn.benchmark = True
    mine: list[Prepared] = []
    with profile(activities=[ProfilerActivity.CUDA]):
        torch.zeros(1, device="cuda")
    while (row := tasks.get()) is not None:
        if time.time() - began > ask.prepare:
            continue
        spec = execute.load_spec(row.kernel)
        bulk = spec.cost(spec.workload(row.workload), row.direction).bytes > _LARGE
        try:
            with large if bulk else contextlib.nullcontext():
                mine.append(Prepared(row, ask.variants or ask.dropped, ask.variants))
                torch.cuda.synchronize()
                torch.cuda.empty_cache()
        except Exception as reason:
            print(f"{row.id}: {traceback.format_exc(limit=-3)}", file=sys.stderr, flush=True)
            store(ask.rows, row, {"failed": {OURS: _line(reason)}})
            if not _works():
                # Nothing runs after an illegal access: another run takes the rows.
                mine = []
                break
    with contextlib.suppress(threading.BrokenBarrierError):
        ready.wait(max(1.0, began + ask.prepare + 60 - time.time()))
    for each in mine:
        if ask.variants and not each.choices:
            continue
        with turn:
            if time.time() - began > ask.seconds:
                return
            try:
                store(ask.rows, each.row, each.measured())
            except Exception as reason:
                store(ask.rows, each.row, {"failed": {OURS: _line(reason)}})
            torch.cuda.empty_cache()


def _works() -> bool:
    """Whether the GPU still takes work of this process."""
    import torch  # noqa: PLC0415

    try:
        torch.cuda.synchronize()
    except RuntimeError:
        return False
    return True


def run(ask: argparse.Namespace) -> None:
    """Times the rows that the file lacks."""
    began = time.time()
    done = {row["id"] for row in stored(ask.rows)}
    every = model_rows.dropped() if ask.dropped else model_rows.rows()
    left = [row for row in every if row.id not in done and re.search(ask.only, row.id)]
    random.Random(0).shuffle(left)  # noqa: S311 - so that few processes compile the same kernel at once
    os.environ.update(TORCHINDUCTOR_COMPILE_THREADS="1", OMP_NUM_THREADS="1")
    context = multiprocessing.get_context("spawn")
    tasks, count = context.Queue(), min(ask.processes, len(left))
    for row in [*left, *[None] * count]:
        tasks.put(row)
    shared = tasks, (context.Lock(), context.Lock()), context.Barrier(count), ask, began
    workers = [context.Process(target=work, args=shared) for _ in range(count)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    print(
        f"{len(left)} rows to do, {len(stored(ask.rows)) - len(done)} done in {time.time() - began:.0f} s",
        file=sys.stderr,
    )


def ratio(row: Mapping[str, Any]) -> float | None:
    """The time of the quickest peer over ours; None where one of them lacks."""
    times = row.get("times", {})
    peers = [took for name, took in times.items() if name != OURS]
    return min(peers) / times[OURS] if peers and OURS in times else None


def geometric_mean(values: Iterable[float]) -> float:
    """The geometric mean."""
    return math.exp(statistics.fmean(map(math.log, values)))


def summary(rows: Iterable[Mapping[str, Any]]) -> Iterator[dict[str, Any]]:
    """By model and family, and by family: the number of rows, the mean of the ratios, and the worst."""
    by: dict[tuple[str, str], list[tuple[float, str]]] = defaultdict(list)
    for row in rows:
        if (value := ratio(row)) is not None:
            for model in ("all", *row["models"]):
                by[model, row["family"]].append((value, row["id"]))
    for (model, family), values in by.items():
        worst, where = min(values)
        mean = geometric_mean(value for value, _ in values)
        yield {"model": model, "family": family, "rows": len(values), "mean": mean, "worst": worst, "where": where}


def gains(rows: Iterable[Mapping[str, Any]]) -> Iterator[dict[str, Any]]:
    """By variant: the time without it over the time with it, as the mean of the rows that it serves, of its family, and the best row."""
    rows = [row for row in rows if OURS in row.get("times", {})]
    sizes: dict[str, int] = defaultdict(int)
    by: dict[tuple[str, str], list[tuple[float, str]]] = defaultdict(list)
    for row in rows:
        sizes[row["family"]] += 1
        for variant, found in row.get("without", {}).items():
            by[variant, row["family"]].append((found["time"] / row["times"][OURS], row["id"]))
    for (variant, family), values in by.items():
        total = sum(math.log(value) for value, _ in values)
        best, where = max(values)
        yield {
            "variant": variant,
            "family": family,
            "rows": len(values),
            "mean": math.exp(total / len(values)),
            "family mean": math.exp(total / sizes[family]),
            "best": best,
            "where": where,
        }


def costs(rows: Iterable[Mapping[str, Any]], before: Iterable[Mapping[str, Any]]) -> Iterator[dict[str, Any]]:
    """By row of a dropped variant: the times without and with it."""
    earlier = {row["id"]: row["times"][OURS] for row in before if "times" in row}
    for row in sorted(rows, key=lambda row: (row["models"], row["id"])):
        if "times" in row and row["id"] in earlier:
            now, then = row["times"][OURS], earlier[row["id"]]
            yield {"variant": row["models"][0], "row": row["id"], "without": now, "with": then, "slower": now / then}


def markdown(rows: list[dict[str, Any]]) -> str:
    """A table of rows alike."""
    if not rows:
        return "no rows"
    shown = [[f"{value:.3f}" if isinstance(value, float) else str(value) for value in row.values()] for row in rows]
    lines = [list(rows[0]), ["---"] * len(rows[0]), *shown]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def tables(rows: list[dict[str, Any]]) -> dict[str, list[dict[str, Any]]]:
    """What is printed of stored rows."""
    slow = sorted((value, row["id"]) for row in rows if (value := ratio(row)) is not None and value < 0.95)
    failed = [(row["id"], name, said) for row in rows for name, said in row.get("failed", {}).items()]
    return {
        "families": sorted(summary(rows), key=lambda row: (row["model"] != "all", row["model"], row["mean"])),
        "slowest": [{"peer's time over ours": value, "row": name} for value, name in slow],
        "variants": sorted(gains(rows), key=lambda row: row["family mean"]),
        "failed": [{"row": row, "implementation": name, "reason": said} for row, name, said in failed],
    }


#: Tables of results that the documentation shows: by file, the title, the text, which of ``tables``, and its columns.
RESULTS = {
    "models": (
        "Shapes of published models",
        "`python -m benchmarks.models`: kernel durations at the shapes of ten models and two convolutional nets, cold L2, rotated inputs. "
        "Ratios are the fastest peer's time divided by ours: the geometric mean and the worst.",
        "families",
        ("family", "rows", "mean", "worst", "where"),
    ),
    "model_variants": (
        "What each variant of a kernel gains",
        "`python -m benchmarks.models --variants`: the time without a variant divided by the time with it, in the rows that it serves, in its "
        "family and at best. A variant stays that gains 3 % in its family or 10 % in a row.",
        "variants",
        ("variant", "family", "rows", "mean", "family mean", "best", "where"),
    ),
    "dropped_variants": (
        "What dropped variants cost",
        "`python -m benchmarks.models --dropped` with and without variants by which no model gains, at sizes that they served (µs).",
        "dropped",
        ("variant", "row", "without", "with", "slower"),
    ),
}


def publish(found: Mapping[str, list[dict[str, Any]]], provenance: str, folder: Path = measured.RESULTS) -> None:
    """Writes results for ``benchmarks.measured``. ``provenance``: where, when and versions, separated by semicolons."""
    about = dict(zip(("where", "when", "versions"), provenance.split("; "), strict=True))
    for name, (title, text, which, columns) in RESULTS.items():
        rows = [row for row in found.get(which, ()) if row.get("model", "all") == "all"]
        if rows:
            with folder.joinpath(f"{name}.csv").open("w", newline="") as file:
                file.writelines(f"# {key}: {value}\n" for key, value in {"title": title, "text": text, **about}.items())
                writer = csv.writer(file, lineterminator="\n")
                writer.writerow(columns)
                writer.writerows([f"{v:.3f}" if isinstance(v := row[c], float) else v for c in columns] for row in rows)


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--rows", type=Path, default=Path("model_rows.jsonl"), help="file of the rows (default: %(default)s)"
    )
    parser.add_argument("--table", action="store_true", help="print the tables of stored rows, and time nothing")
    parser.add_argument("--json", action="store_true", help="print JSON instead of Markdown")
    parser.add_argument(
        "--variants", action="store_true", help="time ours, with and without each variant that serves it"
    )
    parser.add_argument("--only", default="", metavar="REGEX", help="rows whose id matches, as 'matmul 16x'")
    parser.add_argument("--list", action="store_true", help="print the ids of the rows, and time nothing")
    parser.add_argument("--processes", type=int, default=max(1, min(14, (os.cpu_count() or 1) - 2)))
    parser.add_argument(
        "--prepare", type=float, default=240, help="seconds after which no row is prepared (default: 240)"
    )
    parser.add_argument("--seconds", type=float, default=480, help="seconds after which no row is timed (default: 480)")
    parser.add_argument("--dropped", action="store_true", help="time ours at sizes that dropped variants served")
    parser.add_argument(
        "--beside", type=Path, metavar="FILE", help="rows of --dropped of a library that has the variants"
    )
    parser.add_argument(
        "--publish", metavar="WHERE; WHEN; VERSIONS", help="store the tables for docs/measured.md instead"
    )
    ask = parser.parse_args(arguments)
    if ask.list:
        print("\n".join(row.id for row in model_rows.rows() if re.search(ask.only, row.id)))
        return 0
    if not ask.table:
        run(ask)
    found = {"dropped": list(costs(stored(ask.rows), stored(ask.beside)))} if ask.beside else tables(stored(ask.rows))
    if ask.publish:
        publish(found, ask.publish)
    elif ask.json:
        print(json.dumps(found, indent=1))
    else:
        for title, rows in found.items():
            print(f"\n## {title}\n\n{markdown(rows)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
