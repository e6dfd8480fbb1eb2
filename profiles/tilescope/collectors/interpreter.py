"""Counts the memory requests of a case exactly, without a GPU.

Triton launches run in Triton's interpreter, which counts every load and store. For PyTorch operators, in unfused code and around
launches, inputs and outputs are counted. Requested bytes count each access in full. Unique bytes count each byte once in a launch,
which is the least that memory must move. Sector efficiency is, for load or store instructions of whole blocks, the distinct bytes
over the bytes of their 32-byte sectors.
"""

from __future__ import annotations

import contextlib
import gzip
import importlib.metadata
import importlib.util
import json
import shutil
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pandas as pd

from tilescope.execution.not_applicable import NotApplicable, without_gpu
from tilescope.files import bounded_reading, json_shape
from tilescope.interpreter.accesses import SECTOR
from tilescope.table import assumptions, kernel_faults, line_values, schema
from tilescope.table.case import Case

if TYPE_CHECKING:
    from tilescope.execution.launches import Launch

SUFFIX = ".json.gz"
#: Default limits in seconds of work (``interpret.Allowance``): for a case of a kernel, which may have smaller workloads; for a captured launch, whose size
#: is fixed; and for counting a sample of the programs of a captured launch that would take longer.
LIMIT, CAPTURED_LIMIT, SAMPLE = 40.0, 12.0, 5.0
#: Versions of Triton with which the tests of every construct pass.
TESTED = ("3.6.0", "3.9.0")
#: A launch's record, and its source texts by file name: none for a PyTorch operator.
_Counted = tuple[dict[str, Any], dict[str, str]]
_FIGURES = (
    "requested_bytes_read", "requested_bytes_written", "unique_bytes_read", "unique_bytes_written",
    "sector_efficiency_read", "sector_efficiency_written", "requested_flops",
    "wasteful_line_read", "wasteful_line_written",
    "sampled_bytes_read", "sampled_bytes_written", "sampled_flops", "sampled_programs",
)  # fmt: skip

parse_assumed, failure, warnings = assumptions.parse, kernel_faults.failure, kernel_faults.warnings


def unavailable() -> str | None:
    """Why kernels cannot be interpreted here, or None."""
    if sys.platform != "linux" or importlib.util.find_spec("triton") is None:
        return f"the interpreter needs Triton, which runs on Linux: pip install triton (tested: {', '.join(TESTED)})"
    return None


def capture(case: Case, spec: Any, out: Path, settings: Mapping[str, Any]) -> None:
    """Counts the case and writes the artefact. Functions under torch.compile are counted uncompiled where it permits that.

    ``settings["progress"]`` is called with messages about slow launches. Raises NotApplicable for code that torch.compile has to
    generate, for an operation that the interpreter does not support, and for a case that would take longer than
    ``settings["interpreter_limit"]`` seconds of work (40); of a captured launch a sample is counted then. With
    ``settings["not_finite"]`` the first NaN or infinity that is stored is a warning. Raises
    InterpretationFailed for an error of a kernel.
    """
    from tilescope.execution import pytorch_traffic  # noqa: PLC0415 (they import torch and triton)
    from tilescope.interpreter import blocks  # noqa: PLC0415 (it imports triton)

    # A captured launch may have been counted in the user's process, with the values there.
    captured = _captured(case, spec) or {}
    if known := captured.get("artefact"):
        shutil.copyfile(known, out)
        return
    with without_gpu(case):
        try:
            if settings.get("not_finite"):
                raise blocks.NeedsValues
            records, assumed = _count(case, spec, settings, "meta", values=False)
        except blocks.NeedsValues:
            records, assumed = _count(case, spec, settings, "cpu", values=True)
        except (_LaunchSeen, pytorch_traffic.NeedsData, RuntimeError) as seen:
            try:
                records, assumed = _without_values(case, spec, settings, drawn=not isinstance(seen, _LaunchSeen))
                # Values show if programs that store to the same bytes store the same.
                if any(record.pop("undecided", False) for record, _ in records):
                    with contextlib.suppress(NotApplicable):
                        records, assumed = _count(case, spec, settings, "cpu", values=True, decided=True)
            except (blocks.NeedsValues, pytorch_traffic.NeedsData):
                records, assumed = _count(case, spec, settings, "cpu", values=True)
    write(records, out, assumed)


