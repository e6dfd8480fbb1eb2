"""Nsight Compute's CSV, from ``ncu --csv --page raw`` or ``--page details``, perhaps among other output."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

from tilescope.collectors.foreign_files import contents
from tilescope.collectors.foreign_files.contents import Contents, Rows
from tilescope.collectors.ncu import counters
from tilescope.collectors.ncu import ncu_csv as cells
from tilescope.files import bounded_reading, delimited
from tilescope.table.metrics import METRICS
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
#: ncu's own lines.
_SAID = re.compile(r"==(ERROR|WARNING)==\s*(.*)")
#: Most of ncu's own lines that become notes.
_MOST_SAID = 20
#: Counters of METRICS, each with the unit that ncu's base units must have for it; any unit where it is empty.
_BASE_UNITS = {"second": "ns", "hertz": "hz", "byte": "byte"}
_KNOWN = {
    name: _BASE_UNITS.get(metric.unit, "")
    for metric in METRICS.values()
    for terms in metric.ncu.values()
    for name, _ in terms
}
#: Counters that are whole numbers in these units.
_WHOLE_NAME = re.compile(rf"\w+\.sum|launch__(grid|block|registers|thread|shared)\w*|{_DEVICE}\w*")
_WHOLE_UNITS = frozenset(("", "ns", "nsecond", "byte", "sector", "inst", "cycle", "thread", "warp", "request", "block",
                          "register/thread", "byte/block"))  # fmt: skip
#: The cells of a launch's row by column; name, unit and number of each metric.
_Launch = tuple[dict[str, str], list[tuple[str, str, str]]]


def begins(head: bytes) -> bool:
    return bool(re.search(rb'"ID","|\bID"?[,;\t]"?Process ID|==(PROF|ERROR|WARNING)==', head))


def reads(head: bytes, name: str) -> bool:
    """Whether the head is ncu's, or the name is that of a table or a log, which may begin with other output."""
    return begins(head) or name.endswith(_ENDINGS)


@bounded_reading.parser
def read(path: Path) -> Contents:
    """Reads every launch with its counters of METRICS. Each GPU has cases of its own.

    Raises Unreadable where there is no launch, with ncu's reason and the cure if ncu states one, and where no counter is known.
    """
    text = bounded_reading.text(bounded_reading.content(path))
    tables = list(cells.tables(text))
    if not tables:
        otherwise = "no table of ncu's is in it: print one with 'ncu --csv --page raw' (or details)"
        raise bounded_reading.Unreadable(_reason(text, otherwise))
    if len({table.raw for table in tables}) > 1:
        raise bounded_reading.Unreadable("it holds a raw page and a details page: give each a file of its own")
    rows = Rows(SOURCE)
    devices: dict[str, Device] = {}
    #: Counters that METRICS lacks, and those whose unit is unknown: their values cannot be converted.
    unknown, unfit = dict[str, int](), dict[str, int]()
    launches = [launch for table in tables for launch in _launches(table)]
    for number, (printed, counted) in enumerate(launches):
        fit = []
        for name, unit, value in counted:
            if name not in _KNOWN:
                unknown[name] = 1
            elif cells.in_base(1.0, unit)[1].startswith(_KNOWN[name]):
                fit.append((name, unit, value))
            else:
                unfit[f"{name} ({unit or 'no unit'})"] = 1
        # pandas may have made a float of it.
        device = re.match(r"\d+", printed.get("Device", ""))
        gpu = f"GPU {device[0]}" if device else ""
        if _add(rows, number, printed, counters.values(fit), gpu):
            devices.setdefault(gpu, _device(printed, counted))
    if not launches:
        raise bounded_reading.Unreadable(f"it has ncu's header and no launch: {_reason(text, 'profile one')}")
    named = f" ({contents.listed(unknown)})" if unknown else ""
    contents.require(rows, f"none of its counters{named} is one that Tilescope knows: profile with 'ncu --set full'")
    gpus, notes = contents.of_gpus(devices)
    if left_out := sum(table.left_out for table in tables):
        notes.append(f"rows that are cut off or too long and were left out: {left_out}")
    if unfit:
        notes.append(f"counters in unknown units were left out: {contents.listed(unfit)}")
    return Contents("Nsight Compute", rows.frame(), gpus, notes=[*(f"ncu: {line}" for line in _said(text)), *notes])


