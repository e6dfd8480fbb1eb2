"""Runs to be mutated, and all that reads them. What is not told in one line, within its time, in little memory, is a crash."""

import contextlib
import functools
import gzip
import importlib
import io
import json
import lzma
import os
import random
import re
import shutil
import signal
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import mutations
import pandas as pd
from tilescope import cli, collectors
from tilescope.files import atomic_writing
from tilescope.models import summary, text_table
from tilescope.notebook import opening
from tilescope.runs import journal, listings, store
from tilescope.table import launch_configs, line_values, schema
from tilescope.table.case import Case
from tilescope.table.run import Run

FIXTURES = Path(__file__).parents[1] / "fixtures"
RECORDED = Path(__file__).parents[3] / "profiles" / "recorded"
#: A recording by every collector, with lines and listings.
RUN = next(s.id for s in store.list_runs([RECORDED]) if s.title == "cross_entropy")
#: Seconds of the processor that one mutant may take, and bytes that the process may come to.
SECONDS, MEMORY = 30, 3 << 30
#: Files of other tools, one or two a format.
FOREIGN = (
    "raw_37_metrics_h200.csv", "details_rules_h200.csv", "torch_profiler_trace.json", "foreign/proton_profile.hatchet",
    "foreign/tritonparse_events.ndjson", "foreign/autotuning_result_json_list.txt", "foreign/helion_autotune.csv",
    "foreign/flashinfer.perfetto-trace",
)  # fmt: skip
FORWARD = "forward"
GOOD, BAD = "20261120-000000-aaaa", "20261121-000000-bbbb"


class Slow(BaseException):
    """A mutant took too long."""


class Crash(Exception):
    """A mutant was not told in one line."""


@contextlib.contextmanager
def limited() -> Iterator[None]:
    """Raises Slow when it takes too long, Crash when it takes too much."""

    def late(*_: object) -> None:
        raise Slow(f"more than {SECONDS} s")

    # The processor's time: on a machine with much else to do the clock says nothing. What waits for ever is not ended here.
    before = signal.signal(signal.SIGPROF, late)
    signal.setitimer(signal.ITIMER_PROF, SECONDS)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.signal(signal.SIGPROF, before)
    # Not ``ru_maxrss``, which begins with what the process held that started this one.
    most = int(re.search(r"VmHWM:\s+(\d+)", Path("/proc/self/status").read_text())[1]) * 1024
    if most > MEMORY:
        raise Crash(f"the process has come to {most >> 20} MiB")


def told(call: Callable[..., Any], *arguments: Any) -> Any:
    """What the call returns, or None where it says in one line what is wrong. Raises Crash for all else."""
    try:
        return call(*arguments)
    except ValueError as error:
        # Python's own are ValueErrors too: ours are of our modules.
        if not type(error).__module__.startswith("tilescope") and "cannot be read" not in str(error):
            raise Crash(f"{type(error).__name__}: {error}\n{traceback.format_exc()}") from error
        if "\n" in str(error) or not str(error):
            raise Crash(f"not one line: {str(error)!r}") from error
        str(error).encode()
        return None
    except (FileNotFoundError, Slow):
        if call.__name__.startswith("parse"):
            return None
        raise
    except Exception as error:
        raise Crash(f"{type(error).__name__}: {error}\n{traceback.format_exc()}") from error


def command(*arguments: str) -> int:
    """The command's status. What it writes must be writable, and an error one line."""
    out, err = (io.TextIOWrapper(io.BytesIO(), encoding="utf-8") for _ in "oe")
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        status = cli.main(arguments)
    err.flush()
    said = err.buffer.getvalue().decode().splitlines()  # type: ignore[attr-defined]
    if status == cli.BAD_INPUT and len([line for line in said if not line.startswith("latest: ")]) != 1:
        raise Crash(f"not one line: {said}")
    return status