def _captured(case: Case, spec: Any) -> Mapping[str, Any] | None:
    """The record of a captured launch; None for a case of another kernel."""
    return spec.record(spec.workload(case.workload)) if hasattr(spec, "record") else None


@contextlib.contextmanager
def _doubtful_inputs(kernel: str) -> Iterator[None]:
    """Says of a launch whose values ``kernel``, if there is one, should have made that it cannot be interpreted, not that it is wrong."""
    from tilescope.interpreter import interpret  # noqa: PLC0415 (it imports triton)

    try:
        yield
    except interpret.InterpretationFailed as error:
        if kernel:
            raise NotApplicable(f"{kernel} was not made before it, so its inputs may be wrong: {error}") from error
        raise


def write(records: list[_Counted], out: Path, assumed: Mapping[str, Any] | None = None) -> None:
    """Writes the artefact of launches. ``assumed`` is the assumption about a GPU."""
    with gzip.open(out, "wt", encoding="utf-8", compresslevel=9) as file:
        artefact: dict[str, Any] = {
            "triton": importlib.metadata.version("triton"),
            "launches": [record for record, _ in records],
            "sources": {name: text for _, source in records for name, text in source.items()},
            **({"assumed": assumed} if assumed else {}),
        }
        json.dump(artefact, file, default=str)


@bounded_reading.parser
def parse(artefact: Path, case: Case) -> pd.DataFrame:
    """A row for each figure of each launch or PyTorch operator."""
    data = bounded_reading.data_of(artefact)
    launches = [{**launch, **_wasteful(launch.get("lines", {}))} for launch in data["launches"]]
    return schema.frame(
        case.row(name, float(launch[name]), "interpreter", launch=index, function=launch["function"])
        for index, launch in enumerate(launches)
        for name in (*_FIGURES, *(("programs",) if "sampled_programs" in launch else ()))
        if launch.get(name) is not None
    )


def _wasteful(lines: Mapping[str, Mapping[str, int]]) -> dict[str, int]:
    """The line with the most bytes of touched sectors that were not asked for, of loads and of stores, where there is one."""
    found = {}
    for way in ("read", "written"):
        unused = {
            int(line): SECTOR * counts.get(f"sectors_{way}", 0) - counts.get(f"requested_bytes_{way}", 0)
            for line, counts in lines.items()
        }
        if (most := max(unused, key=lambda line: unused[line], default=0)) and unused[most] > 0:
            found[f"wasteful_line_{way}"] = most
    return found


@bounded_reading.parser
def parse_lines(artefact: Path, case: Case) -> tuple[pd.DataFrame, dict[str, str]]:
    """Values of source lines, and the source files by name."""
    data = bounded_reading.data_of(artefact)
    return lines_of(data["launches"], case), json_shape.fit(data["sources"], dict[str, str], "sources")


def remark(artefact: Path) -> str:
    """A remark where not all programs were interpreted; otherwise empty."""
    for launch in bounded_reading.data_of(artefact)["launches"]:
        if counted := launch.get("programs_by_rule"):
            how = "each touches what the one before it does a fixed step on: bytes and operations follow from that"
            return f"{int(counted):,} of {int(launch['programs']):,} programs were interpreted, of which {how}"
        if counted := launch.get("sampled_programs"):
            how = "bytes and operations are as of those, and distinct bytes not known (--interpreter-limit allows more)"
            return f"{int(counted):,} of {int(launch['programs']):,} programs, spread evenly, were interpreted: {how}"
    return ""


