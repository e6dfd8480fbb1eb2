"""Hardware counters through the Nsight Compute CLI, which wraps the worker.

The worker warms a case up, then calls it once inside an NVTX range named after the case. ncu counts only inside such
ranges and prints the open ones with every launch, which tells whose it is. They are start/end ranges: autograd launches
from a thread of its own, where a push/pop range of the caller does not hold.
"""

from __future__ import annotations

import csv
import gzip
import io
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from tilescope.collectors.ncu import ncu_csv
from tilescope.files import bounded_reading
from tilescope.hardware import device
from tilescope.table import absent, schema
from tilescope.table.case import Case
from tilescope.table.metrics import METRICS

SUFFIX = ".csv.gz"

#: What ncu writes into the artefact folder while the worker runs.
LOG = "ncu-log.txt"
#: Bytes of it.
LARGEST_LOG = bounded_reading.LARGEST
#: Ranges that are profiled begin with this; the case's slug follows. A filter without a slash at its end means a
#: start/end range.
RANGE = "tilescope:"

WARMUP = 3

_DRIVER = "this ncu does not fit the driver: install the Nsight Compute of the driver's CUDA version, or a newer driver"
#: Two obstacles that CUPTI meets too, and the cures.
HELD = "another tool (DCGM, say) holds the performance counters: stop it, or 'dcgmi profile --pause' until this is done"
PERMISSION = (
    "ERR_NVGPUCTRPERM: the driver keeps performance counters from this user: run as root, or load the nvidia module with "
    "NVreg_RestrictProfilingToAdminUsers=0 (https://developer.nvidia.com/ERR_NVGPUCTRPERM)"
)

#: What ncu says when nothing can be counted here, and what a person can do. The first that is found counts.
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
#: ncu says this too when the worker ended early or the case launches nothing.
_NOTHING = (
    "No kernels were profiled",
    "No kernels were profiled: the case launched nothing, or the worker ended before it did",
)
#: An echo of the worker's own failure, which is told elsewhere.
_ECHO = "The application returned an error code"


class NcuError(RuntimeError):
    """ncu gave no counters. The message says why and what to do."""


def unavailable() -> str | None:
    """Why counters cannot be read here; None when nothing stands in the way that can be seen without trying."""
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
    """What ncu's output complains about and its cure, in one line; None when it holds no complaint."""
    return _obstacle(text) or (_NOTHING[1] if _NOTHING[0] in text else None)


def _obstacle(text: str) -> str | None:
    for sign, cure in _ERRORS:
        if sign in text:
            return cure
    errors = [line for line in text.splitlines() if line.startswith("==ERROR==") and _ECHO not in line]
    return errors[0].removeprefix("==ERROR==").strip() if errors else None


def counters(capability: str) -> list[str]:
    """Every counter that METRICS has for a compute capability such as ``9.0``, each once, in order."""
    return list(dict.fromkeys(name for metric in METRICS.values() for name, _ in metric.terms(capability)))


def capability(target: str) -> str:
    """``sm_90`` to ``9.0``, ``sm_120`` to ``12.0``."""
    digits = target.removeprefix("sm_").rstrip("af")
    return f"{digits[:-1]}.{digits[-1]}"


def environment() -> dict[str, str]:
    """Variables of the worker's process: numbers as ``1,234.5``, and no compile processes for ncu to attach to."""
    return {"LC_ALL": "C.UTF-8", "TORCHINDUCTOR_COMPILE_THREADS": "1"}


def command(argv: Sequence[str], folder: Path) -> list[str]:
    """The worker's command line, wrapped. ncu writes what it finds to ``folder``; ``finish`` reads it there.

    Clocks are left as they are (the card may be shared); caches are flushed before every replay pass.
    Raises NcuError where there is no ncu or no GPU.
    """
    gpu = device.detect()
    if gpu is None:
        raise NcuError(unavailable() or "ncu cannot run here")
    return wrapped(argv, folder, "raw", "--metrics", ",".join(counters(capability(gpu.target))))


def ncu_path() -> str:
    """Where ncu is. Raises NcuError where there is none."""
    path = device.find_ncu()
    if path is None:
        raise NcuError(unavailable() or "ncu cannot run here")
    return path