def _launches(table: cells.Table) -> Iterator[_Launch]:
    found = _of_raw(table) if table.raw else _of_details(table)
    numbers = (
        (value, unit in _WHOLE_UNITS and bool(_WHOLE_NAME.fullmatch(name)))
        for _, counted in found
        for name, unit, value in counted
    )
    mark = delimited.decimal_mark(numbers, table.separator)
    for printed, counted in found:
        yield printed, [(name, unit, delimited.plain(value, mark)) for name, unit, value in counted if name]


def _of_raw(table: cells.Table) -> list[_Launch]:
    return [
        (
            dict(zip(table.header, row, strict=False)),
            [one for one in zip(table.header, table.units, row, strict=False) if "__" in one[0]],
        )
        for row in table.rows
    ]


def _of_details(table: cells.Table) -> list[_Launch]:
    """The launches of a details page, which has a row for each metric. Each process numbers its launches from 0."""
    launches: dict[tuple[str, str], _Launch] = {}
    for row in table.rows:
        printed = dict(zip(table.header, row, strict=False))
        _, counted = launches.setdefault((printed.get("Process ID", ""), printed["ID"]), (printed, []))
        label, unit, value = (printed.get(f"Metric {what}", "") for what in ("Name", "Unit", "Value"))
        counted.append((LABELS.get(label, label), unit, value))
    return list(launches.values())


def _add(rows: Rows, launch: int, printed: Mapping[str, str], values: Mapping[str, float], gpu: str) -> bool:
    """Adds one launch, if any of its counters is known. ``printed`` are its cells, ``values`` its counters in ncu's base units."""
    found = counters.metrics(values, _capability(printed))
    if not found:
        return False
    # A cell is such as ``(16384, 1, 1)``.
    sides = (re.findall(r"\d{1,10}", printed.get(name, "")) for name in ("Block Size", "Grid Size"))
    block, grid = (contents.sizes([int(side) for side in found]) for found in sides)
    size = {"block_threads": contents.product(block), "grid_blocks": contents.product(grid)}
    rows.add(contents.name(printed["Kernel Name"]), contents.workload(grid, block), launch, {**size, **found}, gpu=gpu)
    return True


def _capability(printed: Mapping[str, str]) -> str:
    return printed.get("CC", "").replace(",", ".")


def _device(printed: Mapping[str, str], counted: Iterable[tuple[str, str, str]]) -> Device:
    """The GPU in the cells of a launch, with its attributes where they were collected."""
    told = {name: value for name, _, value in counted if name.startswith(_DEVICE)}
    title = told.get(f"{_DEVICE}display_name", "")
    return contents.ncu_device(_capability(printed), title, lambda name: cells.number(told.get(_DEVICE + name, "")))


def _said(text: str) -> list[str]:
    """ncu's own errors, with the cure of each that is known, and its warnings."""
    found: dict[str, None] = {}
    for line in text.splitlines():
        if said := _SAID.match(line):
            found[counters.obstacle(line) or bounded_reading.one_line(said[2])] = None
    return list(found)[:_MOST_SAID]


def _reason(text: str, otherwise: str) -> str:
    """Why there is no launch, in ncu's words where it says so, and what to do; else ``otherwise``."""
    if counters.obstacle(text):
        return f"ncu says: {'; '.join(_said(text)[:3])}"
    if failed := re.search(rf"{counters.ECHO} \(\S+\)", text):
        return f"ncu says '{failed[0]}': the program failed: run it without ncu, and correct that first"
    if counters.NOTHING in text:
        names = re.findall(r"^\s*\d+\. (.+)$", text.partition("Available Kernels:")[2], re.MULTILINE)
        ran = contents.listed(dict.fromkeys(map(bounded_reading.one_line, names), 1))
        why = (
            f"its options chose none of the kernels that ran ({ran}): change --kernel-name, --launch-skip or --nvtx-include"
            if names
            else "the program launched none, or another process did: add --target-processes all"
        )
        return f"ncu says '{counters.NOTHING}': {why}"
    said = _said(text)
    return f"ncu says: {'; '.join(said[:3])}" if said else otherwise
