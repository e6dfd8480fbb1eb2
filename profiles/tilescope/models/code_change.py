"""Two compilations of a launch: the counts that moved, at which source line, and the code of both by source line. Pure.

A count of the code is how often an operation stands in it, not how often it runs.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pandas as pd

from tilescope.collectors import compiled_text
from tilescope.models.compare import Side
from tilescope.models.versions import Change
from tilescope.runs import listings
from tilescope.runs.listings import Compiled
from tilescope.table.case import Case

INSTRUCTIONS, LAYOUTS, TMA = "instructions", "layout conversions", "TMA copies"
#: Counted operations by the first part of their SASS mnemonic.
_SASS = {
    "wgmma": "BGMMA HGMMA IGMMA QGMMA", "mma": "BMMA DMMA HMMA IMMA QMMA OMMA",
    "tcgen05": "UTCHMMA UTCIMMA UTCQMMA UTCOMMA UTCMXQMMA",
    "local-memory accesses": "LDL STL", "global loads": "LDG", "global stores": "STG", "asynchronous copies": "LDGSTS",
    TMA: "UTMALDG UTMASTG UTMAREDG UBLKCP", "shared loads": "LDS LDSM", "shared stores": "STS STSM",
    "atomics": "ATOM ATOMG ATOMS RED REDG", "barriers": "BAR", "mbarrier operations": "SYNCS", "shuffles": "SHFL",
    "dtype conversions": "F2FP F2F F2I I2F I2FP F2IP",
}  # fmt: skip
_KINDS = {name: kind for kind, names in _SASS.items() for name in names.split()}
#: Kinds that are also counted by the bits that a thread accesses.
_BY_WIDTH = {"global loads", "global stores", "asynchronous copies", "shared loads", "shared stores"}
_WIDTHS = {"256": 256, "128": 128, "64": 64, "U16": 16, "S16": 16, "U8": 8, "S8": 8}
_OPERATION = re.compile(r'^\s*(?:%[\w:, %]+ = )?"?([a-z_]\w*\.[\w.]+)')
#: Figures of a launch that the compiler gives.
_FIGURES = {
    "spill_bytes_stored": ("spill stores", "byte"), "spill_bytes_loaded": ("spill loads", "byte"),
    "wgmma_short_of_registers": ("wgmma serialized for want of registers", "count"),
    "wgmma_accumulator_used": ("wgmma serialized by other users of their accumulator", "count"),
    "wgmma_serialized_otherwise": ("serialized wgmma", "count"),
    "widest_load": ("widest global load", "byte"), "widest_store": ("widest global store", "byte"),
    "theoretical_occupancy": ("occupancy", "ratio"), "bank_conflicts": ("predicted bank conflicts", "count"),
    "registers": ("registers", "count"), "shared_memory": ("shared memory", "byte"), "stack_bytes": ("stack", "byte"),
    "block_threads": ("threads a block", "count"),
}  # fmt: skip
#: What gets worse, worst first: how it moves then, and the least relative change. The others only move.
_UP, _DOWN, _GONE = "up", "down", "gone"
_WORSE = {
    "wgmma": (_GONE, 0.0), "tcgen05": (_GONE, 0.0), "mma": (_GONE, 0.0), TMA: (_GONE, 0.0), "asynchronous copies": (_GONE, 0.0),
    "spill_bytes_stored": (_UP, 0.0), "spill_bytes_loaded": (_UP, 0.0), "local-memory accesses": (_UP, 0.0),
    "wgmma_short_of_registers": (_UP, 0.0), "wgmma_accumulator_used": (_UP, 0.0), "wgmma_serialized_otherwise": (_UP, 0.0),
    "widest_load": (_DOWN, 0.0), "widest_store": (_DOWN, 0.0), "global loads": (_UP, 0.5), "global stores": (_UP, 0.5),
    "theoretical_occupancy": (_DOWN, 0.0), LAYOUTS: (_UP, 0.0), "bank_conflicts": (_UP, 0.1), "barriers": (_UP, 0.25),
    INSTRUCTIONS: (_UP, 0.1),
}  # fmt: skip
#: Counts that grow with the code where a loop is unrolled, and the work that grows with them.
_OF_CODE = {"global loads", "global stores", "barriers", LAYOUTS, INSTRUCTIONS}
_GLOBAL = {"global loads", "global stores", "asynchronous copies"}
_PRODUCTS = ("wgmma", "mma", "tcgen05")
#: An operation that is gone does not get worse where one of these came: Triton chose a newer one.
_REPLACED = {
    "mma": ("wgmma", "tcgen05"),
    "wgmma": ("tcgen05",),
    "asynchronous copies": (TMA,),
    TMA: ("asynchronous copies",),
}
#: The count whose lines tell where a figure comes from.
_LINES_OF = {
    "spill_bytes_stored": "local-memory accesses", "spill_bytes_loaded": "local-memory accesses",
    "widest_load": "global loads", "widest_store": "global stores",
    **dict.fromkeys(("wgmma_short_of_registers", "wgmma_accumulator_used", "wgmma_serialized_otherwise"), "wgmma"),
}  # fmt: skip


@dataclass(frozen=True)
class Moved(Change):
    """A count that differs. ``line`` is the source line where it grew or shrank most, None where no line is known.

    ``worse``: the GPU has more to do or can do less at a time. Others may be good or bad.
    """

    line: int | None = None
    worse: bool = False


@dataclass(frozen=True)
class Launch:
    """A launch that both sides compiled: the row of its case (``compare.compare``), and the counts that moved, the worst first."""

    row: Mapping[str, Any]
    baseline: Compiled
    candidate: Compiled
    moved: tuple[Moved, ...]

    @property
    def case(self) -> str:
        """``gemm triton forward 512x512-fp16``."""
        return " ".join(filter(None, (self.row[name] for name in ("kernel", "impl", "pass", "workload", "config"))))

    @property
    def worse(self) -> list[Moved]:
        """What got worse; empty where the case was timed and did not get slower."""
        timed = self.row["verdict"] in ("alike", "faster")
        return [] if timed else [one for one in self.moved if one.worse]

    @property
    def place(self) -> str:
        """The file and the line of the worst change: ``softmax.py:40``."""
        line = next((one.line for one in self.moved if one.line), None)
        return f"{self.candidate.file}:{line}" if line else self.candidate.file


def sentence(launches: Sequence[Launch]) -> str:
    """``2 of 9 launches got worse, 3 more compiled to other code``."""
    worse, changed = sum(bool(one.worse) for one in launches), sum(bool(one.moved) for one in launches)
    if not launches:
        return "no launch was compiled on both sides: record both with the compiler"
    if not changed:
        return "the compiled code is the same"
    if len(launches) == 1:
        return "the launch got worse" if worse else "the launch compiled to other code and did not get worse"
    others = f", {changed - worse} {'more ' if worse else ''}compiled to other code" if changed > worse else ""
    return f"{worse or 'none'} of {len(launches)} launches got worse{others}"


def launches(baseline: Side, candidate: Side, rows: pd.DataFrame) -> list[Launch]:
    """The launches of the cases in ``rows`` (those of ``compare.compare``) that both sides compiled, the worst first.

    Launches of one function are paired in their order. Raises ValueError for damaged listings.
    """
    found = []
    for row in rows.to_dict("records"):
        old, new = (
            _compiled(
                side, Case(row[f"{of}kernel"], row[f"{of}impl"], row["pass"], row["workload"], row[f"{of}config"])
            )
            for side, of in ((baseline, "baseline_"), (candidate, ""))
        )
        found += [Launch(row, old[key][0], new[key][0], tuple(moved(old[key], new[key]))) for key in new if key in old]
    return sorted(found, key=lambda one: min(map(_rank, one.moved), default=len(_WORSE)))


def _compiled(side: Side, case: Case) -> dict[tuple[str, int], tuple[Compiled, dict[str, float]]]:
    """The case's compilations and their figures, by function and number among that function's launches."""
    table, seen = side.loaded.table, Counter[str]()
    own = table[(table["source"] == "compiler") & table["metric"].isin(_FIGURES) & (table["kernel"] == case.kernel)]
    named = {"impl": case.impl, "pass": case.direction, "workload": case.workload, "config": case.config}
    own = own[(own[list(named)] == list(named.values())).all(axis="columns")]
    found = {}
    for place, launch in enumerate(listings.of_case(side.loaded.folder, case)):
        figures = own[own["launch"] == place]
        values = dict(zip(figures["metric"], figures["value"], strict=True))
        found[launch.function, seen[launch.function]] = launch, values
        seen[launch.function] += 1
    return found


def moved(
    baseline: tuple[Compiled, Mapping[str, float]], candidate: tuple[Compiled, Mapping[str, float]]
) -> list[Moved]:
    """The counts and figures that differ between two compilations, the worst first.

    A side is a compilation and the compiler's figures of it by metric. A figure that one side lacks is left out, and so are the counts
    of a stage that one side lacks.
    """
    lines = counts(baseline[0]), counts(candidate[0])
    sides = [
        {**figures, **{name: float(of.total()) for name, of in counted.items()}}
        for (_, figures), counted in zip((baseline, candidate), lines, strict=True)
    ]
    for side, other in (sides, sides[::-1]):
        for name in other.keys() - side.keys():
            if "-bit " in name and INSTRUCTIONS in side:
                side[name] = 0.0
    before, after = sides
    most = max(side_by_side(baseline[0], candidate[0], "sass"), key=lambda line: line.size, default=None)
    found = []
    for name in (name for name in before if name in after and before[name] != after[name]):
        label, unit = _FIGURES.get(name, (name, "count"))
        places = _LINES_OF.get(name, name)
        where = _line(*(side.get(places, Counter()) for side in lines))
        # Registers and the like belong to no line: most of the code changed there.
        where = where or (most.line if most and name in _FIGURES else None)
        found.append(Moved(
            name, label, unit, before[name], after[name], line=where, worse=_is_worse(name, before, after)
        ))  # fmt: skip
    # A width that all accesses have would be said twice.
    totals = {(one.label, one.baseline, one.candidate) for one in found}
    found = [one for one in found if (one.label.partition("-bit ")[2], one.baseline, one.candidate) not in totals]
    return sorted(found, key=_rank)


def _rank(one: Moved) -> int:
    return list(_WORSE).index(one.metric) if one.worse else len(_WORSE)


def _is_worse(name: str, before: Mapping[str, float], after: Mapping[str, float]) -> bool:
    how, least = _WORSE.get(name, ("", 0.0))
    if how == _GONE:
        came = any(after.get(other, 0) > before.get(other, 0) for other in _REPLACED.get(name, ()))
        return not after[name] and not came
    now = after[name] / _unrolled(before, after) if name in _OF_CODE else after[name]
    change = (now - before[name]) / before[name] if before[name] else math.copysign(math.inf, now)
    return change > least if how == _UP else how == _DOWN and change < 0


def _unrolled(before: Mapping[str, float], after: Mapping[str, float]) -> float:
    """How many times as much of the same work the code holds: 2 where a loop was unrolled by two, at least 1.

    Work is the bits of global accesses, the TMA copies and the products.
    """

    def works(side: Mapping[str, float]) -> tuple[float, ...]:
        parts = [(*name.partition("-bit "), count) for name, count in side.items()]
        bits = sum(int(width) * count for width, _, kind, count in parts if kind in _GLOBAL)
        return bits, side.get(TMA, 0.0), sum(side.get(kind, 0.0) for kind in _PRODUCTS)

    ratios = [new / old for old, new in zip(works(before), works(after), strict=True) if old and new]
    return max(1.0, min(ratios, default=1.0))


def _line(before: Counter[int], after: Counter[int]) -> int | None:
    """The line whose count grew most; where none grew, the line whose count shrank most. Line 0 is an unknown one."""
    change = {line: after[line] - before[line] for line in {*before, *after} if line and after[line] != before[line]}
    return max(change, key=lambda line: (change[line] > 0, abs(change[line]), -line), default=None)


def counts(compiled: Compiled) -> dict[str, Counter[int]]:
    """How often each kind of operation stands in the code, by source line; line 0 is an unknown one.

    Kinds of a stage that was not kept are missing.
    """
    stages, found = compiled.stages, dict[str, Counter[int]]()
    if stages.get("sass"):
        found = {kind: Counter[int]() for kind in (INSTRUCTIONS, *_SASS)}
        for text in compiled_text.read("sass", stages["sass"], compiled.file):
            mnemonic = compiled_text.mnemonic(text.text)
            if text.address is None or mnemonic == "NOP":
                continue
            line, (name, *parts) = text.line or 0, mnemonic.split(".")
            kinds = [INSTRUCTIONS]
            if kind := _KINDS.get(name):
                kinds.append(kind)
                if kind in _BY_WIDTH:
                    kinds.append(f"{_bits(name, parts)}-bit {kind}")
            for kind in kinds:
                found.setdefault(kind, Counter())[line] += 1
    if stages.get("ttgir"):
        found[LAYOUTS] = Counter(
            text.line or 0
            for text in compiled_text.read("ttgir", stages["ttgir"], compiled.file)
            if _operation("ttgir", text.text) == "ttg.convert_layout"
        )
    return found


def _bits(name: str, parts: Sequence[str]) -> int:
    """The bits that a thread accesses. ``LDSM.16.M88.4`` loads four matrices, 32 bits of each."""
    if name in ("LDSM", "STSM"):
        return 32 * int(parts[-1]) if parts and parts[-1].isdigit() and len(parts) > 1 else 32
    return next((_WIDTHS[part] for part in reversed(parts) if part in _WIDTHS), 32)


def _operation(stage: str, text: str) -> str:
    if stage == "ttgir":
        found = _OPERATION.match(text)
        return found[1] if found else ""
    return compiled_text.mnemonic(text)


@dataclass(frozen=True)
class LineCode:
    """The code of one source line in one stage on both sides."""

    line: int
    baseline: tuple[str, ...]
    candidate: tuple[str, ...]
    #: Each operation that one side has more often, with its counts.
    operations: tuple[tuple[str, int, int], ...]

    @property
    def size(self) -> int:
        return sum(abs(new - old) for _, old, new in self.operations)


def side_by_side(baseline: Compiled, candidate: Compiled, stage: str) -> Iterator[LineCode]:
    """The code of each source line whose operations differ in ``stage`` (``ttgir``, ``ptx`` or ``sass``).

    Numbers of registers and values differ in every compilation, therefore operands do not count.
    """
    sides = [dict[int, list[str]](), dict[int, list[str]]()]
    for side, compiled in zip(sides, (baseline, candidate), strict=True):
        for text in compiled_text.read(stage, compiled.stages.get(stage, ""), compiled.file):
            if text.line and text.text.strip():
                side.setdefault(text.line, []).append(text.text.strip())
    for line in sorted({*sides[0], *sides[1]}):
        code = [tuple(side.get(line, ())) for side in sides]
        old, new = (Counter(_operation(stage, text) for text in texts) for texts in code)
        if differing := [
            (name, old[name], new[name])
            for name in sorted({*old, *new}, key=lambda name: (-abs(new[name] - old[name]), name))
            if old[name] != new[name]
        ]:
            yield LineCode(line, code[0], code[1], tuple(differing))
