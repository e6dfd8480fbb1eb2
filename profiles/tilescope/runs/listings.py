"""Listings of a run's kernels (TTGIR, PTX, SASS): read from the compiler's artefacts, and packed for a recording.

Imports neither torch nor triton.
"""

from __future__ import annotations

import json
import lzma
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

import pandas as pd

from tilescope.files import atomic_writing, bounded_reading, json_shape, names
from tilescope.runs import artefacts
from tilescope.table.case import Case
from tilescope.table.run import Run

#: The one file of a recording's listings: kernels of a family are similar and compress well together.
_KEPT = "listings.json.xz"
#: Most bits of the number of an element's register, lane and warp together.
_MOST_BITS = 22


@dataclass(frozen=True)
class Shared:
    """A layout of shared memory. ``order`` has the dimensions, the one of stride 1 first; empty: the last dimension is.

    ``kind`` is ``swizzled``, ``tiles`` (of ``swizzle`` bytes, which TMA and wgmma read) or ``linear``, whose ``bases`` are the
    coordinates of the offsets 1, 2, 4 and so on. ``paddings`` are pairs: after so many elements, so many are left out.
    """

    kind: str = "swizzled"
    order: tuple[int, ...] = ()
    vec: int = 1
    per_phase: int = 1
    max_phase: int = 1
    swizzle: int = 0
    bases: tuple[tuple[int, ...], ...] = ()
    paddings: tuple[tuple[int, int], ...] = ()

    def __post_init__(self) -> None:
        if min(self.vec, self.per_phase, self.max_phase, *(each for each, _ in self.paddings)) < 1:
            raise ValueError("a layout of shared memory has parts of no elements")

    @property
    def text(self) -> str:
        order = list(self.order)
        if self.kind == "tiles":
            return f"NVMMASharedLayout, swizzle of {self.swizzle} bytes"
        if self.paddings:
            return f"PaddedSharedLayout with {' and '.join(f'{pad} elements after each {each}' for each, pad in self.paddings)}"
        if self.kind == "linear":
            return "SharedLinearLayout"
        return f"SwizzledSharedLayout({self.vec}, {self.per_phase}, {self.max_phase}, {order})"


@dataclass(frozen=True)
class Transfer:
    """An operation that moves a tile of ``shape`` between registers and shared memory, at ``line`` of the launch's file.

    ``registers``, ``lanes`` and ``warps`` are the coordinates of the elements in registers, lanes and warps 1, 2, 4 and so on: all
    other elements follow by exclusive or. ``buffer`` numbers the buffers of the launch. ``matrices``: ``ldmatrix`` or ``stmatrix``
    moves it. ``shared`` is None where the compiler lays out the memory itself.
    """

    operation: str
    line: int
    shape: tuple[int, ...]
    bits: int
    registers: tuple[tuple[int, ...], ...]
    lanes: tuple[tuple[int, ...], ...]
    warps: tuple[tuple[int, ...], ...]
    shared: Shared | None = None
    buffer: int = 0
    matrices: bool = False

    def __post_init__(self) -> None:
        held = (*self.registers, *self.lanes, *self.warps)
        order, bases = (self.shared.order, self.shared.bases) if self.shared else ((), ())
        inside = all(
            len(place) == len(self.shape) and all(0 <= at < most for at, most in zip(place, self.shape, strict=True))
            for place in (*held, *bases)
        )
        whole = self.shape and self.bits in (8, 16, 32, 64) and max(len(held), len(bases)) <= _MOST_BITS
        if not (inside and whole) or sorted(order or range(len(self.shape))) != list(range(len(self.shape))):
            raise ValueError("the elements of a transfer are not those of its tile")


@dataclass(frozen=True)
class Compiled:
    """A compiled launch. ``stages`` maps ``ttgir``, ``ptx`` and ``sass`` to text. ``file`` is empty in old runs."""

    function: str
    stages: Mapping[str, str]
    file: str = ""
    transfers: tuple[Transfer, ...] = ()


def of_case(folder: Path, case: Case) -> list[Compiled]:
    """The compiled launches of a case in the run at ``folder``, in order; empty where none were kept.

    ``case.kernel`` is the kernel's name in the run's table. Raises ValueError for a damaged file.
    """
    kept, found = folder / _KEPT, artefacts.find(folder, "compiler", case)
    try:
        if found is not None:
            launches = bounded_reading.data_of(found, folder)["launches"]
        else:
            launches = bounded_reading.data_of(kept, folder).get(case.id, [])
        if isinstance(launches, str):  # the id of a recording beside this one, whose listings are the same
            other = folder.parent / names.file_name(launches, "a run's id")
            launches = bounded_reading.data_of(other / _KEPT, other).get(case.id, [])
        return json_shape.fit(launches, list[Compiled], "launches")
    except FileNotFoundError:
        return []
    except (ValueError, LookupError, TypeError, AttributeError) as error:
        why = bounded_reading.one_line(error)
        raise ValueError(f"the listings of {folder.name} cannot be read ({why}): record it again") from error


def of_launch(folder: Path, case: Case, function: str, number: int = 0) -> Compiled | None:
    """Launch ``number``, from 0, of one of a case's kernel functions; None where it was not kept.

    Raises ValueError for a damaged file.
    """
    same = [launch for launch in of_case(folder, case) if launch.function == function]
    return same[number] if number < len(same) else None


def keep(folder: Path, cases: Iterable[Case], target: Path) -> None:
    """Copies the listings of ``cases`` from the run at ``folder`` into the folder ``target``."""
    kept = {case.id: [asdict(launch) for launch in of_case(folder, case)] for case in cases}
    kept = {name: launches for name, launches in kept.items() if launches}
    if kept:
        packed = lzma.compress(json.dumps(kept).encode(), preset=9)
        atomic_writing.replace(target / _KEPT, lambda to: to.write_bytes(packed))


def largest(run: Run, table: pd.DataFrame) -> list[Case]:
    """Of each kernel, implementation and direction the case with the most bytes to move. Cases with a config are left out."""
    cases = table.loc[table["config"] == "", ["kernel", "impl", "pass", "workload"]].drop_duplicates()
    found: dict[tuple[str, str, str], Case] = {}
    for case in (Case(*values) for values in cases.itertuples(index=False, name=None)):
        key = (case.kernel, case.impl, case.direction)
        if key not in found or _bytes(run, case) > _bytes(run, found[key]):
            found[key] = case
    return list(found.values())


def _bytes(run: Run, case: Case) -> float:
    costs = run.kernels.get(case.kernel, {}).get("cost", {})
    cost = costs.get(case.workload, {}).get(case.direction, {})
    return float(cost.get("bytes_read", 0) + cost.get("bytes_written", 0))
