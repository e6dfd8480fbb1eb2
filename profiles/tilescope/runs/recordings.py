"""Finds the recordings of a kernel and of sweeps, and pools the texts of source files. Imports neither torch nor triton."""

from __future__ import annotations

import json
import lzma
from collections.abc import Iterator
from pathlib import Path

from tilescope.files import atomic_writing
from tilescope.runs import changes, reader, store, writer
from tilescope.runs.summaries import Summary
from tilescope.table.case_table import gather
from tilescope.table.sources import COUNTERS

#: The columns that cases of one sweep share, and how the titles of recorded sweeps end, after the family.
OF_SWEEP, _SWEEPS = ("kernel", "impl", "pass", "workload"), ": autotune sweeps"


def of_kernel(kernel: str) -> list[Summary]:
    """The recordings of a kernel, newest first; those with GPU times and counters before the others.

    Raises StoreError where there is none.
    """
    every = [run for run in store.list_runs([store.recorded_dir()]) if not run.error]
    found = [run for run in every if kernel in run.kernels]
    if not found:
        raise store.StoreError(f"no recording of {kernel!r}: 'tilescope show' lists the recordings and their kernels")
    return sorted(found, key=lambda run: "torch_profiler" not in run.sources or not {*COUNTERS} & {*run.sources})


def sweeps(kernel: str = "") -> Iterator[tuple[str, store.LoadedRun]]:
    """The recorded runs of sweeps in the order of their folders, each with its family: all, or those of one kernel."""
    known = store.list_runs([store.recorded_dir()])
    for summary in sorted(known, key=lambda one: one.path):
        if summary.title.endswith(_SWEEPS) and (not kernel or kernel in summary.kernels):
            yield summary.title.removesuffix(_SWEEPS), store.open_run(summary.path)


def times(kernel: str, impl: str, direction: str, workload: str, *, target: str) -> tuple[dict[str, float], str]:
    """The recorded GPU time in seconds of each config of one sweep, and where: ``on NVIDIA H200``, and whether the code changed since.

    The default's config is empty. No GPU of the ``target`` may have recorded the sweep: both are empty then.
    """
    sweep = (kernel, impl, direction, workload)
    for _, loaded in sweeps(kernel):
        cases = [case for case in gather(loaded.table) if sweep == tuple(case.key[part] for part in OF_SWEEP)]
        found = {case.key["config"]: time.value for case in cases if (time := case.gpu_time())}
        if found and loaded.run.device.target == target:
            changed = changes.Problem(kernel, direction, workload) in changes.changed_problems(loaded)
            return found, f"on {loaded.run.device.name}{', before the latest change of its code' if changed else ''}"
    return {}, ""


def pool_texts(folder: Path) -> None:
    """Moves the texts of source files of the recordings in ``folder`` into one file beside them: kernels share files."""
    runs = [store.open_run(run.path) for run in store.list_runs([folder]) if not run.error]
    texts = {writer.digest(text): text for one in runs for files in one.sources.values() for text in files.values()}
    packed = lzma.compress(json.dumps(dict(sorted(texts.items()))).encode(), preset=9)
    atomic_writing.replace(folder / reader.POOL, lambda to: to.write_bytes(packed))
    for one in runs:
        if any(one.sources.values()):
            writer.write_sources(one.sources, one.folder / "sources.json.gz", pooled=True)
