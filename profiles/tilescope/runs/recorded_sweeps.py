"""Times of a kernel's configs from the recordings. Imports neither torch nor triton."""

from __future__ import annotations

from tilescope.runs import changes, store
from tilescope.table.case_table import gather

_OF_SWEEP = ("kernel", "impl", "pass", "workload")


def times(kernel: str, impl: str, direction: str, workload: str, *, target: str) -> tuple[dict[str, float], str]:
    """The recorded GPU time in seconds of each config of one sweep, and where: ``on NVIDIA H200``, and whether the code changed since.

    The default's config is empty. No GPU of the ``target`` may have recorded the sweep: both are empty then.
    """
    sweep = (kernel, impl, direction, workload)
    for summary in store.list_runs([store.recorded_dir()]):
        if kernel not in summary.kernels or "sweep" not in summary.title:
            continue
        loaded = store.open_run(summary.path)
        cases = [case for case in gather(loaded.table) if sweep == tuple(case.key[part] for part in _OF_SWEEP)]
        found = {case.key["config"]: time.value for case in cases if (time := case.gpu_time())}
        if found and loaded.run.device.target == target:
            changed = changes.Problem(kernel, direction, workload) in changes.changed_problems(loaded)
            return found, f"on {loaded.run.device.name}{', before the latest change of its code' if changed else ''}"
    return {}, ""
