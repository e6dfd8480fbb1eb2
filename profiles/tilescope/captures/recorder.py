"""Records launches, one record for each distinct launch, and writes them to a folder.

``launches.json`` of a kernel holds ``format``, ``name``, ``functions`` (see ``execution.kernel_code``), ``kernel`` (the number of
the kernel's function), ``versions``, ``path`` (the process's ``sys.path``) and ``launches``, a list of records:

``arguments``   values by parameter, and storages (see ``arguments``)
``options``     launch options such as ``num_warps``
``grid``        three extents
``config``      parameters and options that an autotuner chose, empty without one
``calls``, ``sites``   number of calls, and the number from each call site (lines, innermost first)
``counted``     the interpreter's counts, where it made the launch
``waited``      seconds of interpretation, where it was stopped because it would take too long
``after``       the first kernel before it that was not launched at the capture
``doubtful``    that it then showed faults, which the results that it lacks may have made: it is counted again without them
``touched``     parameters that the launch reads and writes through, by the compiler, where the interpreter did not count
``notes``       remarks on what differs from the original launch

Imports torch and triton.
"""

from __future__ import annotations

import contextlib
import dataclasses
import importlib.metadata
import json
import math
import mmap
import os
import re
import shutil
import sys
import threading
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from triton.runtime.jit import TensorWrapper

from tilescope.captures import COUNTED_FILE, FORMAT, RECORDS_FILE, SPEC_FILE, arguments
from tilescope.captures.data_flow import Flow
from tilescope.collectors import interpreter
from tilescope.execution import compiling, launch_limits
from tilescope.execution.launches import Launch
from tilescope.interpreter import blocks, interpret
from tilescope.table.kernel_faults import Fault

#: Most distinct launches of a process, of a kernel, and of launches that differ only in the contents of their tensors.
MOST, MOST_OF_KERNEL, MOST_ALIKE = 256, 64, 4
#: Most bytes of contents of a process, and most call sites of a launch.
MOST_BYTES, MOST_SITES = 512 << 20, 16
#: Most programs that are interpreted sooner than compiled, and most seconds for compiling.
FEW, COMPILED = 64, 10.0
#: Values of a constant at one call site from which its variants are too many.
MANY_VARIANTS = 8
#: The longest name of a kernel in bytes: it names a folder.
_LONGEST = 200
#: Most seconds for a test.
_LIMIT = 1.0


@dataclass
class Record:
    """A distinct launch. ``data`` is its part of ``launches.json``."""

    function: Any
    data: dict[str, Any]
    calls: int = 0
    sites: Counter[str] = field(default_factory=Counter)

    def called(self, site: tuple[str, ...]) -> None:
        """Counts a call from a call site."""
        self.calls += 1
        key = " < ".join(site)
        if key in self.sites or len(self.sites) < MOST_SITES:
            self.sites[key] += 1

    def note(self, text: str) -> None:
        """Adds a remark, once."""
        if text not in self.data["notes"]:
            self.data["notes"].append(text)


