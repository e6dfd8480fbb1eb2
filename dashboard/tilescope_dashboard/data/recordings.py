"""The best recording for each question about a kernel among all runs: its counters, its sweep, its source lines."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass
from typing import NamedTuple

from tilescope.models import sweeps
from tilescope.runs import store
from tilescope.table import sources

from tilescope_dashboard.data.best_run import best_run
from tilescope_dashboard.data.run_cache import changed_kernels, open_cached

#: Returns something true if the run has what is sought of the kernel with that name.
Found = Callable[[store.LoadedRun, str], object]


class Question(NamedTuple):
    """A test of runs. Where ``sources`` are named, a run with none of them fails without being read."""

    found: Found
    sources: tuple[str, ...] = ()


@dataclass(frozen=True)
class Recording:
    """A run that answers a question, with its entry in the list of runs."""

    summary: store.Summary
    loaded: store.LoadedRun

    @property
    def origin(self) -> str:
        """The origin of the numbers: ``softmax, recorded 2026-11-23 on NVIDIA H200``."""
        run = self.summary
        kind = "recorded" if run.recorded else "measured" if run.measured else "predicted"
        where = "on" if run.measured else "for"
        return f"{run.title or run.id}, {kind} {run.started[:10]} {where} {run.device}".strip()

    def origin_of(self, kernel: str) -> str:
        """``origin``, with a remark if the kernel's code has changed since."""
        return (
            f"{self.origin}, changed since it was recorded" if kernel in changed_kernels(self.loaded) else self.origin
        )


def best(runs: Iterable[store.Summary], kernel: str, question: Question, device: str = "") -> Recording | None:
    """The best recording (``best_run``) that answers the ``question``, on the GPU named ``device`` if possible; None without one."""
    needed, found = set(question.sources), question.found
    able = [run for run in runs if not needed or needed & set(run.sources)]
    here = [run for run in able if device and run.device == device]
    elsewhere = [run for run in able if run not in here]
    summary = having(here, kernel, found) or having(elsewhere, kernel, found)
    return Recording(summary, open_cached(summary.path)) if summary else None


def best_other(run: store.LoadedRun, kernel: str, question: Question) -> Recording | None:
    """As ``best``, among the recordings shipped with Tilescope other than ``run``."""
    others = [one for one in store.list_runs([store.recorded_dir()]) if one.id != run.run.id]
    return best(others, kernel, question, run.run.device.name)


def having(runs: Iterable[store.Summary], kernel: str, found: Found) -> store.Summary | None:
    """The best run (``best_run``) for which ``found`` is true; None without one."""
    left = list(runs)
    while (run := best_run(left, kernel)) is not None:
        try:
            if found(open_cached(run.path), kernel):
                return run
        except (store.StoreError, OSError):
            pass  # a damaged run
        left.remove(run)
    return None


def every(runs: Iterable[store.Summary], kernel: str, device: str = "") -> list[Recording]:
    """All readable recordings of the kernel, oldest first; on the GPU called ``device`` only, if it is given."""
    known = [run for run in runs if not run.error and kernel in run.kernels and device in ("", run.device)]
    found = []
    for run in sorted(known, key=lambda run: (run.started, run.id)):
        try:
            found.append(Recording(run, open_cached(run.path)))
        except (store.StoreError, OSError):
            continue  # a damaged run
    return found


def rows_of(metrics: Collection[str] = ()) -> Found:
    """A test whether a run has rows of the kernel with one of these metrics, or with any if none is named."""

    def found(run: store.LoadedRun, kernel: str) -> bool:
        known = run.table.loc[run.table["kernel"] == kernel, "metric"]
        return bool(known.isin(metrics).any() if metrics else len(known))

    return found


def with_sweep(run: store.LoadedRun, kernel: str) -> bool:
    """Whether the run has a sweep of the kernel."""
    return sweeps.size(run.table, kernel) > 1


def with_lines(run: store.LoadedRun, kernel: str) -> bool:
    """Whether the run has source lines of the kernel."""
    return kernel in set(run.lines["kernel"])


def with_measured(run: store.LoadedRun, kernel: str) -> bool:
    """Whether the run has source lines of the kernel with values measured on a GPU."""
    return bool(run.lines.loc[run.lines["kernel"] == kernel, "source"].isin(sources.MEASURED).any())


ANYTHING = Question(rows_of())
#: Metrics that only hardware counters give.
COUNTERS = Question(rows_of(("sm_throughput", "dram_throughput", "l2_bytes", "dram_bytes_read")), sources.COUNTERS)
SWEEP, LINES, MEASURED_LINES = Question(with_sweep), Question(with_lines), Question(with_measured)
