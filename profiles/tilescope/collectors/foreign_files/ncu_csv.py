"""Nsight Compute's CSV, from ``ncu --csv --page raw`` or ``--page details``, perhaps among other output."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

from tilescope.collectors.foreign_files import contents
from tilescope.collectors.foreign_files.contents import Contents, Rows
from tilescope.collectors.ncu import counters
from tilescope.collectors.ncu import ncu_csv as cells
from tilescope.files import bounded_reading
from tilescope.table.run import Device

NAME = "ncu's CSV (ncu --csv, raw or details page)"
SOURCE = "ncu"
_ENDINGS = (".csv", ".csv.gz", ".txt", ".log")
#: Labels of the details page for counters of METRICS.
LABELS = {
    "Duration": "gpu__time_duration.sum",
    "SM Frequency": "sm__cycles_elapsed.avg.per_second",
    "DRAM Frequency": "dram__cycles_elapsed.avg.per_second",
    "DRAM Throughput": "gpu__dram_throughput.avg.pct_of_peak_sustained_elapsed",
    "Compute (SM) Throughput": "sm__throughput.avg.pct_of_peak_sustained_elapsed",
    "L1/TEX Hit Rate": "l1tex__t_sector_hit_rate.pct",
    "L2 Hit Rate": "lts__t_sector_hit_rate.pct",
    "Registers Per Thread": "launch__registers_per_thread",
    "Static Shared Memory Per Block": "launch__shared_mem_per_block_static",
    "Dynamic Shared Memory Per Block": "launch__shared_mem_per_block_dynamic",
    "Shared Memory Configuration Size": "launch__shared_mem_config_size",
    "Theoretical Occupancy": "sm__maximum_warps_per_active_cycle_pct",
    "Achieved Occupancy": "sm__warps_active.avg.pct_of_peak_sustained_active",
    "Block Limit Registers": "launch__occupancy_limit_registers",
    "Block Limit Shared Mem": "launch__occupancy_limit_shared_mem",
    "Block Limit Warps": "launch__occupancy_limit_warps",
    "Block Limit SM": "launch__occupancy_limit_blocks",
    "Block Limit Barriers": "launch__occupancy_limit_barriers",
}
_DEVICE = "device__attribute_"
#: Prefix of ncu's warnings about the results.
_WARNING = "==WARNING== "


def reads(head: bytes, name: str) -> bool:
    """Whether the head has ncu's header, or the name is that of a table or a log, which may begin with other output."""
    return b'"ID","' in head or name.endswith(_ENDINGS)


@bounded_reading.parser
def read(path: Path) -> Contents:
    """Reads every launch with its counters of METRICS. Raises Unreadable where there is no table of ncu's."""
    text = bounded_reading.text(bounded_reading.content(path))
    rows = Rows(SOURCE)
    try:
        device = _raw(text, rows)
    except cells.NcuFormatError:
        try:
            device = _details(text, rows)
        except cells.NcuFormatError as error:
            raise bounded_reading.Unreadable(
                "no table of ncu's is in it: print one with 'ncu --csv --page raw' (or details)"
            ) from error
    contents.require(rows, "none of its counters is one that Tilescope knows: profile with 'ncu --set full'")
    warned = [line.removeprefix(_WARNING) for line in text.splitlines() if line.startswith(_WARNING)]
    notes = [f"ncu: {bounded_reading.one_line(line)}" for line in dict.fromkeys(warned[:20])]
    return Contents("Nsight Compute", rows.frame(), device, notes=notes)


def _raw(text: str, rows: Rows) -> Device:
    """Adds the launches of a raw page. Returns their device."""
    table = cells.read_raw(text)
    names = [str(name) for name in table.columns.get_level_values("counter")]
    units = [str(unit) for unit in table.columns.get_level_values("unit")]
    printed: dict[str, str] = {}
    for launch, row in enumerate(table.itertuples(index=False, name=None)):
        printed = dict(zip(names, row, strict=True))
        _add(rows, launch, printed, counters.values(zip(names, units, row, strict=True)))
    return _device(printed)


def _details(text: str, rows: Rows) -> Device:
    """Adds the launches of a details page, which has a row for each metric. Returns their device."""
    table = cells.read_details(text).fillna("")
    printed: dict[str, str] = {}
    # Each process numbers its launches from 0.
    whose = [name for name in ("Process ID", "ID") if name in table.columns]
    for launch, (_, of_launch) in enumerate(table.groupby(whose, sort=False)):
        lines = of_launch.to_dict("records")
        printed = {str(name): str(value) for name, value in lines[0].items()}
        told = ((str(one["Metric Name"]), str(one["Metric Unit"]), str(one["Metric Value"])) for one in lines)
        named = ((LABELS.get(label, label), unit, value) for label, unit, value in told)
        _add(rows, launch, printed, counters.values(named))
    return _device(printed)


def _add(rows: Rows, launch: int, printed: Mapping[str, str], values: Mapping[str, float]) -> None:
    """Adds one launch. ``printed`` are its cells, ``values`` its counters in ncu's base units."""
    block, grid = (_sizes(printed.get(name, "")) for name in ("Block Size", "Grid Size"))
    kernel = contents.name(printed["Kernel Name"])
    found = counters.metrics(values, printed.get("CC", ""))
    size = {"block_threads": contents.product(block), "grid_blocks": contents.product(grid)}
    rows.add(kernel, contents.workload(grid, block), launch, {**size, **found})


def _sizes(cell: str) -> list[int] | None:
    """The sides in a cell such as ``(16384, 1, 1)``; None for another cell."""
    return contents.sizes([int(side) for side in re.findall(r"\d{1,10}", cell)])


def _device(printed: Mapping[str, str]) -> Device:
    """The GPU in the cells of a launch, with its attributes where they were collected."""
    title = printed.get(f"{_DEVICE}display_name", "")
    return contents.ncu_device(printed.get("CC", ""), title, lambda name: cells.number(printed.get(_DEVICE + name, "")))
