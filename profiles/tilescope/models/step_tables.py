"""Tables of a step: its kernels by module, and the tree of its modules. Pure: ledger -> frame."""

from __future__ import annotations

import math
import re
from collections import defaultdict

import pandas as pd

from tilescope.models import function_names
from tilescope.models.ledger import Entry, Ledger, work
from tilescope.table.step import COLLECTIVE, COPY, FILL, OPTIMIZER, Operator, Step, StepLaunch

#: Columns of ``kernels``: a row for the launches of one function, operator and place, the most time above the roof first. Operations that
#: are not known are one for each element of the largest input, or for 4 bytes that moved: against HBM's roof their number makes no
#: difference. Copies and fills have none.
KERNELS = {
    "function": "str", "operator": "str", "module": "str", "pass": "str", "site": "str", "launches": "int64", "time": "float64",
    "share": "float64", "floor": "float64", "above": "float64", "roof": "str", "moved": "float64", "needed": "float64", "bytes_from": "str",
    "kernel": "str", "library": "str", "operations": "float64", "intensity": "float64", "performance": "float64",
}  # fmt: skip
#: Columns of ``tree``: a row a module, each before its parts. ``start`` is the time of the modules before it, ``path`` its whole name,
#: ``most`` the kernel that takes most of its time.
TREE = {
    "path": "str", "start": "float64", "module": "str", "depth": "int64", "forward": "float64", "backward": "float64", "time": "float64", "share": "float64",
    "floor": "float64", "above": "float64", "launches": "int64", "most": "str",
}  # fmt: skip
_NUMBER = re.compile(r"(?<=\.)\d+(?=\.|$)")
#: The dots between modules where a star stands for each layer's number.
_DOT = re.compile(r"\.(?!\*)")
#: The places of launches outside all modules.
OUTSIDE, OPTIMIZERS, COMMUNICATION = "outside modules", "optimizer", "communication"


def pattern(module: str) -> str:
    """The path with a star for each layer's number: ``layers.*.mlp``."""
    return _NUMBER.sub("*", module)


def place(entry: Entry, operator: Operator) -> str:
    """The module of a launch, or what it belongs to outside of modules."""
    if entry.launch.kind == COLLECTIVE:
        return COMMUNICATION
    if operator.direction == OPTIMIZER:
        return OPTIMIZERS
    return operator.module or OUTSIDE


def kernels(step: Step, ledger: Ledger) -> pd.DataFrame:
    """A row for each function, operator and place; the numbers of layers count as one place. Times are seconds of the step."""
    groups: dict[tuple[str, ...], list[Entry]] = {}
    for entry in ledger.entries:
        operator = step.operator(entry.launch)
        function, named = function_names.said(entry.launch.name), operator.outer or operator.name
        key = (function, named, pattern(place(entry, operator)), operator.direction, operator.site)
        groups.setdefault(key, []).append(entry)
    rows = [
        dict(zip(KERNELS, (*key, len(entries), *_sums(step, ledger, entries)), strict=True))
        for key, entries in groups.items()
    ]
    found = pd.DataFrame(rows, columns=list(KERNELS)).astype(KERNELS).round({"needed": 0})
    order = found["above"].where(found["floor"] > 0, found["time"]).sort_values(ascending=False, kind="stable").index
    return found.loc[order].reset_index(drop=True)


def _sums(step: Step, ledger: Ledger, entries: list[Entry]) -> tuple[object, ...]:
    time, name, absent = sum(entry.share for entry in entries), entries[0].launch.name, math.nan
    operations = sum(_operations(step, entry) for entry in entries)
    largest = max((entry for entry in entries if entry.floor), key=lambda entry: entry.least, default=None)
    floors = [
        sum(of) if all(one.floor for one in entries) else absent
        for of in zip(*((one.least, one.above) for one in entries), strict=True)
    ]
    counted, needs = 0.0, 0.0
    for launch in (entry.launch for entry in entries):
        counted += _counted_bytes(launch)
        needed = step.operator(launch).bytes_needed
        needs += absent if needed is None else needed * launch.part
    moved, bytes_from = (needs, "modelled") if math.isnan(counted) else (counted, "counted")
    return (
        time, time / ledger.step if ledger.step else absent, *floors, largest.floor.roof if largest and largest.floor else "",
        counted, needs, "" if math.isnan(moved) else bytes_from, name, function_names.library(name), operations,
        operations / moved if moved else absent, operations / time if time else absent,
    )  # fmt: skip


def _counted_bytes(launch: StepLaunch) -> float:
    return sum(launch.counted.get(f"dram_bytes_{way}", math.nan) for way in ("read", "written"))


def _operations(step: Step, entry: Entry) -> float:
    """A launch's operations, else the elements of its operator's largest tensor, else those that its bytes hold."""
    launch = entry.launch
    if launch.kind in (COPY, FILL):
        return math.nan
    worked, _ = work(step, launch)
    if worked:
        return sum(operations for _, operations in worked)
    # The shapes of lists of tensors are not recorded, those of numbers are empty.
    if sizes := [math.prod(shape) for shape in step.operator(launch).shapes if shape]:
        return max(sizes) * launch.part
    return _counted_bytes(launch) / 4


def tree(step: Step, ledger: Ledger, *, alike: bool = False) -> pd.DataFrame:
    """A row for each module and each of its parts, in the order in which they first ran. A module's time is that of all its parts.

    A launch of the backward pass belongs to the module of its forward operator. ``alike``: the numbers of layers count as one module.
    """
    nodes: dict[tuple[str, ...], dict[str, float]] = {}
    spent = defaultdict[tuple[str, ...], defaultdict[str, float]](lambda: defaultdict(float))
    for entry in ledger.entries:
        if not entry.share:
            continue
        operator = step.operator(entry.launch)
        where = place(entry, operator)
        # A layer is called as its list: ``blocks.*``.
        path = tuple(_DOT.split(pattern(where)) if alike else where.split("."))
        for depth in range(len(path)):
            node = nodes.setdefault(
                path[: depth + 1], dict.fromkeys(("time", "floor", "above", "launches", "forward", "backward"), 0)
            )
            spent[path[: depth + 1]][entry.launch.name] += entry.share
            node["time"] += entry.share
            node["floor"] += entry.least
            node["above"] += entry.above
            node["launches"] += 1
            if operator.direction in ("forward", "backward"):
                node[operator.direction] += entry.share
    seen = {path: number for number, path in enumerate(nodes)}

    def place_of(path: tuple[str, ...]) -> list[int]:
        """Each path comes before its parts, siblings in their order of appearance."""
        return [seen[path[: depth + 1]] for depth in range(len(path))]

    starts = dict[tuple[str, ...], float]()
    ends: dict[tuple[str, ...], float] = {(): 0.0}
    for path in (ordered := sorted(nodes, key=place_of)):
        starts[path] = ends[path] = ends[path[:-1]]
        ends[path[:-1]] += nodes[path]["time"]
    rows = [
        {
            "path": ".".join(path), "start": starts[path], "module": path[-1], "depth": len(path) - 1, **nodes[path],
            "most": function_names.said(max(spent[path], key=spent[path].__getitem__)),
        }
        for path in ordered
    ]  # fmt: skip
    found = pd.DataFrame(rows, columns=list(TREE))
    return found.assign(share=found["time"] / ledger.step if ledger.step else 0.0).astype(TREE)
