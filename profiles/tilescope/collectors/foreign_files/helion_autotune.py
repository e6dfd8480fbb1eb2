"""Helion's autotuning log, ``PATH.csv`` by ``HELION_AUTOTUNE_LOG=PATH``: a row for each config that was tried.

Its columns are ``timestamp_s, config_index, generation, status, perf_ms, compile_time_s, config``; later versions begin with
``run_id`` and call the index ``config_id``. Kernel, sizes and GPU are only in ``PATH.meta.jsonl``, which ``HELION_AUTOTUNE_DATASET``
adds, and which is read if it is beside the log. Helion times by events, each call with a cold L2.
"""

from __future__ import annotations

import ast
import csv
import io
import re
import statistics
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from tilescope.collectors.foreign_files import contents
from tilescope.collectors.foreign_files.contents import Contents, Rows
from tilescope.files import bounded_reading, delimited
from tilescope.table.case import Case
from tilescope.table.run import Device, Failure

NAME = "Helion's autotuning log (HELION_AUTOTUNE_LOG's .csv)"
_NUMBERS = ("perf_ms", "compile_time_s")
_COLUMNS = ("generation", "status", "perf_ms", "compile_time_s", "config")
#: Most bytes of one line of that file, which has a kernel's source.
LINE = 16 * bounded_reading.MIB
#: Most failures of a run: a search may try thousands of configs. A note counts all failures.
MOST_FAILURES = 500
_BEGUN = "started"
_ENDS = {_BEGUN: "started, and the log has no end of it", "": "the log has no status of it"}
_SAME_CODE = "deduplicated"
#: The source of Helion's values.
SOURCE = "helion"
#: Most characters of one config.
LONGEST_CONFIG = 16 << 10
_EMPTY = "empty"


def reads(head: bytes, name: str) -> bool:
    first = head.lstrip(b" \r\n").partition(b"\n")[0].strip().decode("ascii", "replace")
    return delimited.cells(first, _COLUMNS) is not None


@bounded_reading.parser
def read(path: Path) -> Contents:
    """Reads the time of every config, the median of several times, and its compile time. Raises Unreadable without times."""
    told, notes = _described(path.with_suffix(".meta.jsonl"))
    times: dict[_Key, list[float]] = {}
    compiled: dict[_Key, float] = {}
    ended: dict[_Key, str] = {}
    devices: dict[str, Device] = {}
    known: list[Mapping[str, Any]] = []
    damaged = 0
    for row in _rows(path):
        config = config_text(row["config"])
        if not config:
            damaged += 1
            continue
        about = told.get(row["run_id"], {})
        device = _device(about)
        # Several searches of one kernel, size and GPU are one: their times are of the same code.
        kernel, workload = contents.name(about.get("kernel_name") or path.stem), _workload(about, row["run_id"])
        key = _Key(kernel, workload, config, device.name)
        status = contents.text(row["status"])
        if key not in ended or status != _BEGUN:
            ended[key] = status
        if (spent := _number(row["compile_time_s"])) is not None:
            compiled[key] = spent
        if (time := _number(row["perf_ms"])) is not None:
            times.setdefault(key, []).append(time * 1e-3)
            devices.setdefault(device.name, device)
            known += [about] if about not in known else []
    rows = Rows(SOURCE)
    for key, measured in times.items():
        values = {"interval": statistics.median(measured), "compile_time": compiled.get(key)}
        rows.add(key.kernel, key.workload, None, values, config=key.config, gpu=key.gpu)
    failures = [
        Failure(
            Case(
                key.kernel, contents.IMPLEMENTATION, contents.DIRECTION, rows.placed(key.workload, key.gpu), key.config
            ).id,
            SOURCE,
            _ENDS.get(status, status),
        )
        for key, status in ended.items()
        if key not in times
    ][:MOST_FAILURES]
    contents.require(rows, "no config in it was timed")
    device, several = contents.of_gpus(devices)
    return Contents(
        "Helion",
        rows.frame(),
        device,
        versions=_versions(known),
        notes=[
            *notes,
            *_untimed(ended, times),
            *([f"damaged rows that were left out: {damaged}"] if damaged else []),
            *several,
        ],
        failures=failures,
    )


class _Key(NamedTuple):
    kernel: str
    workload: str
    config: str
    gpu: str


def _rows(path: Path) -> Iterator[dict[str, str]]:
    """Yields the log's rows by column, with numbers as Python writes them. ``run_id`` is empty where there is none."""
    text = bounded_reading.text(bounded_reading.content(path)).lstrip("\ufeff \r\n")
    header = delimited.cells(text.partition("\n")[0].rstrip("\r"), _COLUMNS)
    if header is None:
        return
    separator, _ = header
    rows = [
        row for row in csv.DictReader(io.StringIO(text), restval="", delimiter=separator) if row["config"] != "config"
    ]
    mark = delimited.decimal_mark(((row[name] or "", False) for row in rows for name in _NUMBERS), separator)
    for row in rows:
        found = {name: row.get(name) or "" for name in ("run_id", *_COLUMNS)}
        yield {**found, **{name: delimited.plain(found[name], mark) for name in _NUMBERS}}


