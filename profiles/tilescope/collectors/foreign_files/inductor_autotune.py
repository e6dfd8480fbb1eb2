"""Inductor's autotuning results, by ``LOG_AUTOTUNE_RESULTS=1``: a line of JSON for each choice of each operator.

Choices of Triton become the configs of a sweep; each choice of another library becomes a case. Inductor times single calls by events.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tilescope.collectors.foreign_files import contents
from tilescope.collectors.foreign_files.contents import IMPLEMENTATION, Contents, Rows
from tilescope.files import bounded_reading
from tilescope.table.case import config_text
from tilescope.table.run import Device

NAME = "Inductor's autotuning results (autotuning_result_json_list.txt)"
SOURCE = "inductor"
#: Most bytes of one line.
LINE = bounded_reading.MIB
#: The numbers in a choice's ``tile_shape``.
_TILE = ("BLOCK_M", "BLOCK_K", "BLOCK_N")
_NUMBERS = ("GROUP_M", "num_warps", "num_stages")
#: Inductor's value for an absent size.
_ABSENT = -1


def reads(head: bytes, name: str) -> bool:
    first = head.lstrip().partition(b"\n")[0]
    return first[:1] == b"{" and b'"benchmark_result"' in first and b'"op_name"' in first


@bounded_reading.parser
def read(path: Path) -> Contents:
    """Reads the time of every choice. A choice that could not run has an infinite time, and no row here.

    Raises Unreadable where no choice was timed.
    """
    rows, devices, damaged, failed = Rows(SOURCE), dict[str, Device](), 0, 0
    for said in contents.values(path, LINE):
        if not isinstance(said, dict):
            damaged += 1
            continue
        gpu = contents.text(said.get("cuda_device_name"))
        time = contents.number(said.get("benchmark_result"))
        if time is None:
            failed += 1
            continue
        impl, config = _choice(said)
        operator, values = contents.name(said.get("op_name", "")), {"interval": time * 1e-3}
        rows.add(operator, _workload(said), None, values, config=config, impl=impl, gpu=gpu)
        devices.setdefault(gpu, contents.device(gpu))
    contents.require(rows, "no choice in it was timed: compile with max_autotune and LOG_AUTOTUNE_RESULTS=1")
    device, notes = contents.of_gpus(devices)
    notes += [f"choices that could not be run: {failed}"] if failed else []
    notes += [f"damaged lines that were left out: {damaged}"] if damaged else []
    return Contents("Inductor", rows.frame(), device, notes=notes)


def _choice(said: Mapping[str, Any]) -> tuple[str, str]:
    """The implementation and the config of a choice. The config is empty for another library's."""
    if said.get("backend") != "Triton":
        called = contents.text(said.get("kernel_call_name")) or contents.text(said.get("backend")) or "another"
        return called.replace("/", "_"), ""
    tile = re.findall(r"-?\d+", contents.text(said.get("tile_shape")))
    found = {name: int(value) for name, value in zip(_TILE, tile, strict=False)} if len(tile) == len(_TILE) else {}
    found |= {name: contents.count(said[name]) for name in _NUMBERS if contents.number(said.get(name)) is not None}
    return IMPLEMENTATION, config_text({name: value for name, value in found.items() if value not in (_ABSENT, 0)})


def _workload(said: Mapping[str, Any]) -> str:
    known = contents.mappings(said.get("input_nodes"))
    sizes = [re.findall(r"\d+", contents.text(node.get("size"))) for node in known]
    dtype = contents.first(contents.text(node.get("dtype")).removeprefix("torch.") for node in known)
    return contents.inputs(sizes, dtype) or "sizes not recorded"
