"""Activity of the GPU over the time of each launch, by the Nsight Compute CLI's sampling of performance monitors (PM sampling).

Not part of ``auto``: the passes are additional to those of the ``ncu`` collector, whose worker and ranges these are. ncu samples the whole
chip, before, during and after the launch, in intervals that it chooses for the chip.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import pandas as pd

from tilescope.collectors.ncu import counters, ncu_csv
from tilescope.collectors.ncu.counters import capture, environment, explain, finish, unavailable  # noqa: F401 - as in ``ncu``
from tilescope.files import bounded_reading
from tilescope.table import schema
from tilescope.table.case import Case

SUFFIX = counters.SUFFIX
#: Ends of the names of counters; the start of a name depends on the chip. Shares are in percent of the peak of elapsed cycles.
ISSUED, PER_CYCLE = (
    "sm__inst_executed_realtime.avg.pct_of_peak_sustained_elapsed",
    "sm__inst_executed_realtime.avg.per_cycle_active",
)
_SHARES = {
    "tensor cores": "sm__pipe_tensor_cycles_active_realtime.avg.pct_of_peak_sustained_elapsed",
    "HBM": "dramc__throughput.avg.pct_of_peak_sustained_elapsed",
}
INTERVAL = "profiler__pmsampler_interval_time"
#: Most instructions that a multiprocessor issues in a cycle.
_ISSUES = 4
#: Units of the chip, and the columns of ``samples``.
UNITS = ("SMs", *_SHARES)
COLUMNS = ("launch", "function", "unit", "time", "share")


def command(argv: Sequence[str], folder: Path) -> list[str]:
    """The worker's command line under ncu. Clocks, caches and ranges as in ``ncu``. Raises NcuError where there is no ncu."""
    return counters.wrapped(argv, folder, "raw", "--section", "PmSampling", "--print-metric-instances", "values")


def parse(artefact: Path, case: Case) -> pd.DataFrame:
    """No rows: samples have times, which the run's table has not. Reads the artefact all the same. Raises ValueError for a damaged one."""
    samples(artefact)
    return schema.frame([])


@bounded_reading.parser
def samples(artefact: Path) -> pd.DataFrame:
    """A row for each unit of ``UNITS`` and sample of each launch: seconds since the launch began to run, and the share of the peak in use.

    The share of ``SMs`` is that of the cycles in which a multiprocessor had a warp. A launch without samples has no rows.
    """
    tables = ncu_csv.raw_pages(bounded_reading.text(bounded_reading.content(artefact)))
    rows = [row for table in tables for row in table.records()]
    found = [part for launch, printed in enumerate(rows) for part in _of_launch(launch, printed)]
    return pd.concat(found, ignore_index=True) if found else pd.DataFrame(columns=list(COLUMNS))


def _of_launch(launch: int, printed: dict[str, str]) -> Iterator[pd.DataFrame]:
    interval, issued, per_cycle = (_values(printed, name) for name in (INTERVAL, ISSUED, PER_CYCLE))
    if not len(interval) or not len(issued) or len(issued) != len(per_cycle) or not per_cycle.any():
        return
    # Instructions of elapsed cycles over those of active ones.
    active = np.divide(issued / 100 * _ISSUES, per_cycle, out=np.zeros_like(issued), where=per_cycle > 0)
    ran = np.flatnonzero(active)
    series = {"SMs": active, **{unit: _values(printed, name) / 100 for unit, name in _SHARES.items()}}
    for unit, values in series.items():
        own = values[ran[0] : ran[-1] + 1]
        # A unit that was sampled in another replay has another number of samples.
        if len(own) and len(values) == len(active):
            times = np.arange(len(own)) * interval[0] * 1e-9
            shares = {"time": times, "share": own.clip(0, 1)}
            yield pd.DataFrame({"launch": launch, "function": printed["Kernel Name"], "unit": unit, **shares})


def _values(printed: dict[str, str], name: str) -> np.ndarray:
    """The parts of a counter whose name ends so: ncu prints them in parentheses, after the total."""
    cell = next((text for counter, text in printed.items() if counter.endswith(name)), "")
    parts = cell.rpartition("(")[2].rstrip(")").split(";")
    numbers = [ncu_csv.number(part) for part in parts]
    return np.array([value for value in numbers if value is not None])