class Recorder:
    """Records launches before they are made."""

    def __init__(self) -> None:
        self.kernels: list[Kernel] = []
        self._by_function: dict[int, Kernel] = {}
        #: Number of launches that could not be recorded, by reason.
        self.refused: Counter[str] = Counter()
        self.calls = 0
        #: The first launch that was not made, by name, and why. Values after it are wrong.
        self.unmade = self.why_unmade = ""
        #: Number of launches in forked processes, in memory that all of them share.
        self._elsewhere = memoryview(mmap.mmap(-1, mmap.PAGESIZE)).cast("Q")
        self._process = os.getpid()
        #: The values of numbers that are constants of the code, by function, call site and parameter.
        self._constants: dict[tuple[Any, str], dict[str, set[float]]] = {}
        #: A backward pass on a GPU launches from another thread.
        self._lock = threading.RLock()

    @property
    def elsewhere(self) -> int:
        """The number of launches in forked processes, of which nothing else is known here."""
        return self._elsewhere[0]

    @property
    def records(self) -> list[Record]:
        """All records."""
        return [record for kernel in self.kernels for record in kernel.records]

    def take(
        self, launch: Launch, site: tuple[str, ...], readable: bool = True, stages: Mapping[str, Any] | None = None
    ) -> Record | None:
        """Counts a launch and returns its record, a new one for the first of its kind; None where it cannot be recorded.

        ``readable`` says whether the arguments' memory may be read now. ``stages`` are the compiled kernel's texts by name.
        """
        with self._lock:
            self.calls += 1
            if os.getpid() != self._process:
                self._elsewhere[0] += 1
            kernel = self._by_function.get(id(launch.function))
            if kernel is None:
                kernel = self._by_function[id(launch.function)] = Kernel(launch.function, self._name(launch.name))
                self.kernels.append(kernel)
            try:
                record = kernel.record(launch, readable, stages or {}, self._full())
            except ValueError as error:
                self.refused[f"{site[0] if site else launch.name}: {error}"] += 1
                return None
            record.called(site)
            self._note_constants(launch, site)
            return record

    def _note_constants(self, launch: Launch, site: tuple[str, ...]) -> None:
        values = self._constants.setdefault((launch.function, site[0] if site else ""), {})
        parameters = set(launch.function.arg_names) - launch.config.keys()
        for name, value in launch.constants.items():
            if type(value) in (int, float) and name in parameters:
                values.setdefault(name, set()).add(value)

    def respecialized(self) -> Iterator[tuple[str, str]]:
        """Yields kernels with a warning for each constant whose many values make as many variants of the code at one call site.

        Powers of two are block sizes, of which there are few.
        """
        for (function, site), constants in self._constants.items():
            for name, values in constants.items():
                powers = all(isinstance(value, int) and value & (value - 1) == 0 for value in values)
                if len(values) < MANY_VARIANTS or powers:
                    continue
                compiled = f"{len(values)} variants are compiled for calls at {site.replace(':', ', line ')}"
                what = f"{compiled}, one for each value of {name}"
                remedy = "pass it as an ordinary argument, without tl.constexpr"
                kernel = self._by_function[id(function)].name
                yield kernel, Fault(function.starting_line_number, what, remedy).told(kernel)

    def _full(self) -> str:
        """The reason why no more launches can be kept; empty while there is room."""
        if len(self.records) >= MOST:
            return f"more than {MOST} distinct launches: the others are counted and not kept"
        held = sum(len(content) for kernel in self.kernels for content in kernel.writer.files.values())
        return "their tensors hold more than can be kept" if held >= MOST_BYTES else ""

    def _name(self, function: str) -> str:
        plain = re.sub(r"\W", "_", function).encode()[:_LONGEST].decode(errors="ignore")
        taken = {kernel.name for kernel in self.kernels}
        return next(name for name in (plain, *(f"{plain}_{n}" for n in range(2, 1000))) if name not in taken)

    def write(self, folder: Path) -> list[str]:
        """Writes all records below ``folder``. Returns the references of their specs, for ``load_spec``."""
        return [kernel.write(folder / kernel.name) for kernel in self.kernels if kernel.records]