@functools.cache
def table() -> tuple[Run, pd.DataFrame, pd.DataFrame]:
    """A few cases of a recording, by every collector, and their lines."""
    loaded = store.open_run(RECORDED / RUN)
    kernel = next(iter(loaded.run.kernels))
    rows = loaded.table[loaded.table["kernel"] == kernel]
    rows = rows[(rows["workload"] == rows["workload"].iloc[0]) & rows["impl"].isin(["triton", "eager"])]
    # A mutant is worth more than what it is made of: two repetitions of two launches in one direction will do.
    rows = rows[(rows["pass"] == FORWARD) & (rows["sample"].isna() | (rows["sample"] < 2))]
    rows = rows[rows["launch"].isna() | (rows["launch"] < 2)]
    by_line = loaded.lines[(loaded.lines["kernel"] == kernel)].head(10)
    run = Run.from_json({**loaded.run.to_json(), "kernels": {kernel: loaded.run.kernels[kernel]}})
    return run, rows.reset_index(drop=True), by_line.reset_index(drop=True)


def cases() -> list[Case]:
    """The cases of ``table``."""
    columns = table()[1][["kernel", "impl", "pass", "workload", "config"]].drop_duplicates()
    return [Case(*values) for values in columns.itertuples(index=False, name=None)]


def described(name: str, complete: bool = True) -> dict[str, Any]:
    """The description of such a run."""
    failures = [{"case": cases()[0].id, "collector": "ncu", "message": "no", "detail": "Traceback"}]
    return {
        **table()[0].to_json(), "id": name, "complete": complete, "failures": failures,
        "notes": ["a remark", "another"],
    }  # fmt: skip


def write_run(runs: Path, name: str, half: bool = False) -> Path:
    """Writes a run, whole or half."""
    _, rows, by_line = table()
    run = Run.from_json(described(name))
    writer = store.RunWriter(runs, run)
    writer.plan(cases())
    writer.append(rows[rows["source"] == "model"], store.MODEL)
    for case in cases():
        for collector in ("check", "compiler", "torch_profiler", "ncu"):
            of = rows[(rows["source"] == collector) & (rows["impl"] == case.impl) & (rows["workload"] == case.workload)
                      & (rows["pass"] == case.direction)]  # fmt: skip
            writer.append(of, collector, case)
            writer.settle(journal.Settled(collector, case.id, "result"))
            artefact = writer.artefact_path(collector, case, collectors.load(collector).SUFFIX)
            artefact.write_bytes(sample(collector, case))
            launch_configs.write(artefact, case, [launch_configs.launched("k", {"BLOCK": 64}, None, ["BLOCK"])])
            if collector != "check":
                writer.append_configs(launch_configs.beside(artefact, case, collector))
    writer.append_lines(cases()[0].kernel, by_line, {"a.py": "def a():\n    return 1\n"})
    writer.settle(journal.Settled("ncu", cases()[-1].id, "skipped", "for a reason\u2028and another"))
    if half:
        writer.lock_file.close()
        return writer.folder
    listed = {cases()[0].id: [{"function": "k", "file": "a.py", "stages": {"ptx": "ret;", "sass": "EXIT"}}]}
    (writer.folder / "listings.json.xz").write_bytes(lzma.compress(json.dumps(listed).encode()))
    return writer.finish()


@functools.cache
def _listing() -> dict[str, Any]:
    """A launch as the compiler's listings have it, its SASS cut short."""
    kept = json.loads(lzma.decompress((RECORDED / RUN / "listings.json.xz").read_bytes()))
    launch = next(launch for launches in kept.values() if isinstance(launches, list) for launch in launches)
    return {**launch, "stages": {name: "\n".join(text.splitlines()[:80]) for name, text in launch["stages"].items()}}


@functools.cache
def _fixture(name: str) -> bytes:
    return (FIXTURES / name).read_bytes()


