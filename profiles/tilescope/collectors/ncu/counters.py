"""Hardware counters by the Nsight Compute CLI, which wraps the worker.

The worker warms a case up, then calls it once inside an NVTX range named after the case. ncu counts only inside such ranges and
prints the open ones with every launch, which assigns it to its case. They are start/end ranges, because a push/pop range does not
apply in the thread from which autograd launches.
"""

from __future__ import annotations

import gzip
import itertools
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from tilescope.collectors.ncu import ncu_csv
from tilescope.execution.not_applicable import NotApplicable
from tilescope.files import bounded_reading
from tilescope.hardware import device
from tilescope.table import absent, schema
from tilescope.table.case import Case
from tilescope.table.metrics import METRICS

SUFFIX = ".csv.gz"

#: ncu's output in the artefact folder while the worker runs, and its most bytes.
LOG = "ncu-log.txt"
LARGEST_LOG = bounded_reading.LARGEST
#: Prefix of the names of profiled ranges; the case's slug follows. In ncu's filter a name without a slash at its end means a
#: start/end range.
RANGE = "tilescope:"

_WARMUP = 3

_DRIVER = "this ncu does not fit the driver: install the Nsight Compute of the driver's CUDA version, or a newer driver"
#: Messages for two obstacles that CUPTI meets too.
HELD = "another tool (DCGM, say) holds the performance counters: stop it, or 'dcgmi profile --pause' until this is done"
PERMISSION = (
    "ERR_NVGPUCTRPERM: the driver keeps performance counters from this user: run as root, or load the nvidia module with "
    "NVreg_RestrictProfilingToAdminUsers=0 (https://developer.nvidia.com/ERR_NVGPUCTRPERM)"
)

#: Parts of ncu's messages when it cannot count here, and our messages with the cure. The first match counts.
_ERRORS = (
    ("ERR_NVGPUCTRPERM", PERMISSION),
    (
        "LibraryNotLoaded",
        "LibraryNotLoaded: this sandbox (gVisor) gives no access to performance counters: run outside of it, or on "
        "another container runtime",
    ),
    ("DCGM", HELD),
    ("driver resource was unavailable", HELD),
    ("Cuda driver is not compatible", _DRIVER),
    ("driver is not supported", _DRIVER),
    ("not supported on this device", "this ncu does not know this GPU: install a newer Nsight Compute"),
    ("Failed to find metric", "this ncu lacks a counter that was asked for: install a newer Nsight Compute"),
)
#: ncu's message when the worker ended early or the case launches nothing.
NOTHING = "No kernels were profiled"
_NOTHING_HERE = f"{NOTHING}: the case launched nothing, or the worker ended before it did"
#: ncu's echo of the worker's own failure, which is reported elsewhere.
ECHO = "The application returned an error code"


class NcuError(RuntimeError):
    """ncu gave no counters. The message says why and what to do."""


def unavailable() -> str | None:
    """Why counters cannot be read here; None where no obstacle is visible without trying."""
    reason = device.unavailable()
    if reason:
        return reason
    if device.find_ncu() is None:
        return (
            "ncu is not on PATH nor in its usual places: install Nsight Compute "
            "(https://developer.nvidia.com/nsight-compute; Debian and Ubuntu: cuda-nsight-compute)"
        )
    return None


def explain(text: str) -> str | None:
    """The error in ncu's output, with its cure, in one line; None without an error."""
    return obstacle(text) or (_NOTHING_HERE if NOTHING in text else None)


def obstacle(text: str) -> str | None:
    """The first error in ncu's output, with its cure where it is known; None without an error but the application's."""
    for sign, cure in _ERRORS:
        if sign in text:
            return cure
    errors = [line for line in text.splitlines() if line.startswith("==ERROR==") and ECHO not in line]
    return errors[0].removeprefix("==ERROR==").strip() if errors else None


def counters(capability: str) -> list[str]:
    """The counters of METRICS for a compute capability such as ``9.0``, each once, in order."""
    return list(dict.fromkeys(name for metric in METRICS.values() for name, _ in metric.terms(capability)))


