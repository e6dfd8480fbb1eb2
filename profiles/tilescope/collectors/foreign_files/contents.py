"""The content of another tool's file as parts of a run: rows of the table, GPU, versions, notes.

A kernel has the name of its function, and its implementation is ``recorded``, since a file does not name one. Its workload is the grid
and block of the launch. Launches are numbered over the whole file, in its order.
"""

from __future__ import annotations

import hashlib
import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from tilescope.files import bounded_reading, json_shape
from tilescope.hardware import ceilings
from tilescope.table import absent, launch_configs, schema
from tilescope.table.case import Case
from tilescope.table.description import DeclaredKernel
from tilescope.table.metrics import METRICS
from tilescope.table.run import Device, Failure

IMPLEMENTATION = "recorded"
DIRECTION = "forward"
#: The workload where the file has no grid.
NO_GRID = "grid not recorded"
#: Most characters of a function's name: C++ templates may have thousands.
LONGEST_NAME = 1000
#: Most values of a file.
MOST_ROWS = 12_000_000
_NO_DEVICE = Device("GPU not named in the file", "", 0, 0, 0, True)


@dataclass(frozen=True)
class Contents:
    """The content of a file.

    ``recorded`` is the time of recording, as the file has it. ``configs`` is a frame of ``launch_configs``. ``failures`` are cases
    without values. ``artefacts`` are those that a collector would have kept: its name, their case, their suffix and their bytes.
    """

    tool: str
    table: pd.DataFrame
    device: Device = _NO_DEVICE
    kernels: Mapping[str, DeclaredKernel] = field(default_factory=dict)
    versions: Mapping[str, str] = field(default_factory=dict)
    recorded: str = ""
    notes: Sequence[str] = ()
    configs: pd.DataFrame = field(default_factory=lambda: launch_configs.frame([]))
    failures: Sequence[Failure] = ()
    artefacts: Sequence[tuple[str, Case, str, bytes]] = ()

    def described(self) -> dict[str, DeclaredKernel]:
        return {name: self.kernels.get(name, {}) for name in dict.fromkeys(self.table["kernel"])}


class Rows:
    """Rows of the table, collected by column: a trace has a million."""

    def __init__(self, source: str) -> None:
        self._source = source
        #: Every case (kernel, workload, config, implementation, GPU), and the number of each row's.
        self._known: dict[tuple[str, str, str, str, str], int] = {}
        self._gpus: set[str] = set()
        self._cases: list[int] = []
        self._launches: list[int | None] = []
        self._metrics: list[str] = []
        self._values: list[float] = []

    def __len__(self) -> int:
        return len(self._values)

    def add(
        self,
        kernel: str,
        workload: str,
        launch: int | None,
        values: Mapping[str, float | None],
        *,
        config: str = "",
        impl: str = IMPLEMENTATION,
        gpu: str = "",
    ) -> None:
        """Adds the values of a launch by metric; with ``launch`` None, of all launches of the case together.

        Where the rows are of several GPUs, each has cases of its own, with ``gpu`` in their workload. A value that is None, negative or NaN is left out. Raises Unreadable for too many values.
        """
        self._gpus.add(gpu)
        case = self._known.setdefault((kernel, workload, config, impl, gpu), len(self._known))
        for metric, value in values.items():
            if value is not None and (value == 0 or json_shape.SMALLEST <= value <= json_shape.LARGEST):
                self._cases.append(case)
                self._launches.append(launch)
                self._metrics.append(metric)
                self._values.append(value)
        if len(self) > MOST_ROWS:
            raise bounded_reading.Unreadable(f"it has more than {MOST_ROWS:,} values: record fewer launches")

    def placed(self, workload: str, gpu: str) -> str:
        """The workload of a case on ``gpu``, once all rows are added."""
        return f"{workload}, {gpu}" if gpu and len(self._gpus) > 1 else workload

    def frame(self) -> pd.DataFrame:
        """The rows as a table of the schema, without zeros that stand for absent values."""
        cases = np.array(self._cases, dtype="int64")

        def text(of_case: Iterable[str]) -> Any:
            return pd.array(list(of_case), dtype="str").take(cases)

        launch = pd.array(self._launches, dtype="Int32")
        kernel = text(case[0] for case in self._known)
        metrics, names = pd.factorize(pd.array(self._metrics, dtype="str"))
        columns: dict[str, Any] = dict.fromkeys(schema.COLUMNS, "")
        columns |= {
            "kernel": kernel,
            "impl": text(case[3] for case in self._known),
            "config": text(case[2] for case in self._known),
            "pass": DIRECTION,
            "workload": text(self.placed(case[1], case[4]) for case in self._known),
            "launch": launch,
            "function": pd.Series(kernel).where(~launch.isna(), ""),
            "sample": pd.array([None] * len(self), dtype="Int32"),
            "metric": names.take(metrics),
            "value": self._values,
            "unit": pd.array([METRICS[name].unit for name in names], dtype="str").take(metrics),
            "source": self._source,
        }
        table = pd.DataFrame(columns, columns=list(schema.COLUMNS), index=range(len(self)))
        return absent.without(table.astype(schema.COLUMNS))


