"""Follows data through a compiled kernel: which parameters it accesses, and whether floats in memory decide where.

Triton's own parser reads the kernel's TTIR or TTGIR. Each value gets the names of the pointers that it is computed from, and ``_FLOAT``
if it is computed from a float in memory. Imports triton.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from tilescope.execution import offline

#: Operations that read and that write memory, by the ends of their names. The first operand is an address or a descriptor.
_BOTH = ("tt.atomic_rmw", "tt.atomic_cas", "tt.descriptor_reduce")
_READS = ("tt.load", "tt.descriptor_load", "tt.descriptor_gather", "global_to_local", *_BOTH)
_WRITES = ("tt.store", "tt.descriptor_store", "tt.descriptor_scatter", "local_to_global", *_BOTH)
#: Positions of stored values.
_STORED = {
    "tt.store": (1,), "tt.atomic_rmw": (1,), "tt.atomic_cas": (1, 2),
    "tt.descriptor_store": (1,), "tt.descriptor_reduce": (1,), "tt.descriptor_scatter": (3,),
}  # fmt: skip
#: Number of first operands that decide which of an operation's blocks run, and how often.
_CONTROLS = {"scf.for": 3, "scf.if": 1}
#: Operations through which data is not followed: branches between blocks, and calls.
_NOT_FOLLOWED = ("cf.", "scf.while", "scf.execute_region", "scf.index_switch", "tt.call")
_FLOAT = "a float in memory"
_FLOAT_TYPE = re.compile(r"(?:^|x)(?:bf16|f\d+\w*)\b")


@dataclass(frozen=True)
class _Operation:
    """An operation by the identities of its values. ``region`` is the one that it is in, ``regions`` are its own.

    ``floats`` are the values whose type is a float.
    """

    name: str
    operands: list[int]
    results: list[int]
    floats: set[int]
    region: int
    regions: list[int]


class Flow:
    """The flow of data in a kernel. ``stages`` are its texts by name.

    ``touched`` has the parameters that are ``read`` and ``written``; None where an address comes from memory, or without a text.
    ``by_floats`` says whether a float in memory may decide an address, a mask or a branch: True where that is not known.
    """

    def __init__(self, stages: Mapping[str, Any]) -> None:
        ttir = str(stages.get("ttir") or "")
        self.touched: dict[str, list[str]] | None = None
        self.by_floats = True
        self._operations: list[_Operation] = []
        #: Arguments of a region's block, by region.
        self._arguments: dict[int, list[int]] = {}
        self._labels: dict[int, set[str]] = defaultdict(set)
        if text := ttir or str(stages.get("ttgir") or ""):
            self._parse(text)
            self._follow()
            accesses = [one for one in self._operations if one.name.endswith((*_READS, *_WRITES))]
            self.touched = self._accessed(accesses)
            self.by_floats = any(map(self._decided_by_float, self._operations))

    def _parse(self, text: str) -> None:
        module = offline.parsed(text)
        module.walk(self._add)
        kernel = module.get_function(module.get_entry_func_name())
        for argument in map(kernel.args, range(kernel.get_num_args())):
            name = re.match(r'loc\("([^"]+)"', str(argument.get_loc()))
            if name and re.match(r"!tt\.(?:ptr|tensordesc)<", str(argument.get_type())):
                # The name of a tuple's item begins with the tuple's.
                self._labels[argument.id()].add(name[1].partition(".")[0])

    def _add(self, operation: Any) -> None:
        block = operation.get_block()
        if block is None:  # the module
            return
        region = block.get_parent().id()
        self._arguments[region] = [block.arg(n).id() for n in range(block.get_num_arguments())]
        operands = [operation.get_operand(n) for n in range(operation.get_num_operands())]
        results = [operation.get_result(n) for n in range(operation.get_num_results())]
        self._operations.append(
            _Operation(
                operation.get_name(),
                [value.id() for value in operands],
                [value.id() for value in results],
                {value.id() for value in (*operands, *results) if _FLOAT_TYPE.search(str(value.get_type()))},
                region,
                [operation.get_region(n).id() for n in range(operation.get_num_regions())],
            )
        )

    def _follow(self) -> None:
        """Passes labels on until none is new."""
        parents = {region: one for one in self._operations for region in one.regions}
        count = -1
        while count < (count := sum(map(len, self._labels.values()))):
            for one in self._operations:
                self._pass_on(one, parents.get(one.region))

    def _pass_on(self, one: _Operation, parent: _Operation | None) -> None:
        ends = one.name == "scf.yield" and parent is not None and parent.name in _CONTROLS
        if one.name in _CONTROLS or ends:
            owner = parent if ends and parent else one
            # A loop's index comes before the carried values.
            carried = [self._arguments.get(region, [])[1:] for region in owner.regions]
            values = one.operands[_CONTROLS.get(one.name, 0) :]
            for target in (owner.results, *carried):
                for value, passed in zip(values, target, strict=False):
                    self._labels[passed] |= self._labels[value]
            return
        found = set().union(*(self._labels[value] for value in one.operands))
        reads = one.name.endswith(_READS)
        arguments = [value for region in one.regions for value in self._arguments.get(region, ())]
        for value in (*one.results, *arguments):
            # A loaded value does not lead where its address does.
            self._labels[value] |= found & {_FLOAT} if reads else found
            if reads and value in one.floats:
                self._labels[value].add(_FLOAT)

    def _accessed(self, accesses: Iterable[_Operation]) -> dict[str, list[str]] | None:
        found: dict[str, set[str]] = {"read": set(), "written": set()}
        for one in accesses:
            through = self._labels[one.operands[0]] - {_FLOAT}
            if not through:
                return None
            for way, names in (("read", _READS), ("written", _WRITES)):
                found[way] |= through if one.name.endswith(names) else set()
        return {way: sorted(names) for way, names in found.items()}

    def _decided_by_float(self, one: _Operation) -> bool:
        """Whether a float decides what the operation does, or is stored as an integer, which may be loaded as an address."""
        if one.name.startswith(_NOT_FOLLOWED):
            return True
        reached = {place for place, value in enumerate(one.operands) if _FLOAT in self._labels[value]}
        if one.name in _CONTROLS:
            return min(reached, default=_CONTROLS[one.name]) < _CONTROLS[one.name]
        if not one.name.endswith((*_READS, *_WRITES)):
            return False
        default = {2} if one.name == "tt.load" else set[int]()
        stored = {place for place in _STORED.get(one.name, ()) if one.operands[place] in one.floats}
        return bool(reached - default - stored)