class Kernel:
    """The records of one kernel function."""

    def __init__(self, function: Any, name: str) -> None:
        self.function, self.name = function, name
        self.writer = arguments.Writer()
        self.records: list[Record] = []
        self._known: dict[Any, Record] = {}
        #: The records of launches that differ only in the contents of their tensors.
        self._alike: dict[Any, list[Record]] = {}
        self._number: int | None = None
        #: Where modules were found at the last record: a script changes it for itself.
        self._path: list[str] = []

    def record(self, launch: Launch, readable: bool, stages: Mapping[str, Any], full: str) -> Record:
        """The record of a launch, a new one for the first of its kind. Raises ValueError where it cannot be recorded.

        ``full`` is the reason why no new record can be kept; empty while there is room.
        """
        bound = launch.arguments
        options = {name: value for name, value in launch.kwargs.items() if name not in bound}
        fixed = (launch.grid, tuple(sorted((name, repr(value)) for name, value in options.items())))
        shapes = (fixed, tuple(arguments.shape_of(value, False) for value in bound.values()))
        key = (fixed, tuple(arguments.shape_of(value, readable) for value in bound.values()))
        alike = self._alike.setdefault(shapes, [])
        known = self._known.get(key) or (alike[-1] if len(alike) >= MOST_ALIKE or (alike and not readable) else None)
        if known is not None:
            return known
        if full or len(self.records) >= MOST_OF_KERNEL:
            raise ValueError(full or f"{self.name} has more than {MOST_OF_KERNEL}")
        if self._number is None:
            self._number = self.writer.function(launch.function)
        self._path = [*dict.fromkeys((*self._path, *sys.path))]
        flow = Flow(stages)
        given = self.writer.arguments(bound, self.name, readable=readable)
        drawn = any(held["holds"]["kind"] == "normal" for held in given["storages"])
        # Interpreting takes up to a second: not where the compiler's text rules it out. A profile compiles the launch anyway.
        if drawn and readable and not stages and math.prod(launch.grid) > FEW:
            with contextlib.suppress(Exception):
                flow = Flow(compiling.compiled(launch, COMPILED)[0].asm)
        if drawn and readable and flow.by_floats and in_use(launch):
            given = self.writer.arguments(bound, self.name, exact=True)
        data = {
            "arguments": given,
            "options": {name: self.writer.value(value, name) for name, value in options.items()},
            "grid": list(launch.grid),
            "config": {name: self.writer.value(value, name) for name, value in launch.config.items()},
            "notes": list(dict.fromkeys(self.writer.notes)),
            "allocator": launch_limits.has_allocator(),
        }
        record = self._known[key] = Record(launch.function, data)
        if stages:
            data["touched"] = flow.touched
        self.records.append(record)
        alike.append(record)
        return record

    def write(self, folder: Path) -> str:
        """Writes the kernel's folder. Returns the reference of its spec."""
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        for name, text in self.writer.texts.items():
            (folder / name).write_text(text, encoding="utf-8")
        for name, content in self.writer.files.items():
            (folder / name).write_bytes(content)
        data = {
            "format": FORMAT,
            "name": self.name,
            "kernel": self._number,
            "functions": self.writer.functions,
            "versions": {name: importlib.metadata.version(name) for name in ("torch", "triton")},
            "path": self._path,
            "launches": [{**record.data, "calls": record.calls, "sites": record.sites} for record in self.records],
        }
        (folder / RECORDS_FILE).write_text(json.dumps(data, indent=1), encoding="utf-8")
        for number, record in enumerate(self.records):
            counted = record.data.get("counted", {})
            if counted and ("faults" in counted or "doubtful" not in record.data):
                file = self.writer.functions[self._number or 0]["file"]
                about = {"file": file, "grid": record.data["grid"], "config": record.data["config"]}
                interpreter.write([({**counted, **about}, self.writer.texts)], folder / COUNTED_FILE.format(number))
        (folder / SPEC_FILE).write_text(_SPEC.format(name=self.name), encoding="utf-8")
        return f"{folder / SPEC_FILE}:{self.name}"


_SPEC = '''"""Launches of {name} that Tilescope captured, as a kernel that can be profiled. See launches.json beside it."""

from pathlib import Path

from tilescope.captures import replay

_records = replay.Records(Path(__file__).parent)


def _inputs(workload, device):
    return _records.inputs(workload, device)


{name} = _records.spec(_inputs)
'''


def in_use(launch: Launch) -> bool:
    """Whether an address, a mask or a branch depends on a float, in the programs that are interpreted within a second."""
    copies: dict[int, torch.UntypedStorage] = {}
    args = tuple(_copied(value, copies) for value in launch.args)
    copy = dataclasses.replace(launch, args=args, kwargs={n: _copied(v, copies) for n, v in launch.kwargs.items()})
    try:
        interpret.run(copy, meter=interpret.meter(copy), values=False, allowance=interpret.Allowance(_LIMIT))
    except blocks.NeedsValues:
        return True
    except (interpret.TooLong, blocks.NotServed, interpret.InterpretationFailed):
        return False
    return False


def _copied(value: Any, copies: dict[int, torch.UntypedStorage]) -> Any:
    """A copy on the CPU. The contents of floats are not copied: they are never read, and their pages never allocated."""
    if isinstance(value, torch.Tensor):
        storage = value.untyped_storage()
        if storage._cdata not in copies:
            copy = torch.empty(storage.nbytes(), dtype=torch.uint8)
            if not (value.dtype.is_floating_point or value.dtype.is_complex):
                copy.copy_(torch.empty(0, dtype=torch.uint8, device=value.device).set_(storage))
            copies[storage._cdata] = copy.untyped_storage()
        empty = torch.empty(0, dtype=value.dtype)
        return empty.set_(copies[storage._cdata], value.storage_offset(), value.shape, value.stride())
    if isinstance(value, TensorWrapper):
        return TensorWrapper(_copied(value.base, copies), value.dtype)
    if arguments.is_descriptor(value):
        return dataclasses.replace(value, base=_copied(value.base, copies))
    if isinstance(value, tuple):
        items = [_copied(item, copies) for item in value]
        return type(value)(*items) if hasattr(value, "_fields") else tuple(items)
    return value
