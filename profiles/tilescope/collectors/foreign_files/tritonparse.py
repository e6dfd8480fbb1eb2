"""tritonparse's events: a line of JSON for each compilation and launch of Triton, raw or from ``tritonparse parse``."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tilescope.collectors.foreign_files import contents
from tilescope.collectors.foreign_files.contents import DIRECTION, IMPLEMENTATION, Contents, Rows
from tilescope.files import bounded_reading
from tilescope.table import launch_configs
from tilescope.table.case import config_text

NAME = "tritonparse's events (.ndjson, .ndjson.gz)"
SOURCE = "tritonparse"
#: Most bytes of one line: a compilation has the text of every stage.
LINE = 64 * bounded_reading.MIB
_OPTIONS = ("num_warps", "num_stages", "num_ctas")
_COMPILED, _LAUNCHED = "compilation", "launch"


def reads(head: bytes, name: str) -> bool:
    return head.lstrip()[:1] == b"{" and (b'"event_type"' in head or name.endswith((".ndjson", ".ndjson.gz")))


@dataclass
class _Events:
    rows: Rows
    launches: int = 0
    #: Seconds of each compilation, by its hash, and its constants by the number of their argument.
    compiled: dict[str, tuple[float | None, Mapping[str, Any]]] = field(default_factory=dict)
    names: dict[str, str] = field(default_factory=dict)
    placed: dict[str, tuple[str, str, str]] = field(default_factory=dict)
    compiled_for: dict[str, str] = field(default_factory=dict)
    configs: list[dict[str, Any]] = field(default_factory=list)
    targets: dict[str, None] = field(default_factory=dict)
    versions: dict[str, str] = field(default_factory=dict)
    sites: dict[str, Counter[str]] = field(default_factory=dict)
    started: str = ""
    damaged: int = 0


@bounded_reading.parser
def read(path: Path) -> Contents:
    """Reads every launch with its grid, threads, shared memory and config, and the time of each compilation. There are no GPU times.

    Raises Unreadable where there is no event.
    """
    found = _Events(Rows(SOURCE))
    for event in contents.values(path, LINE):
        found.damaged += event is None
        kind = contents.mapping(event).get("event_type")
        if kind in (_COMPILED, _LAUNCHED):
            stamp = contents.text(event.get("timestamp"), 40)
            found.started = found.started or (stamp if re.match(r"\d{4}-\d\d-\d\dT", stamp) else "")
            (_compilation if kind == _COMPILED else _launch)(found, event)
    spent: dict[tuple[str, str, str], float] = {}
    for code, (seconds, _) in found.compiled.items():
        case = found.placed.get(code, (found.names[code], "not launched", found.compiled_for[code]))
        if seconds is not None:
            spent[case] = spent.get(case, 0.0) + seconds
    for (kernel, workload, gpu), seconds in spent.items():
        found.rows.add(kernel, workload, None, {"compile_time": seconds}, gpu=gpu)
    contents.require(
        found.rows, "no compilation or launch of Triton is in it: call tritonparse's init() before the kernels run"
    )
    device, notes = contents.of_gpus({target: contents.device("", target) for target in found.targets})
    for config in found.configs:
        config["workload"] = found.rows.placed(config["workload"], config.pop("gpu"))
    notes += [f"damaged lines that were left out: {found.damaged}"] if found.damaged else []
    if not found.launches:
        notes.append("no launch is in it: set TRITON_TRACE_LAUNCH=1 to record them")
    return Contents(
        "tritonparse",
        found.rows.frame(),
        device,
        {name: {"summary": f"launched at {contents.listed(sites)}"} for name, sites in found.sites.items()},
        found.versions,
        found.started.replace("%f", "0"),
        notes,
        launch_configs.frame(found.configs),
    )


def _compilation(found: _Events, event: Mapping[str, Any]) -> None:
    about = contents.mapping(event.get("payload")).get("metadata")
    if not isinstance(about, dict):
        return
    code = contents.text(about.get("hash"), 200)
    found.names[code] = contents.name(about.get("name", ""))
    found.compiled[code] = (_compile_time(about), contents.mapping(about.get("src_constants")))
    found.compiled_for[code] = _target(found, about)
    _note_version(found, about)


def _compile_time(about: Mapping[str, Any]) -> float | None:
    """Seconds of a compilation, the sum of its stages; None where the code came from the cache."""
    times = about.get("times")
    if about.get("cache_hit") is not False or not isinstance(times, dict):
        return None
    stages = times.get("lowering_stages")
    listed = stages if isinstance(stages, list) else []
    each = [stage[1] for stage in listed if isinstance(stage, list) and len(stage) == 2]
    told = [contents.number(one) for one in (times.get("ir_initialization"), *each, times.get("store_results"))]
    return None if None in told or not each else sum(one for one in told if one is not None) * 1e-6


def _launch(found: _Events, event: Mapping[str, Any]) -> None:
    about = contents.mapping(event.get("compilation_metadata"))
    kernel = contents.name(event.get("name") or about.get("name", ""))
    grid = contents.sizes(event.get("grid"))
    warps, width, ctas = (contents.number(about.get(name)) for name in ("num_warps", "warp_size", "num_ctas"))
    threads = warps * width if warps and width else None
    workload = contents.workload(grid, [int(threads)] if threads else None)
    code = contents.text(about.get("hash"), 200)
    gpu = _target(found, about) or found.compiled_for.get(code, "")
    found.placed.setdefault(code, (kernel, workload, gpu))
    # Each program is ``num_ctas`` blocks.
    blocks = contents.product(grid)
    values = {
        "shared_memory": contents.number(about.get("shared")),
        "block_threads": threads,
        "grid_blocks": blocks * (ctas or 1) if blocks else None,
    }
    found.rows.add(kernel, workload, found.launches, values, gpu=gpu)
    config = _config(found, code, event, about)
    if config:
        found.configs.append({
            "kernel": kernel, "impl": IMPLEMENTATION, "pass": DIRECTION, "workload": workload, "dtype": "", "config": "",
            "launch": found.launches, "function": kernel, "launched": config_text(config), "autotuned": "", "source": SOURCE,
            "gpu": gpu,
        })  # fmt: skip
    if site := _site(event.get("stack")):
        found.sites.setdefault(kernel, Counter())[site] += 1
    found.launches += 1
    _note_version(found, about)


def _config(found: _Events, code: str, event: Mapping[str, Any], about: Mapping[str, Any]) -> dict[str, int]:
    """Constants of the launched code and its options, by name. The file has constants by the number of their argument."""
    names = list(contents.mapping(event.get("extracted_args")))
    constants = found.compiled.get(code, (None, {}))[1]
    config: dict[str, int] = {}
    for place, value in constants.items():
        number = re.fullmatch(r"\((\d{1,4}),\)", place)
        if number and int(number[1]) < len(names) and names[int(number[1])].isidentifier() and _whole(value):
            config[names[int(number[1])]] = value
    return config | {name: about[name] for name in _OPTIONS if _whole(about.get(name))}


def _whole(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _site(stack: object) -> str:
    """The line of the launch: the last one outside Triton and tritonparse."""
    own = [
        one
        for one in contents.mappings(stack)
        if not re.search(
            r"[/\\](triton[/\\](runtime|backends|compiler)|tritonparse)[/\\]", contents.text(one.get("filename"), 1000)
        )
    ]
    if not own:
        return ""
    file = re.split(r"[/\\]", contents.text(own[-1].get("filename"), 1000))[-1]
    return f"{file}:{contents.text(own[-1].get('line'), 20)}"


def _target(found: _Events, about: Mapping[str, Any]) -> str:
    """The architecture that a compilation names: ``sm_90``, or ``gfx942`` of AMD's."""
    target = contents.mapping(about.get("target"))
    arch = contents.text(target.get("arch"), 40).partition(":")[0]
    called = arch if contents.text(target.get("backend")) == "hip" else contents.target(arch)
    if called:
        found.targets[called] = None
    return called


def _note_version(found: _Events, about: Mapping[str, Any]) -> None:
    if version := contents.text(about.get("triton_version"), 40):
        found.versions.setdefault("triton", version)