def _number(cell: str) -> float | None:
    try:
        return contents.number(float(cell))
    except ValueError:
        return None


def _untimed(ended: Mapping[_Key, str], times: Mapping[_Key, Any]) -> list[str]:
    """Notes on configs without a time, and on those with the time of another config."""
    why = Counter(status or "no status" for key, status in ended.items() if key not in times)
    same = sum(status == _SAME_CODE for key, status in ended.items() if key in times)
    never = why.pop(_BEGUN, 0)
    said = [f"configs without a time: {contents.listed(why)}"] if why else []
    said += [f"configs that were started and have no end: {never}"] if never else []
    return said + ([f"configs that have the time of another with the same code: {same}"] if same else [])


def _described(path: Path) -> tuple[dict[str, Mapping[str, Any]], list[str]]:
    """The records of ``.meta.jsonl`` by ``run_id``, and notes about the file."""
    if not path.is_file():
        return {}, [
            "kernel, sizes and GPU are not in it: the kernel is called by the file (HELION_AUTOTUNE_DATASET=1 has them)"
        ]
    found: dict[str, Mapping[str, Any]] = {}
    try:
        for line in contents.lines(path, LINE):
            said = bounded_reading.data(line)
            if isinstance(said, dict):
                found[contents.text(said.get("run_id"))] = said
    except bounded_reading.Unreadable as error:
        return found, [f"{bounded_reading.one_line(path.name)}: {bounded_reading.one_line(error)}"]
    return found, [f"kernel, sizes and GPU are from {bounded_reading.one_line(path.name)} beside it"]


def _workload(about: Mapping[str, Any], run: str) -> str:
    shapes = re.findall(r"\(([\d,\s]*)\)", contents.text(about.get("input_shapes"), 1000))
    dtype = contents.first(re.findall(r"torch\.(\w+)", contents.text(about.get("dtypes"), 1000)))
    if known := contents.inputs((re.findall(r"\d+", shape) for shape in shapes), dtype):
        return known
    return f"run {contents.text(run)[:8]}, sizes not recorded" if run else "sizes not recorded"


def _device(about: Mapping[str, Any]) -> Device:
    hardware = about.get("hardware_info")
    said = hardware if isinstance(hardware, dict) else {"device_name": about.get("hardware")}
    props = contents.mapping(said.get("device_props"))
    capability = re.fullmatch(r"sm_?(\d{2,3}a?)", contents.text(said.get("compute_capability"), 20))
    return contents.device(
        contents.text(said.get("device_name")),
        f"sm_{capability[1]}" if capability else "",
        multiprocessors=contents.count(props.get("multi_processor_count")),
        l2_bytes=contents.count(props.get("L2_cache_size")),
        memory_bytes=contents.count(props.get("total_memory")),
    )


def _versions(known: list[Mapping[str, Any]]) -> dict[str, str]:
    for about in known:
        if versions := contents.mapping(contents.mapping(about.get("hardware_info")).get("versions")):
            return {contents.text(name): contents.text(value) for name, value in list(versions.items())[:20]}
    return {}


def config_text(text: str) -> str:
    """Turns ``Config(block_sizes=[64, 32], pid_type='flat')`` into ``block_sizes_0=64,block_sizes_1=32,pid_type=flat``.

    Members of a nested list are joined by colons. An empty text is written ``empty``. The result is empty for other code.
    """
    if len(text) > LONGEST_CONFIG:
        return ""
    try:
        call = ast.parse(text.strip(), mode="eval").body
        if not isinstance(call, ast.Call):
            return ""
        said = {one.arg: ast.literal_eval(one.value) for one in call.keywords if one.arg}
    except (SyntaxError, ValueError, TypeError, RecursionError, MemoryError):
        return ""
    parts: dict[str, str] = {}
    for name, value in said.items():
        if isinstance(value, (list, tuple)):
            parts |= {f"{name}_{place}": _word(one) for place, one in enumerate(value)}
        else:
            parts[name] = _word(value)
    return ",".join(f"{name}={value}" for name, value in parts.items())


def as_code(config: str) -> str:
    """Reverse of ``config_text``: ``helion.Config(block_sizes=[64, 32], pid_type='flat')``."""
    said: dict[str, Any] = {}
    for part in filter(None, config.split(",")):
        name, _, word = part.partition("=")
        stem, _, place = name.rpartition("_")
        if stem and place.isdecimal() and int(place) == len(said.get(stem, [])):
            said.setdefault(stem, []).append(_value(word))
        else:
            said[name] = _value(word)
    return f"helion.Config({', '.join(f'{name}={value!r}' for name, value in said.items())})"


def _word(value: object) -> str:
    if isinstance(value, (list, tuple)):
        return ":".join(_word(one) for one in value) + (":" if len(value) < 2 else "")
    return re.sub(r"[^\w.+-]", "_", str(value)) or _EMPTY


def _value(word: str) -> Any:
    if ":" in word:
        return [_value(one) for one in word.split(":") if one]
    if word == _EMPTY:
        return ""
    try:
        return ast.literal_eval(word)
    except (SyntaxError, ValueError):
        return word
