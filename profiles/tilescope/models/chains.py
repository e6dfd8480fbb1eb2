"""Chains: launches of a step that one kernel can do, as torch.compile makes it, and what that saves. Pure: step and ledger -> chains.

A kernel in the place of others reaches all of its roof at most, and at least half of it or what those reach.
"""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from tilescope.collectors.foreign_files.operator_costs import SIZES
from tilescope.hardware import roofs
from tilescope.models.ledger import Entry, Ledger
from tilescope.table.run import Device
from tilescope.table.step import BACKWARD, COPY, FORWARD, KERNEL, OPTIMIZER, Operator, Step

#: The share of a roof that a good kernel reaches, and any that a suggestion adds.
GOOD, FAIR = 0.85, 0.5
#: Seconds of the shortest kernel on a stream and in a CUDA graph.
_SHORTEST, _IN_GRAPH = 2e-6, 1e-6
#: Operators that torch.compile leaves as they are, by their own names; it decomposes norms, gathers and concatenations.
_HEAVY = re.compile(
    r"mm(_activation)?$|linear|matmul|conv|attention|dense_backward|index_put|sort|topk|scatter|nccl|rng|triton_|foreach|fused_(?!rms)|rnn|fft|nonzero|unique"
)
#: Operators that reduce across the rows of a tensor: what follows them reads their inputs again, in another kernel.
_ACROSS = re.compile(r"batch_?norm", re.I)
_NORM, _REDUCTION = re.compile("_norm"), re.compile(r"(sum|mean|amax|amin)$")


class Saves(NamedTuple):
    """Seconds that a change saves: at least, likely, at most."""

    least: float
    saving: float
    most: float


def total(found: Iterable[Saves]) -> Saves:
    """The sum of what several changes save."""
    return Saves(*map(sum, zip(*found, strict=True)))


class Chain(NamedTuple):
    """Launches that one kernel can do: their pass and operations, where they are, what one kernel saves, and their number less 1."""

    direction: str
    names: tuple[str, ...]
    site: str
    module: str
    saves: Saves
    fewer: int

    @property
    def alone(self) -> bool:
        """Whether one kernel written by hand can do it: batch norms need several."""
        return bool(self.fewer) and not _ACROSS.search(" ".join(self.names))


def of(step: Step, ledger: Ledger, device: Device) -> list[Chain]:
    """What one kernel each can do in less time, be it the work of several launches or of one."""
    found = [_fused(step, entries, device) for entries in _linked(step, ledger)] if roofs.roof(device, "hbm") else []
    # Another kernel for one reduction takes as long.
    return [
        chain for chain in found if chain.saves.saving > 0 and (chain.fewer or not _REDUCTION.search(chain.names[0]))
    ]


def rates(device: Device, moved: float) -> tuple[float, float]:
    """Bytes a second to and from memory, and the fastest ones of so many bytes, which L2 may hold."""
    names = ["hbm", "hbm_read", *(["l2"] if moved <= device.l2_bytes else [])]
    rate, *faster = (roof.value for name in names if (roof := roofs.roof(device, name)))
    return rate, max([rate, *faster])


def needed(operator: Operator, entry: Entry) -> float:
    """The bytes that a launch must move, or else those that it moved; 0 where neither is known."""
    if operator.bytes_needed is not None:
        return operator.bytes_needed * entry.launch.part
    return sum(entry.launch.counted.get(name, 0.0) for name in ("dram_bytes_read", "dram_bytes_written"))


def common(modules: Iterable[str]) -> str:
    """The path that all modules have in common."""
    parts = zip(*(module.split(".") for module in modules), strict=False)
    return ".".join(of[0] for of in itertools.takewhile(lambda of: len(set(of)) == 1, parts))


def operation(name: str) -> str:
    return re.sub(r"^(aten|tilescope|autograd)::", "", name).removesuffix("Backward0")


def _linked(step: Step, ledger: Ledger) -> Iterator[list[Entry]]:
    """Launches between products and libraries' large kernels, those that work on tensors of equal sizes together."""
    for run in _runs(step, ledger):
        groups: list[tuple[set[int], list[Entry]]] = []
        for entry in run:
            sizes, entries = _sizes(step.operator(entry.launch)), [entry]
            for group in [one for one in groups if one[0] & sizes]:
                groups.remove(group)
                sizes, entries = sizes | group[0], group[1] + entries
            groups.append((sizes, entries))
        yield from (sorted(entries, key=lambda one: one.place) for _, entries in groups)


