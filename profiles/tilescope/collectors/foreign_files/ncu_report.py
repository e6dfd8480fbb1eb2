"""Nsight Compute's reports (.ncu-rep), read by NVIDIA's ``ncu-report`` in a process of its own, since a bad report can crash it.

NVIDIA's package is proprietary and optional (``pip install 'tilescope[ncu-report]'``). This module is also that process's program,
which prints the launches as JSON.
"""

from __future__ import annotations

import importlib
import importlib.metadata
import json
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from tilescope.collectors.foreign_files import contents
from tilescope.collectors.foreign_files.contents import Contents, Rows
from tilescope.collectors.ncu import counters
from tilescope.collectors.ncu import ncu_csv as cells
from tilescope.files import bounded_reading
from tilescope.table.metrics import METRICS
from tilescope.table.run import Device

NAME = "ncu's reports (.ncu-rep)"
SOURCE = "ncu"
_PACKAGE = "ncu-report"
_MISSING = (
    "a .ncu-rep is read by NVIDIA's ncu-report, which is not installed: pip install 'tilescope[ncu-report]', or export it with "
    "'ncu --import FILE --csv --page raw' and open that"
)
_DEVICE = "device__attribute_"
_NUMBER = "launch__device_id"
#: Metrics that are read beside the counters of METRICS.
_ASKED = (
    *(f"launch__{what}_dim_{side}" for what in ("grid", "block") for side in "xyz"),
    *(f"{_DEVICE}compute_capability_{part}" for part in ("major", "minor")),
    _NUMBER,
    *(_DEVICE + name for name in ("display_name", "multiprocessor_count", "l2_cache_size", "total_memory")),
)
#: Most seconds for reading a report.
_LIMIT = 600


def reads(head: bytes, name: str) -> bool:
    """Whether the head or the name is that of a report, whose content is proprietary."""
    return head.startswith(b"NVR\x00") or name.endswith((".ncu-rep", ".ncu-repz"))


@bounded_reading.parser
def read(path: Path) -> Contents:
    """Reads every launch with its counters of METRICS. A counter without a value has no row.

    Raises Unreadable for a damaged report, and where NVIDIA's package is not installed.
    """
    try:
        version = importlib.metadata.version(_PACKAGE)
    except importlib.metadata.PackageNotFoundError as error:
        raise bounded_reading.Unreadable(_MISSING) from error
    rows = Rows(SOURCE)
    devices: dict[str, Device] = {}
    for number, launch in enumerate(_asked(path)):
        said = launch["values"]
        gpu = f"GPU {_whole(said[_NUMBER])}" if _NUMBER in said else ""
        if gpu not in devices or not devices[gpu].target:
            devices[gpu] = _device(said)
        kernel = contents.name(launch["name"])
        grid, block = (contents.sizes([_whole(said.get(f"launch__{what}_dim_{side}")) for side in "xyz"])
                       for what in ("grid", "block"))  # fmt: skip
        base = {
            name: cells.in_base(value, unit)[0]
            for name, (value, unit) in said.items()
            if isinstance(value, (int, float)) and not name.startswith(_DEVICE)
        }
        found = counters.metrics(base, _capability(said))
        size = {"grid_blocks": contents.product(grid), "block_threads": contents.product(block)}
        rows.add(kernel, contents.workload(grid, block), number, size | found if found else {}, gpu=gpu)
    contents.require(rows, "it holds no launch with a counter that Tilescope knows, or it is damaged")
    device, notes = contents.of_gpus(devices)
    return Contents("Nsight Compute", rows.frame(), device, versions={_PACKAGE: version}, notes=notes)


def _asked(path: Path) -> list[dict[str, Any]]:
    argv = [sys.executable, "-P", "-m", __name__, str(path.absolute())]
    # tilescope itself need not be installed.
    path_of = os.pathsep.join(filter(None, [str(Path(__file__).parents[3]), os.environ.get("PYTHONPATH", "")]))
    try:
        done = subprocess.run(
            argv, capture_output=True, timeout=_LIMIT, check=False, env={**os.environ, "PYTHONPATH": path_of}
        )
    except subprocess.TimeoutExpired as error:
        raise bounded_reading.Unreadable(f"NVIDIA's ncu-report takes more than {_LIMIT} seconds for it") from error
    if done.returncode:
        said = done.stderr.decode(errors="replace").strip().splitlines()
        why = said[-1] if said and done.returncode > 0 else f"it ended with {done.returncode}"
        raise bounded_reading.Unreadable(f"NVIDIA's ncu-report cannot read it ({bounded_reading.one_line(why)})")
    found: list[dict[str, Any]] = bounded_reading.data(done.stdout)
    return found


def launches(module: Any, path: str) -> Iterator[dict[str, Any]]:
    """Yields name and values of each launch, read by NVIDIA's ``module``. A value is a number or text, and its unit.

    Metrics without a value, or of another kind, are left out: the package would give 0 for them.
    """
    kind = module.IMetric
    numbers = (kind.ValueKind_FLOAT, kind.ValueKind_DOUBLE, kind.ValueKind_UINT32, kind.ValueKind_UINT64)
    wanted = [
        *dict.fromkeys(name for one in METRICS.values() for terms in one.ncu.values() for name, _ in terms),
        *_ASKED,
    ]
    report = module.load_report(path)
    for actions in (report.range_by_idx(place) for place in range(report.num_ranges())):
        for action in (actions.action_by_idx(place) for place in range(actions.num_actions())):
            values: dict[str, tuple[Any, str]] = {}
            for name in wanted:
                metric = action.metric_by_name(name)
                if metric is None or not metric.has_value():
                    continue
                if metric.kind() in numbers:
                    values[name] = metric.as_double(), metric.unit() or ""
                elif metric.kind() == kind.ValueKind_STRING:
                    values[name] = metric.as_string() or "", ""
            yield {"name": action.name(), "values": values}


def _whole(told: Any) -> int:
    return contents.count(told[0]) if told else 0


def _capability(said: Mapping[str, Any]) -> str:
    parts = [said.get(f"{_DEVICE}compute_capability_{part}") for part in ("major", "minor")]
    return ".".join(f"{part[0]:.0f}" for part in parts if part) if all(parts) else ""


def _device(said: Mapping[str, Any]) -> Device:
    title = contents.text(said.get(f"{_DEVICE}display_name", ("",))[0])
    return contents.ncu_device(_capability(said), title, lambda name: _whole(said.get(_DEVICE + name)))


if __name__ == "__main__":
    print(json.dumps(list(launches(importlib.import_module("ncu_report"), sys.argv[1]))))