def sample(collector: str, case: Case) -> bytes:
    """An artefact as the collector writes it."""
    if collector == "events":
        data: Any = {"repetitions": 2, "warmup": 1, "rotate": 3, "notes": ["a"], "flush_bytes": 1, "peak_memory": 10,
                     "interval": [1e-6, 2e-6], "graph_time": [1e-6, 1e-6]}  # fmt: skip
    elif collector == "check":
        data = {"source": "check", "dtype": "fp32", "errors": {"output 0": 1e-7, "gradient of x": 2e-7}, "tolerance": 1e-5,
                "torch": "2", "triton": "3"}  # fmt: skip
    elif collector == "compiler":
        figures = {"registers": 32, "shared_memory": 1024, "block_threads": 128, "barriers": 1, "grid_blocks": 64, "stack_bytes": 0,
                   "spill_bytes_stored": 0, "spill_bytes_loaded": 0, "widest_load": 16, "compile_time": 0.5}  # fmt: skip
        moved = {"operation": "local_load", "line": 3, "shape": [4, 32], "bits": 32, "registers": [[1, 0], [2, 0]],
                 "lanes": [[0, 1], [0, 2], [0, 4], [0, 8], [0, 16]], "warps": [], "shared": {"order": [1, 0]}}  # fmt: skip
        launch = {**_listing(), **figures, "grid": [8, 8, 1], "config": {"num_warps": 4}, "constants": {"scale": None}}
        launch["transfers"] = [moved, {**moved, "shared": {"kind": "tiles", "swizzle": 128}}]
        data = {"target": "sm_90", "launches": [launch], "sources": {"a.py": "def a():\n    return 1\n"}, "torch": "2"}
    elif collector == "interpreter":
        counted = {"requested_bytes_read": 64, "requested_bytes_written": 64, "unique_bytes_read": 64, "unique_bytes_written": 64,
                   "sector_efficiency_read": 1.0, "sector_efficiency_written": 0.5, "requested_flops": 10}  # fmt: skip
        by_line = {"3": {"requested_bytes_read": 64, "sectors_read": 2}, "4": {"requested_bytes_written": 64}}
        launch = {
            "function": "k", "file": "a.py", "grid": [8], "config": {}, "constants": {"n": None}, "lines": by_line,
            **counted,
        }  # fmt: skip
        data = {
            "launches": [launch, {"function": "aten.add", "requested_bytes_read": 4}],
            "sources": {"a.py": "x = 1\n"},
        }
    elif collector == "cupti":
        counted = {"gpu__time_duration.sum": 5000.0, "dram__bytes_read.sum": 64.0, "dram__bytes_write.sum": 0.0}
        data = {"chip": "GH100", "capability": "9.0", "cupti": "130001", "passes": 1, "flush_bytes": 1,
                "launches": [{"function": "k", "counters": counted}, {"function": "l", "counters": {}}]}  # fmt: skip
    elif collector == "race":
        figures = {"function": "k", "target": "sm_90", "block_threads": 128, "shared_memory": 1024, "registers": 32, "barriers": 1,
                   "spill_bytes_stored": 0, "stack_bytes": 0, "grid_blocks": 64, "compile_time": 0.5}  # fmt: skip
        problem = {"kernel": "k/triton", "digest": "d", "shape": "(1,)", "device": "GPU", "uuid": "u", "versions": "v"}
        data = {"config": "BLOCK=64", "samples": [1e-6, 2e-6, 1e-6], "reason": "", "at": "2026-11-25T00:00:00+00:00", "sm_clock": 1.9e9,
                "remembered": False, "problem": problem, "checked": {"relative_error": 1e-7, "tolerance": 1e-5}, "kernels": [figures],
                "launches": [{"function": "k", "digest": "d", "arguments": {"n": 1}}]}  # fmt: skip
    elif collector == "energy":
        data = {"energy": 0.5, "power": 650.0, "power_limit": 700.0, "sm_clock": 1.7e9}
    elif collector == "ncu_rules":
        rule = {"launch": 0, "function": "k", "section": "s", "name": "SOLBottleneck", "kind": "OPT", "text": "do",
                "speedup": 0.5, "scope": "global"}  # fmt: skip
        data = {"case": case.to_json(), "rules": [rule, {**rule, "speedup": None}]}
    else:
        name = {"ncu": "raw_37_metrics_h200.csv", "ncu_source": "source_cuda_sass_h200.csv.gz",
                "ncu_activity": "pm_sampling_h200.csv.gz", "torch_profiler": "torch_profiler_trace.json", "lanes": "lanes/product.trace.json.gz"}[collector]  # fmt: skip
        found = _fixture(name)
        return found if found[:2] == b"\x1f\x8b" else gzip.compress(found, mtime=0)
    raw = json.dumps(data).encode()
    return gzip.compress(raw, mtime=0) if collectors.load(collector).SUFFIX.endswith(".gz") else raw