def wrapped(argv: Sequence[str], folder: Path, page: str, *options: str) -> list[str]:
    """A command line under ncu, which prints its ``page`` into the log in ``folder``. ``options`` say what it collects.

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
    """Runs the case once where ncu counts. Compiling and tuning happen before, outside of the ranges.

    Writes with which configs it ran, and nothing else: ncu's report is the artefact, and ``finish`` divides it among the cases.
    """
    import torch  # noqa: PLC0415 - only the worker may import torch

    from tilescope.execution import execute, observe  # noqa: PLC0415

    if spec.workload(case.workload).elements == 0:
        raise execute.NotApplicable("an empty workload launches nothing to count")
    run = execute.prepare(spec, case, "cuda")
    for _ in range(min(int(settings.get("warmup", WARMUP)), WARMUP) - 1):
        run()
    observe.once(run, out, case)
    torch.cuda.synchronize()
    counted = torch.cuda.nvtx.range_start(RANGE + case.slug)
    try:
        run()
        torch.cuda.synchronize()
    finally:
        torch.cuda.nvtx.range_end(counted)


def finish(folder: Path, cases: Sequence[Case]) -> None:
    """Divides ncu's log into one compressed CSV a case, ``<slug>.csv.gz``, and removes the log.

    ``cases`` are those that the worker ended well; rows of others are dropped, and one without launches gets no
    artefact. Raises NcuError, naming the cure, when nothing was counted for any of them, or when ncu says why it can
    count nothing here.
    """
    text = take_log(folder)
    try:
        table = ncu_csv.read_raw(text)
    except ncu_csv.NcuFormatError as error:
        obstacle = _obstacle(text)
        if cases or obstacle:
            raise NcuError(obstacle or explain(text) or "ncu ended without a word about what it counted") from error
        return
    owners = _owners(table, cases)
    for case in cases:
        rows = [index for index, owner in enumerate(owners) if owner == case.slug]
        if rows:
            (folder / (case.slug + SUFFIX)).write_bytes(gzip.compress(_csv(table.iloc[rows]).encode(), mtime=0))


def take_log(folder: Path) -> str:
    """The text of ncu's log, which is removed; empty where there is none. Raises NcuError for one that is too large.

    Its end alone would not do: launches that were left out would look as if there had been none.
    """
    log = folder / LOG
    try:
        return bounded_reading.content(log, most=LARGEST_LOG).decode(errors="replace")
    except FileNotFoundError:
        return ""
    except bounded_reading.Unreadable as error:
        raise NcuError(f"what ncu printed cannot be taken in: {error}") from error
    finally:
        log.unlink(missing_ok=True)


def _owners(table: pd.DataFrame, cases: Sequence[Case]) -> list[str | None]:
    """The slug of the case that each row belongs to, read from ncu's NVTX columns.

    A slug ends in a digest of its case's id, so none is part of another. Without those columns (an ncu that does not print
    them) rows can only be given to a case that was alone.
    """
    nvtx = [i for i, name in enumerate(table.columns.get_level_values("counter")) if "_Range:" in name]
    if not nvtx:
        if len(cases) == 1:
            return [cases[0].slug] * len(table)
        raise NcuError("this ncu prints no NVTX ranges: install a newer Nsight Compute, or profile one case at a time")
    texts = [" ".join(row) for row in table.iloc[:, nvtx].itertuples(index=False, name=None)]
    return [next((c.slug for c in cases if RANGE + c.slug in text), None) for text in texts]


def _csv(table: pd.DataFrame) -> str:
    """The rows as ncu printed them: header, units, one line a launch."""
    text = io.StringIO()
    writer = csv.writer(text, quoting=csv.QUOTE_ALL, lineterminator="\n")
    for level in ("counter", "unit"):
        writer.writerow(table.columns.get_level_values(level))
    writer.writerows(table.itertuples(index=False, name=None))
    return text.getvalue()


@bounded_reading.parser
def parse(artefact: Path, case: Case) -> pd.DataFrame:
    """Rows of METRICS for every launch, in the order ncu saw them. A counter that is absent gives no row.

    ``artefact`` is ncu's raw page as CSV, compressed or not, with or without ncu's and the application's own lines.
    """
    table = ncu_csv.read_raw(bounded_reading.text(bounded_reading.content(artefact)))
    names = [str(name) for name in table.columns.get_level_values("counter")]
    units = [str(unit) for unit in table.columns.get_level_values("unit")]
    rows: list[dict[str, Any]] = []
    for launch, cells in enumerate(table.itertuples(index=False, name=None)):
        printed = dict(zip(names, cells, strict=True))
        found = metrics(values(zip(names, units, cells, strict=True)), printed.get("CC", ""))
        rows += [
            case.row(metric, value, "ncu", launch=launch, function=printed["Kernel Name"])
            for metric, value in found.items()
        ]
    return absent.without(schema.frame(rows))


def values(cells: Iterable[tuple[str, str, str]]) -> dict[str, float]:
    """Counters of one launch in ncu's base units, from their name, unit and value as printed. What is no number is absent."""
    found: dict[str, float] = {}
    for name, unit, cell in cells:
        value = ncu_csv.number(cell)
        if value is not None:
            found[name] = ncu_csv.in_base(value, unit)[0]
    return found


def metrics(counted: Mapping[str, float], capability: str) -> dict[str, float]:
    """METRICS from the counters of one launch on a chip of that compute capability. One that lacks a counter is absent."""
    found: dict[str, float] = {}
    for metric in METRICS.values():
        terms = metric.terms(capability)
        if terms and all(name in counted for name, _ in terms):
            found[metric.name] = sum(counted[name] * factor for name, factor in terms) * metric.scale
    return found