def capability(target: str) -> str:
    """The compute capability of a target: ``9.0`` for ``sm_90``, ``12.0`` for ``sm_120``."""
    digits = target.removeprefix("sm_").rstrip("af")
    return f"{digits[:-1]}.{digits[-1]}"


def environment() -> dict[str, str]:
    """Variables of the worker's process: numbers print as ``1,234.5``, and Inductor starts no processes that ncu would attach to."""
    return {"LC_ALL": "C.UTF-8", "TORCHINDUCTOR_COMPILE_THREADS": "1"}


def command(argv: Sequence[str], folder: Path) -> list[str]:
    """The worker's command line under ncu, whose output goes to ``folder`` for ``finish``.

    Clocks are not changed, since the GPU may be shared; caches are flushed before every replay pass. Raises NcuError where there
    is no ncu or no GPU.
    """
    gpu = device.detect()
    if gpu is None:
        raise NcuError(unavailable() or "ncu cannot run here")
    return wrapped(argv, folder, "raw", "--metrics", ",".join(counters(capability(gpu.target))))


def ncu_path() -> str:
    """The path of ncu. Raises NcuError where there is none."""
    path = device.find_ncu()
    if path is None:
        raise NcuError(unavailable() or "ncu cannot run here")
    return path


def wrapped(argv: Sequence[str], folder: Path, page: str, *options: str) -> list[str]:
    """The command line ``argv`` under ncu, which prints its ``page`` to the log in ``folder``. ``options`` say what it collects.

    Raises NcuError where there is no ncu.
    """
    return [
        ncu_path(),
        "--config-file", "off",
        "--target-processes", "application-only",
        "--clock-control", "none",
        "--cache-control", "all",
        "--replay-mode", "kernel",
        "--nvtx",
        "--nvtx-include", f"regex:{RANGE}.*",
        *options,
        "--csv",
        "--page", page,
        "--print-units", "base",
        "--log-file", str(folder / LOG),
        *argv,
    ]  # fmt: skip


def capture(case: Case, spec: Any, out: Path, settings: Mapping[str, Any]) -> None:
    """Runs the case once inside its range. Compiling and tuning happen before.

    Writes only the configs of the launches: ``finish`` makes the artefacts from ncu's output. Raises NotApplicable for an empty
    workload.
    """
    import torch  # noqa: PLC0415 - only the worker may import torch

    from tilescope.execution import observe  # noqa: PLC0415

    run = warmed_up(case, spec, settings)
    observe.once(run, out, case)
    torch.cuda.synchronize()
    counted = torch.cuda.nvtx.range_start(RANGE + case.slug)
    try:
        run()
        torch.cuda.synchronize()
    finally:
        torch.cuda.nvtx.range_end(counted)


def warmup(settings: Mapping[str, Any]) -> int:
    """Warm-up calls before a call that is counted, at most three: each call under ncu takes long."""
    return max(1, min(int(settings.get("warmup", _WARMUP)), _WARMUP))


def warmed_up(case: Case, spec: Any, settings: Mapping[str, Any]) -> Callable[[], Any]:
    """The case's call after all warm-up calls but the last. Raises NotApplicable for an empty workload."""
    from tilescope.execution import execute  # noqa: PLC0415 - only the worker may import torch

    # Not by the product of its dimensions: one may be a parameter of 0.
    cost = spec.cost(spec.workload(case.workload), case.direction)
    if cost and cost.flops == cost.bytes_written == 0:
        raise NotApplicable("an empty workload launches nothing to count")
    run = execute.prepare(spec, case, "cuda")
    for _ in range(warmup(settings) - 1):
        run()
    return run


