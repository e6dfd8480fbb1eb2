"""Records kernels of the catalog: in parts that run beside one another, and that are joined into recordings.

A part is a job with a run of its own in the working folder. A complete part is not run again, and an interrupted one is resumed.
One part needs no GPU. Each GPU of the host has parts of its own, for some of the kernels. Imports neither torch nor triton.
"""

from __future__ import annotations

import dataclasses
import os
import shutil
import signal
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from tilescope import collectors
from tilescope.files import user_cache
from tilescope.hardware import device
from tilescope.jobs import questions, supervisor
from tilescope.jobs.job import ON_GPU, OnEvent, WorkerError, patience
from tilescope.jobs.plan import Request, plan
from tilescope.jobs.supervisor import conditions
from tilescope.jobs.tuning import plan_tuning
from tilescope.runs import changes, publish, store
from tilescope.table import suggest
from tilescope.table.case import Case
from tilescope.table.run import Run

#: Collectors of a recording. Those of ``ONE_SIZE`` replay each launch many times: they run at one workload of each kernel.
COLLECTORS = (*collectors.COLLECTORS, "ncu_source")
ONE_SIZE = ("ncu", "ncu_source")
#: Kernels with counters by source line.
BY_LINE = frozenset({"matmul", "softmax", "layer_norm", "attention", "cross_entropy"})
#: Collectors that run in the parts of a GPU.
MEASURING = ON_GPU | {"check"}
#: Seconds that the GPU takes for a case beside its calls, the number of its calls with their rests, and their usual rates.
_CASE, _CALLS, _BYTES, _FLOPS = 0.4, 400, 3e12, 4e14
#: Versions that all parts of a recording have in common.
_COMMON = ("tilescope", "torch", "triton")
_Entry = dict[str, Any]


@dataclasses.dataclass(frozen=True)
class Choice:
    """What is recorded: families (empty: all), the fields of ``choices.chosen``, collectors (empty: all), or sweeps instead."""

    families: Sequence[str] = ()
    chosen: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    collectors: Sequence[str] = ()
    sweep: bool = False

    async def catalog(self) -> list[_Entry]:
        """The declarations of the chosen kernels. Raises ValueError for an unknown family."""
        every = await questions.describe()
        known = list(dict.fromkeys(entry["family"] for entry in every))
        for family in self.families:
            if family not in known:
                raise ValueError(suggest.unknown("family", family, known))
        names = [entry["kernel"] for entry in every if not self.families or entry["family"] in self.families]
        workloads = tuple(self.chosen.get("workloads", ()))
        families = {entry["kernel"]: entry["family"] for entry in every}
        found = await questions.describe(names, workloads, patience(self.chosen.get("settings", {})))
        return [{**entry, "family": families[entry["kernel"]]} for entry in found]

    def titles(self, catalog: Sequence[_Entry]) -> dict[str, list[str]]:
        """The title of each recording that is published, with its kernels: one a kernel, and one a family of sweeps."""
        titles: dict[str, list[str]] = {}
        for entry in catalog:
            name = Case(entry["kernel"], "", "", "").name
            title = f"{entry['family']}: autotune sweeps" if self.sweep else name
            titles.setdefault(title, []).append(name)
        return titles

    def needs_gpu(self) -> bool:
        """Whether a collector needs a GPU."""
        return not MEASURING.isdisjoint(self.collectors or COLLECTORS)

    def unavailable(self) -> dict[str, str]:
        """The collectors that are left out because they cannot run here, with the reason."""
        reasons = {
            name: collectors.load(name).unavailable() for name in COLLECTORS if not self.collectors and not self.sweep
        }
        return {name: reason for name, reason in reasons.items() if reason}

    def parts(self, catalog: Sequence[_Entry], share: int, of: int) -> list[Part]:
        """The parts of GPU ``share`` of ``of``, from 1, or the part without a GPU for share 0."""
        wanted = self.collectors or [name for name in COLLECTORS if name not in self.unavailable()]
        gpu = [name for name in wanted if name in MEASURING]
        mine = deal(catalog, of)[share - 1] if share else list(catalog)
        digest = user_cache.digest([self.families, self.chosen, self.collectors, self.sweep, share, of])[:8]
        asked: list[tuple[str, Sequence[str], list[_Entry]]]
        if self.sweep:
            asked = [(f"sweeps {share} of {of}", (), [entry for entry in mine if _configs(entry)])]
        elif not share:
            asked = [("without a GPU", [name for name in wanted if name not in gpu], mine)]
        else:
            by_line = [entry for entry in mine if entry["name"] in BY_LINE]
            asked = [
                (f"GPU {share} of {of}", [name for name in gpu if name not in ONE_SIZE], mine),
                (f"GPU {share} of {of}: ncu", [name for name in gpu if name == "ncu"], mine),
                (f"GPU {share} of {of}: ncu_source", [name for name in gpu if name == "ncu_source"], by_line),
            ]
        return [
            Part(f"{title} [{digest}]", tuple(names), entries, self)
            for title, names, entries in asked
            if entries and (names or self.sweep)
        ]