def run_mutant(rng: random.Random, place: Path) -> None:
    """A run with one file that is not as it was, beside one that is."""
    from tilescope_dashboard.data import run_cache
    from tilescope_dashboard.topics import overview

    runs = place / "runs"
    victim = place / "victim"
    victim.mkdir()
    shutil.copytree(base(), runs)
    folder = runs / BAD
    files = sorted(path for path in folder.rglob("*") if path.is_file() and path.parent == folder)
    chosen = rng.choice([folder / "run.json"] * 4 + [folder / "table.parquet"] * 3 + files)
    mutations.file(rng, chosen)
    listed = {found.path.name: found for found in store.list_runs([runs])}
    if listed[GOOD].error or "\n" in listed.get(BAD, listed[GOOD]).error:
        raise Crash(f"the list says {listed}")
    told(run_cache.claimed, folder)
    told(overview.listing, list(listed.values()))
    told(command, "show", BAD)
    more = (["show"], ["show", BAD, "--json"], ["publish", BAD, "--into", str(place / "into")], ["advise", BAD])
    told(command, *rng.choice(more))
    if not victim.is_dir():
        raise Crash("a folder outside is gone")
    loaded = told(store.open_run, folder)
    if loaded is None or BAD not in listed or listed[BAD].error:
        return
    told(summary.summarise, loaded.table, loaded.run.device, loaded.run.kernels, loaded.configs)
    told(lambda: loaded.lines)
    told(lambda: loaded.sources)
    told(lambda: [loaded.source_text(name, "a.py") for name in loaded.run.kernels])
    for case in cases()[:2]:
        told(listings.of_case, folder, case)
    seen = told(run_cache.open_cached, folder)
    if seen is not None:
        told(run_cache.summaries, seen)
        told(run_cache.claimed, folder)


def artefact_mutant(rng: random.Random, place: Path) -> None:
    """An artefact of one collector that is not as it was, to all that parses it."""
    from tilescope_dashboard.topics import layouts

    name = rng.choice((*collectors.COLLECTORS, *collectors.OPTIONAL))
    module, case = collectors.load(name), cases()[0]
    # ncu's lines are told apart by what the compiler said.
    for one in {name, "compiler"}:
        path = place / "artefacts" / one / f"{case.slug}{collectors.load(one).SUFFIX}"
        path.parent.mkdir(parents=True)
        path.write_bytes(sample(one, case))
    changed = "compiler" if name == "ncu_source" and rng.random() < 0.3 else name
    mutations.file(rng, place / "artefacts" / changed / f"{case.slug}{collectors.load(changed).SUFFIX}")
    artefact = place / "artefacts" / name / f"{case.slug}{module.SUFFIX}"
    found = told(module.parse, artefact, case)
    if found is not None:
        told(schema.validate, found)
    if hasattr(module, "parse_lines"):
        found = told(module.parse_lines, artefact, case)
        if found is not None:
            told(line_values.validate, found[0])
            json.dumps(found[1]).encode()
    for launch in told(listings.of_case, place, case) or ():
        for transfer in launch.transfers:
            layouts.elements(transfer), layouts.sentence(transfer)