def _runs(step: Step, ledger: Ledger) -> Iterator[list[Entry]]:
    """Launches of one pass that follow each other on a stream, none of which is a product or a library's large kernel."""

    def place(entry: Entry) -> tuple[bool, str, str]:
        return _small(step, entry), entry.launch.stream, step.operator(entry.launch).direction

    for (small, *_), run in itertools.groupby(ledger.entries, place):
        if small:
            yield list(run)


def _small(step: Step, entry: Entry) -> bool:
    """Whether a launch is one that torch.compile fuses with its neighbours."""
    operator, kind = step.operator(entry.launch), entry.launch.kind
    # A copy with a floor stays on the GPU.
    return (
        (kind == KERNEL or (kind == COPY and entry.floor is not None)) and bool(operator.name) and not operator.flops
        and operator.direction != OPTIMIZER and not _HEAVY.search(operator.name) and bool(needed(operator, entry))
    )  # fmt: skip


def _sizes(operator: Operator) -> set[int]:
    """Elements of the tensors by which an operator is linked with others: the largest, and those that are no vectors of parameters."""
    sizes = [math.prod(shape) for shape in operator.shapes]
    joined = {sum(sizes)} if operator.name.endswith("::cat") else set()
    return {max(sizes, default=0), *joined} | {math.prod(shape) for shape in operator.shapes if len(shape) > 1}


def _fused(step: Step, chain: Sequence[Entry], device: Device) -> Chain:
    operators, needs = list[Operator](), list[float]()
    for entry in chain:
        operator = step.operator(entry.launch)
        # Launches of one call share what it needs.
        if operators and entry.launch.part < 1 and operator == operators[-1]:
            needs[-1] += needed(operator, entry)
        else:
            operators.append(operator)
            needs.append(needed(operator, entry))
    # Each link writes a tensor that the next operator reads: one on other sizes reads another.
    trains = any(operator.direction == BACKWARD for operator in step.operators)
    links = sum(
        (1 if _is_needed_again(before, after, trains) else 2) * min(_largest(after), need)
        for before, after, need in zip(operators, operators[1:], needs, strict=False)
        if _sizes(before) & _sizes(after)
    )
    again = sum(_largest(one) * (2 if "backward" in one.name else 1) for one in operators if _ACROSS.search(one.name))
    moved = max(sum(needs) - links + again, *map(_largest, operators), 0.0)
    rate, fastest = rates(device, moved)
    time = sum(entry.share for entry in chain)
    fair = min(max(sum(entry.least for entry in chain) / time if time else 0.0, FAIR), GOOD)
    good = FAIR if any(_reorders(step.operator(entry.launch), entry, rate) for entry in chain) else GOOD
    outer = len({operator.outer for operator in operators}) > 1
    return Chain(
        operators[0].direction,
        tuple(dict.fromkeys(operation((outer and one.outer) or one.name) for one in operators)),
        next(filter(None, (operator.site for operator in operators)), ""),
        common([operator.module for operator in operators]),
        Saves(
            max(time - max(moved / rate / fair, _SHORTEST), 0.0),
            time - max(moved / rate / good, _SHORTEST),
            time - max(moved / fastest, _IN_GRAPH),
        ),
        len(chain) - 1,
    )


def _is_needed_again(before: Operator, after: Operator, trains: bool) -> bool:
    """Whether a later launch reads what one operator writes for the next: a sum in place, or what a norm's gradient needs."""
    in_place = before.name.endswith("_") and not before.name.endswith("::copy_")
    return in_place or (trains and after.direction == FORWARD and bool(_NORM.search(after.name)))


def _reorders(operator: Operator, entry: Entry, rate: float) -> bool:
    """Whether a kernel that does this reads in one order and writes in another: it joins tensors, or copies so, and slowly."""
    dtypes = {dtype for dtype, shape in zip(operator.dtypes, operator.shapes, strict=False) if shape}
    copies = operator.name == "aten::copy_" and len(dtypes) == 1
    return operator.name.endswith("::cat") or (copies and needed(operator, entry) / rate < FAIR * entry.share)


def _largest(operator: Operator) -> float:
    """Bytes of an operator's largest input."""
    held = zip(operator.shapes, operator.dtypes, strict=False)
    return float(max((math.prod(shape) * SIZES.get(dtype.lower(), 0) for shape, dtype in held), default=0))