@dataclasses.dataclass(frozen=True)
class Part:
    """A job of a recording. ``title`` is its run's, and is the same whenever the same is recorded."""

    title: str
    collectors: Sequence[str]
    catalog: Sequence[_Entry]
    choice: Choice

    async def run(self, work: Path, on_event: OnEvent) -> Path:
        """Runs or resumes the part in the folder ``work``, or finds it complete there. Returns its run's folder."""
        before = found(work, self.title)
        if before and not store.read_run(before).complete:
            return await supervisor.resume(before, on_event)
        if before:
            _check_current(before)
            on_event({"event": "done", "folder": str(before), "run": before.name, "complete": True})
            return before
        kernels, chosen = tuple(entry["kernel"] for entry in self.catalog), dict(self.choice.chosen)
        if self.choice.sweep:
            job, _ = await plan_tuning(kernels, runs_dir=work, title=self.title, exhaustive=True, **chosen)
            return await supervisor.run(job, on_event)
        entries = list(self.catalog)
        # Not those of the recording before.
        chosen["settings"] = {**chosen.get("settings", {}), "renew_ceilings": True}
        if self.collectors[0] in ONE_SIZE:
            entries = [{**entry, "selected": [_one_size(entry)]} for entry in entries]
            chosen["workloads"] = tuple(dict.fromkeys(entry["selected"][0] for entry in entries))
            # A case of many launches takes minutes, and CUPTI has the bytes of the others.
            chosen["implementations"] = ("triton",)
        if "cupti" in self.collectors:
            # ncu has all counters, at one size.
            chosen["settings"]["one_pass"] = True
        request = Request(kernels, collectors=self.collectors, title=self.title, **chosen)
        return await supervisor.run(await plan(request, work, entries), on_event)


def deal(catalog: Sequence[_Entry], shares: int) -> list[list[_Entry]]:
    """The kernels of each GPU, for about as long. All implementations of a kernel are measured on one GPU."""
    dealt: list[list[_Entry]] = [[] for _ in range(shares)]
    for entry in sorted(catalog, key=_seconds, reverse=True):
        min(dealt, key=lambda share: sum(map(_seconds, share))).append(entry)
    return dealt


def visible() -> list[str]:
    """The GPUs that this process may use, as ``CUDA_VISIBLE_DEVICES`` names them."""
    if "CUDA_VISIBLE_DEVICES" in os.environ:
        return [name for name in os.environ["CUDA_VISIBLE_DEVICES"].split(",") if name.strip()]
    return [str(number) for number in range(device.count())]