def lines_of(launches: Iterable[Mapping[str, Any]], case: Case) -> pd.DataFrame:
    """Memory requests of each source line. ``launches`` are the artefact's records; a PyTorch operator has no lines."""
    return line_values.frame(
        row
        for index, launch in enumerate(launches)
        for line, values in launch.get("lines", {}).items()
        if int(line) > 0
        for row in line_values.rows(
            case, "interpreter", values,
            launch=index, function=launch["function"], file=launch["file"], line=int(line),
        )
    )  # fmt: skip


class _LaunchSeen(Exception):
    """A Triton launch with tensors that have no data."""


def _without_values(
    case: Case, spec: Any, settings: Mapping[str, Any], *, drawn: bool
) -> tuple[list[_Counted], Mapping[str, Any]]:
    """``_count`` without values, on inputs that are ``drawn`` only where the case needs them. Errors are those of drawn inputs."""
    if not drawn:
        try:
            return _count(case, spec, settings, "cpu", values=False, drawn=False)
        except NotApplicable:
            raise
        except Exception:  # noqa: S110
            pass
    return _count(case, spec, settings, "cpu", values=False)


def _count(
    case: Case,
    spec: Any,
    settings: Mapping[str, Any],
    device: str,
    *,
    values: bool,
    drawn: bool = True,
    decided: bool = False,
) -> tuple[list[_Counted], Mapping[str, Any]]:
    """Records of the case's launches, in order, and the assumption about a GPU. On ``meta`` only PyTorch operators are counted.

    A captured launch may lack the results of an earlier one that failed. Without ``values`` its integers are unknown then, so every
    error is the kernel's own. With ``values`` its faults are left out, unless its addresses were ``decided`` without values before.

    Without ``drawn`` inputs this raises NeedsData or NeedsValues where something depends on them.
    """
    from tilescope.collectors import fault_rules  # noqa: PLC0415
    from tilescope.execution import assumed_device, execute, launches, pytorch_traffic, undrawn  # noqa: PLC0415
    from tilescope.interpreter import interpret  # noqa: PLC0415

    records: list[_Counted] = []
    left_out: set[tuple[int, int]] = set()
    counting = False
    captured = _captured(case, spec)
    limit = float(settings.get("interpreter_limit", LIMIT if captured is None else CAPTURED_LIMIT))
    sample = 0.0 if captured is None else min(SAMPLE, limit * SAMPLE / CAPTURED_LIMIT)
    after = str((captured or {}).get("after", ""))
    allowance = interpret.Allowance(limit, waited=float((captured or {}).get("waited", 0.0)))
    progress: Callable[[str], None] | None = settings.get("progress")

    def launched(launch: Launch) -> None:
        if device == "meta":
            raise _LaunchSeen
        # Preparation of a backward pass is interpreted only where its results may decide addresses.
        if not counting and not values and interpret.floats_only(launch):
            return
        if after and not values:
            left_out.update(interpret.ranges(launch, floats=False))
        meter = interpret.meter(launch)
        interpret.run(launch, meter=meter, values=values, drawn=drawn, left_out=left_out, allowance=allowance, progress=progress,
                      sample=sample, not_finite=bool(settings.get("not_finite")))  # fmt: skip
        if counting:
            doubtful = bool(after) and values and not decided
            records.append((fault_rules.record(launch, meter, doubtful=doubtful), launch.source))

    def operated(operation: pytorch_traffic.Operation) -> None:
        record: dict[str, Any] = {"function": operation.name, "requested_flops": operation.flops}
        for kind in ("requested", "unique"):
            record |= {f"{kind}_bytes_read": operation.bytes_read, f"{kind}_bytes_written": operation.bytes_written}
        records.append((record, {}))

    with (
        _doubtful_inputs(after if values else ""),
        contextlib.nullcontext() if drawn else undrawn.undrawn(),
        assumed_device.for_launcher(spec, case, settings.get("target", "sm_90"), device) as there,
    ):
        with launches.catch(launched):
            run = execute.prepare(spec, case, "cuda" if there and device == "cpu" else device)
        counting = True
        with pytorch_traffic.CountOperators(operated, values=values), launches.catch(launched):
            run()
    return records, there.as_data() if there else {}
