"""Finds the recordings of a kernel, and pools the texts of their source files. Imports neither torch nor triton."""

from __future__ import annotations

import json
import lzma
from pathlib import Path

from tilescope.files import atomic_writing
from tilescope.runs import reader, store, writer
from tilescope.runs.summaries import Summary

#: Sources of GPU times and of counters. A recording that has both tells the most of a kernel.
WHOLE = frozenset({"torch_profiler", "ncu"})


def of_kernel(kernel: str) -> list[Summary]:
    """The recordings of a kernel, newest first; those with GPU times and counters before the others.

    Raises StoreError where there is none.
    """
    every = [run for run in store.list_runs([store.recorded_dir()]) if not run.error]
    found = [run for run in every if kernel in run.kernels]
    if not found:
        raise store.StoreError(f"no recording of {kernel!r}: 'tilescope show' lists the recordings and their kernels")
    return sorted(found, key=lambda run: not {*run.sources} >= WHOLE)


def pool_texts(folder: Path) -> None:
    """Moves the texts of source files of the recordings in ``folder`` into one file beside them: kernels share files."""
    runs = [store.open_run(run.path) for run in store.list_runs([folder]) if not run.error]
    texts = {writer.digest(text): text for one in runs for files in one.sources.values() for text in files.values()}
    packed = lzma.compress(json.dumps(dict(sorted(texts.items()))).encode(), preset=9)
    atomic_writing.replace(folder / reader.POOL, lambda to: to.write_bytes(packed))
    for one in runs:
        if any(one.sources.values()):
            writer.write_sources(one.sources, one.folder / "sources.json.gz", pooled=True)