def half_mutant(rng: random.Random, place: Path) -> None:
    """A run that was being written, with one to three files not as they were, to all that takes it up again."""
    runs = place / "runs"
    shutil.copytree(half_base(), runs)
    folder = runs / f"{store.PARTIAL}{BAD}"
    files = sorted(path for path in folder.rglob("*") if path.is_file() and "artefacts" not in path.parts)
    special = [folder / "run.json", folder / journal.FILE, *(folder / "parts").iterdir()]
    for _ in range(rng.choice((1, 1, 2, 3))):
        chosen = rng.choice(files + special * 2)
        if chosen.is_file() and not chosen.is_symlink() and chosen.stat().st_size < 1 << 24:
            mutations.file(rng, chosen)
    os.environ["TILESCOPE_RUNS"] = str(runs)
    listed = store.list_runs([runs])
    if any("\n" in found.error for found in listed):
        raise Crash(f"the list says {listed}")
    told(command, "show", "latest")
    told(journal.read, folder)
    found = told(store.find_interrupted, "latest")
    if found is not None and rng.random() < 0.5:
        writer = told(store.RunWriter.reopen, found)
        if writer is not None:
            told(lambda: writer.rows)
            known = told(journal.read, writer.folder)
            if known is not None and not known.cases and not known.settled:
                raise Crash("a journal of nothing")
            told(writer.append, writer.rows.head(3), "compiler", cases()[0])
            writer.lock_file.close()
    told(command, "recover", "latest")
    told(store.list_runs, [runs])


def foreign_mutant(rng: random.Random, place: Path) -> None:
    """Another tool's file that is not as it was, to all that makes a run of it and shows that."""
    name = rng.choice(FOREIGN)
    path = place / Path(name).name.removesuffix(".gz")
    found = _fixture(name)
    path.write_bytes(gzip.decompress(found) if name.endswith(".gz") else found)
    mutations.file(rng, path)
    if path.is_file() and not path.is_symlink() and path.stat().st_size < 1 << 24 and rng.random() < 0.2:
        path.write_text(path.read_bytes().decode(errors="replace"), rng.choice(("utf-16", "utf-16-be", "utf-8-sig")))
    loaded = told(opening.open_file, path, place / "runs")
    if loaded is not None:
        told(schema.validate, loaded.table)
        told(text_table.text, loaded)
        told(command, "advise", str(loaded.folder))


def no_waiting() -> None:
    """What is written need not last: it is looked at at once."""
    atomic_writing.sync = lambda path: None


@functools.cache
def base() -> Path:
    """A folder with two whole runs."""
    return _made(lambda runs: [write_run(runs, name) for name in (GOOD, BAD)])


@functools.cache
def half_base() -> Path:
    """A folder with one that is half-written."""
    return _made(lambda runs: [write_run(runs, BAD, half=True)])


def _made(write: Callable[[Path], object]) -> Path:
    import tempfile

    runs = Path(tempfile.mkdtemp(prefix="tilescope-fuzz-"), "runs")
    write(runs)
    return runs


KINDS: dict[str, Callable[[random.Random, Path], None]] = {
    "run": run_mutant, "artefact": artefact_mutant, "half": half_mutant, "foreign": foreign_mutant,
}  # fmt: skip


def mutant(kind: str, seed: int, number: int, place: Path) -> str:
    """What is wrong with one mutant; empty where it is told as it should be."""
    rng = random.Random(f"{kind} {seed} {number}")  # noqa: S311 - to be had again
    os.environ["TILESCOPE_RUNS"] = str(place / "runs")
    base(), half_base()
    # Imported before the clock starts.
    importlib.import_module("tilescope_dashboard.topics.overview")
    try:
        with limited():
            KINDS[kind](rng, place)
    except (Crash, Slow) as error:
        return str(error)
    except Exception:
        return traceback.format_exc()
    return ""