def lines(path: Path, longest: int) -> Iterator[bytes]:
    """Yields the lines of a file that are not empty. Raises Unreadable for a line of more than ``longest`` bytes."""
    held: list[bytes] = []
    size = 0
    for piece in bounded_reading.chunks(path):
        *whole, rest = piece.split(b"\n")
        for line in whole:
            if joined := b"".join([*held, line]).strip():
                yield joined
            held, size = [], 0
        held.append(rest)
        size += len(rest)
        if size > longest:
            raise bounded_reading.Unreadable(f"a line of it has more than {longest} bytes")
    if joined := b"".join(held).strip():
        yield joined


def values(path: Path, longest: int) -> Iterator[Any]:
    """Yields the JSON values of a file's lines, None for a damaged one. Raises as ``lines``."""
    for line in lines(path, longest):
        try:
            yield bounded_reading.data(line)
        except bounded_reading.Unreadable:
            yield None


def mapping(value: object) -> Mapping[str, Any]:
    """The JSON object; empty for anything else."""
    return value if isinstance(value, dict) else {}


def mappings(value: object) -> list[Mapping[str, Any]]:
    """The objects in a JSON list; none in anything else."""
    return [one for one in value if isinstance(one, dict)] if isinstance(value, list) else []


def workload(grid: Sequence[object] | None, block: Sequence[object] | None = None) -> str:
    """The workload of a launch: ``grid 4096×1×1, block 256×1×1``."""
    sides = {"grid": grid, "block": block}
    told = [f"{what} {'×'.join(str(side) for side in sizes)}" for what, sizes in sides.items() if sizes]
    return ", ".join(told) if grid else ", ".join([NO_GRID, *told])


def name(text: object) -> str:
    """A function's name as one printable line. A very long one is cut and ends in its digest."""
    whole = bounded_reading.one_line(text, 1 << 20)
    if len(whole) <= LONGEST_NAME:
        return whole or "unnamed"
    digest = hashlib.sha256(whole.encode()).hexdigest()[:8]
    return f"{whole[: LONGEST_NAME - 10]}…-{digest}"


def number(value: object) -> float | None:
    """The value as a float; None where it is not a finite number."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return None
    try:
        return float(value) if math.isfinite(value) else None
    except OverflowError:
        return None


def count(value: object) -> int:
    """The value as a count of a device; 0 where it is not one."""
    found = number(value)
    return int(found) if found is not None and 0 <= found < 1 << 62 else 0


def sizes(value: object) -> list[int] | None:
    """The sides of a grid or block; None where they are not one to three whole numbers above 0."""
    if not isinstance(value, (list, tuple)) or not 1 <= len(value) <= 3:
        return None
    found = [side for side in value if isinstance(side, int) and not isinstance(side, bool) and 0 < side < 1 << 32]
    return found if len(found) == len(value) else None


def product(value: Sequence[int] | None) -> float | None:
    """The number of blocks of a grid, or of threads of a block."""
    return float(math.prod(value)) if value else None


def target(arch: str) -> str:
    """``sm_90`` for ``90``; any other architecture unchanged."""
    return f"sm_{arch}" if re.fullmatch(r"\d{2,3}", arch) else arch


def ncu_device(capability: str, title: str, attribute: Callable[[str], object]) -> Device:
    """The GPU of ncu's ``device__attribute_…`` metrics. ``capability`` is as ``9.0``; ``attribute`` gives a figure by its name."""
    return device(
        title,
        f"sm_{capability.replace('.', '')}" if re.fullmatch(r"\d{1,2}\.\d", capability) else "",
        multiprocessors=count(attribute("multiprocessor_count")),
        l2_bytes=count(attribute("l2_cache_size")),
        memory_bytes=count(attribute("total_memory")),
    )