def finish(folder: Path, cases: Sequence[Case]) -> None:
    """Divides ncu's log into one compressed CSV for each case, ``<slug>.csv.gz``, and removes the log.

    ``cases`` are those that the worker finished. Rows of others are dropped; a case without launches gets no artefact. Raises
    NcuError, with the cure, where nothing was counted or ncu reports an obstacle.
    """
    text = take_log(folder)
    try:
        tables = ncu_csv.raw_pages(text)
    except ncu_csv.NcuFormatError as error:
        found = obstacle(text)
        if cases or found:
            raise NcuError(found or explain(text) or "ncu printed neither counters nor a reason") from error
        return
    # The table of a process without ranges lacks their columns.
    records = [record for table in tables for record in table.records()]
    rows = [(table, cells) for table in tables for cells in table.rows]
    for case, own in rows_of(records, cases).items():
        part = ""
        for _, ((table, first), *more) in itertools.groupby((rows[place] for place in own), key=lambda row: id(row[0])):
            part += ncu_csv.text_of([table.header, table.units, first, *(cells for _, cells in more)])
        (folder / (case.slug + SUFFIX)).write_bytes(gzip.compress(part.encode(), mtime=0))


def take_log(folder: Path) -> str:
    """Reads and removes ncu's log; empty where there is none. Raises NcuError for a too large one.

    A truncated log would not do: the missing launches would seem not to have happened.
    """
    log = folder / LOG
    try:
        return bounded_reading.content(log, most=LARGEST_LOG).decode(errors="replace")
    except FileNotFoundError:
        return ""
    except bounded_reading.Unreadable as error:
        raise NcuError(f"ncu's output cannot be read: {error}") from error
    finally:
        log.unlink(missing_ok=True)


def rows_of(rows: Sequence[Mapping[str, str]], cases: Sequence[Case]) -> dict[Case, list[int]]:
    """The places of the rows of each case that has any in ncu's table, by the names of NVTX ranges.

    No slug is part of another, because each ends in a digest. An ncu that prints no ranges serves a single case only; for more
    NcuError is raised.
    """
    nvtx = any("_Range:" in name for row in rows for name in row)
    if rows and not nvtx and len(cases) > 1:
        raise NcuError("this ncu prints no NVTX ranges: install a newer Nsight Compute, or profile one case at a time")
    opened = [" ".join(cell for name, cell in row.items() if "_Range:" in name) for row in rows]
    found = {
        case: [place for place, text in enumerate(opened) if not nvtx or RANGE + case.slug in text] for case in cases
    }
    return {case: own for case, own in found.items() if own}


@bounded_reading.parser
def parse(artefact: Path, case: Case) -> pd.DataFrame:
    """Rows of METRICS for every launch, in ncu's order. An absent counter gives no row.

    ``artefact`` is ncu's raw page as CSV, compressed or not, with or without other lines of ncu and the application.
    """
    pages = ncu_csv.raw_pages(bounded_reading.text(bounded_reading.content(artefact)))
    rows: list[dict[str, Any]] = []
    for launch, (table, cells) in enumerate((page, cells) for page in pages for cells in page.rows):
        printed = dict(zip(table.header, cells, strict=False))
        found = metrics(values(zip(table.header, table.units, cells, strict=False)), printed.get("CC", ""))
        function = printed.get("Kernel Name", "")
        rows += [case.row(metric, value, "ncu", launch=launch, function=function) for metric, value in found.items()]
    return absent.without(schema.frame(rows))


def values(cells: Iterable[tuple[str, str, str]]) -> dict[str, float]:
    """Counters of one launch in ncu's base units. ``cells`` are their printed names, units and values; non-numbers are absent."""
    found: dict[str, float] = {}
    for name, unit, cell in cells:
        value = ncu_csv.number(cell)
        if value is not None:
            found[name] = ncu_csv.in_base(value, unit)[0]
    return found


def metrics(counted: Mapping[str, float], capability: str) -> dict[str, float]:
    """METRICS of one launch from its counters, on a chip of that compute capability. A metric without all its counters is absent."""
    found: dict[str, float] = {}
    for metric in METRICS.values():
        terms = metric.terms(capability)
        if terms and all(name in counted for name, _ in terms):
            found[metric.name] = sum(counted[name] * factor for name, factor in terms) * metric.scale
    return found