def beside(commands: Sequence[tuple[Sequence[str], str]]) -> int:
    """Runs commands in processes beside one another, each with the GPU that it sees; empty for none.

    One without a GPU yields to the others, which time calls, and leaves them half of the cores. It sees no GPU, because a library that
    launches kernels by itself would launch them on tensors without data. Returns the highest exit status. An interruption ends all
    of them; each keeps its finished cases.
    """

    def stop(*_: object) -> None:
        raise KeyboardInterrupt

    signal.signal(signal.SIGTERM, stop)
    running = [
        subprocess.Popen(command if gpu else ["nice", *command], env={**os.environ, "CUDA_VISIBLE_DEVICES": gpu})
        for command, gpu in commands
    ]
    cores = sorted(os.sched_getaffinity(0))
    for process, (_, gpu) in zip(running, commands, strict=True):
        if not gpu and len(running) > 1:
            os.sched_setaffinity(process.pid, cores[len(cores) // 2 :])
    try:
        return max((abs(process.wait()) for process in running), default=0)
    except BaseException:
        for process in running:
            process.terminate()
        for process in running:
            process.wait()
        raise


def found(work: Path, title: str) -> Path | None:
    """The run of that title in a folder; the newest where there are several."""
    runs = [
        path
        for path in sorted(work.glob("*/"))
        if (path / "run.json").is_file() and store.read_run(path).title == title
    ]
    return max(runs, key=lambda path: path.name.removeprefix(store.PARTIAL), default=None)


def join(parts: Sequence[Path], work: Path) -> Path:
    """Writes the runs of these parts as one run. Raises WorkerError where one is not complete, of other code, or of other versions."""
    loaded = [store.open_run(path) for path in parts]
    for one in loaded:
        if not one.run.complete:
            raise WorkerError(f"{one.folder} is not complete: run the command again, which goes on with it")
        _check_current(one.folder)
        for name in _COMMON:
            if one.run.versions.get(name) != loaded[0].run.versions.get(name):
                raise WorkerError(f"{one.folder} was made with another {name}: make it again with this one")
    # The description of a run on a GPU counts, where there is one.
    first = max(loaded, key=lambda one: not MEASURING.isdisjoint(one.run.settings["collectors"]))
    runs = [one.run for one in loaded]
    used = dict.fromkeys(name for run in runs for name in run.settings["collectors"])
    about = dataclasses.replace(
        first.run, id=store.new_id(), started=min(run.started for run in runs), title="joined",
        kernels={name: _facts(name, runs) for run in runs for name in run.kernels},
        versions={name: said for run in reversed(runs) for name, said in run.versions.items()},
        settings={**first.run.settings, "collectors": list(used), "conditions": conditions(list(used), first.run.settings)},
        failures=tuple(dict.fromkeys(one for run in runs for one in run.failures)),
        notes=tuple(dict.fromkeys(note for run in runs for note in run.notes)),
        skipped=tuple(dict.fromkeys(one for run in runs for one in run.skipped)),
    )  # fmt: skip
    with store.RunWriter(work, about) as writer:
        for one in loaded:
            _copy(one, writer)
        table = pd.concat([one.table for one in loaded], ignore_index=True)
        # Each part has the costs of its cases.
        again = table.drop(columns="run_id").duplicated() & (table["source"] == store.MODEL)
        writer.append(table[~again])
        return writer.finish()


def publish_each(joined: Path, titles: Mapping[str, Sequence[str]], folder: Path) -> tuple[list[Path], list[Path]]:
    """Publishes the run's kernels under their titles, and removes the recordings in ``folder`` that these replace.

    A recording is replaced if it is of the same kind, sweeps or not, and all its kernels are published with all its
    collectors. Returns the folders of both.
    """
    loaded = store.open_run(joined)
    titles = {title: [name for name in names if name in loaded.run.kernels] for title, names in titles.items()}
    former = [run for run in store.list_runs([folder]) if not run.error]
    new = []
    for title, kernels in titles.items():
        if kernels:
            own = dataclasses.replace(loaded, run=dataclasses.replace(loaded.run, id=store.new_id()))
            new.append(publish.publish(own, folder, kernels, title))
    sweeps = {"sweep" in title for title in titles}
    gone = [
        run.path for run in former if ("sweep" in run.title) in sweeps and _holds(loaded.run, store.read_run(run.path))
    ]
    for path in gone:
        shutil.rmtree(path)
    return new, gone


def _holds(run: Run, former: Run) -> bool:
    """Whether a run has all kernels and collectors of a former one. A model's step has none of these."""
    used, wanted = (set(each.settings.get("collectors", ())) for each in (run, former))
    return bool(wanted) and run.kernels.keys() >= former.kernels.keys() and used >= wanted


def _facts(kernel: str, runs: Sequence[Run]) -> Mapping[str, Any]:
    """The kernel's facts in these runs. Each run has the digests of the functions that it saw."""
    known = [run.kernels[kernel] for run in runs if kernel in run.kernels]
    functions = {name: digest for facts in known for name, digest in facts.get("functions", {}).items()}
    return {**known[-1], "functions": functions}


def _copy(one: store.LoadedRun, writer: store.RunWriter) -> None:
    """Copies a part's lines, texts, configs and listings."""
    for kernel in one.run.kernels:
        writer.append_lines(kernel, one.lines[one.lines["kernel"] == kernel], one.sources.get(kernel, {}))
    writer.append_configs(one.configs)
    if (one.folder / "artefacts" / "compiler").is_dir():
        shutil.copytree(one.folder / "artefacts" / "compiler", writer.artefact_folder("compiler"), dirs_exist_ok=True)


def _check_current(folder: Path) -> None:
    if changed := changes.changed_files(store.read_run(folder)):
        raise WorkerError(
            f"the code of {', '.join(changed)} has changed since {folder} was made: remove it to make it again"
        )


def _seconds(entry: _Entry) -> float:
    """Roughly how long a GPU takes for a kernel's cases: so long for each, and for the calls of its declared cost."""
    found = 0.0
    for workload in entry["selected"] or [size["id"] for size in entry["workloads"]]:
        found += sum(_CASE + _CALLS * _call(entry, workload, direction) for direction in entry["passes"])
    return found * len(entry["implementations"])


def _call(entry: _Entry, workload: str, direction: str) -> float:
    """Roughly how many seconds the GPU takes for a call."""
    cost = entry["cost"].get(workload, {}).get(direction, {})
    moved = cost.get("bytes_read", 0) + cost.get("bytes_written", 0)
    return float(max(moved / _BYTES, cost.get("flops", 0) / _FLOPS))


def _configs(entry: _Entry) -> bool:
    return any(declared["configs"] for declared in entry["implementations"].values())


def _one_size(entry: _Entry) -> str:
    """The workload at which a kernel's launches are replayed: the longest, which represents the kernel (``summary.representative``)."""
    sizes = entry["selected"] or [size["id"] for size in entry["workloads"]]
    return str(max(sizes, key=lambda size: _call(entry, size, entry["passes"][0])))