def of_gpus(found: Mapping[str, Device]) -> tuple[Device, list[str]]:
    """The GPU of a run whose file has these, each by what its cases are called after, and notes where there are several.

    GPUs of one kind are one GPU. Several kinds become a GPU without figures, so that nothing is set against one of another kind.
    """
    kinds = {(one.name, one.target): one for one in found.values()}
    if len(found) < 2:
        return next(iter(found.values()), device()), []
    note = f"several GPUs, each with cases of its own: {', '.join(_called(gpu, found[gpu]) for gpu in list(found)[:8])}"
    if len(kinds) == 1:
        return next(iter(kinds.values())), [note]
    return device(" and ".join(name for name, _ in kinds)), [
        f"{note}; the kinds differ, so nothing is set against a roof"
    ]


def _called(gpu: str, one: Device) -> str:
    return gpu if one.name in (gpu, _NO_DEVICE.name) else f"{gpu} ({one.name})"


#: Makers whose GPUs have no compute capability, though CUDA's names for properties are used for theirs.
_OTHER_MAKERS = re.compile(r"\b(AMD|ATI|Radeon|Instinct|Intel|Ascend|MLU|MTT|Hygon|DCU|gfx\w+)", re.IGNORECASE)


def device(
    title: str = "", target: str = "", *, multiprocessors: int = 0, l2_bytes: int = 0, memory_bytes: int = 0
) -> Device:
    """The GPU that a file names. A figure that the file lacks (0) comes from the datasheet.

    A GPU that is not NVIDIA's has no ``sm_`` target; it has the ``gfx`` target that its name holds.
    """
    called = bounded_reading.one_line(title)
    if target.startswith("sm_") and _OTHER_MAKERS.search(called):
        target = first(re.findall(r"\bgfx\w+", called))
    known = ceilings.product(called)
    return Device(
        called or (f"a GPU of {target}" if target else _NO_DEVICE.name),
        bounded_reading.one_line(target, 40).partition(":")[0] or (known.target if known else ""),
        multiprocessors or (known.multiprocessors if known else 0),
        l2_bytes or (known.l2_bytes if known else 0),
        memory_bytes or (known.memory_bytes if known else 0),
        True,
        ceilings.datasheet(called),
    )


def text(value: object, most: int = 100) -> str:
    """A text or number as one line; empty for anything else."""
    return bounded_reading.one_line(value, most) if isinstance(value, (str, int, float)) else ""


def listed(counts: Mapping[str, int], most: int = 3) -> str:
    """Counted names, the most frequent first: ``aten::mm (12 times), aten::add``."""
    ordered = sorted(counts, key=lambda what: -counts[what])
    shown = [f"{what} ({counts[what]} times)" if counts[what] > 1 else what for what in ordered[:most]]
    return ", ".join([*shown, f"and {len(ordered) - most} more"] if len(ordered) > most else shown)


def require(rows: Rows, what: str) -> None:
    """Raises Unreadable with the message ``what`` where there is no row."""
    if not len(rows):
        raise bounded_reading.Unreadable(what)


def first(values: Iterable[str]) -> str:
    return next(filter(None, values), "")


def inputs(sizes: Iterable[Iterable[str]], dtype: str) -> str:
    """The workload of an operator by the sizes of its inputs: ``512×1024, 1024×256, bfloat16``; empty where nothing is known."""
    return ", ".join(filter(None, [*("×".join(sides) for sides in sizes), dtype]))
