"""The recorded sweeps, and the times of a kernel's configs in them. Imports neither torch nor triton."""

from __future__ import annotations

from collections.abc import Iterator

from tilescope.runs import changes, store
from tilescope.table.case_table import gather

#: The columns that cases of one sweep share.
OF_SWEEP = ("kernel", "impl", "pass", "workload")
#: How the titles of their runs end, after the family.
_TITLE = ": autotune sweeps"


def runs(kernel: str = "") -> Iterator[tuple[str, store.LoadedRun]]:
    """The recorded runs of sweeps in the order of their folders, each with its family: all, or those of one kernel."""
    known = store.list_runs([store.recorded_dir()])
    for summary in sorted(known, key=lambda one: one.path):
        if summary.title.endswith(_TITLE) and (not kernel or kernel in summary.kernels):
            yield summary.title.removesuffix(_TITLE), store.open_run(summary.path)


def times(kernel: str, impl: str, direction: str, workload: str, *, target: str) -> tuple[dict[str, float], str]:
    """The recorded GPU time in seconds of each config of one sweep, and where: ``on NVIDIA H200``, and whether the code changed since.

    The default's config is empty. No GPU of the ``target`` may have recorded the sweep: both are empty then.
    """
    sweep = (kernel, impl, direction, workload)
    for _, loaded in runs(kernel):
        cases = [case for case in gather(loaded.table) if sweep == tuple(case.key[part] for part in OF_SWEEP)]
        found = {case.key["config"]: time.value for case in cases if (time := case.gpu_time())}
        if found and loaded.run.device.target == target:
            changed = changes.Problem(kernel, direction, workload) in changes.changed_problems(loaded)
            return found, f"on {loaded.run.device.name}{', before the latest change of its code' if changed else ''}"
    return {}, ""
