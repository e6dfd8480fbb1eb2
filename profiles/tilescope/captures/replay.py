"""Makes a kernel of captured launches that every collector can run. Imports torch and triton."""

from __future__ import annotations

import functools
import json
import math
import sys
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

import torch
import triton
from tilescope_kernels.spec import FORWARD, Cost, Implementation, KernelSpec, Workload

from tilescope.captures import COUNTED_FILE, FORMAT, RECORDS_FILE, arguments
from tilescope.execution import launch_limits
from tilescope.files import bounded_reading
from tilescope.interpreter.arguments import tensors
from tilescope.table.case import dimensions

#: Most bytes of ``launches.json``.
MOST = 64 << 20
#: Short names of dtypes in workload ids. Other dtypes have PyTorch's name.
_SHORT = {
    "float64": "fp64", "float32": "fp32", "float16": "fp16", "bfloat16": "bf16", "float8_e4m3fn": "fp8", "float8_e5m2": "fp8e5",
}  # fmt: skip
#: Most dimensions in a workload's id.
_TOLD = 6
NO_REFERENCE = "no reference was given, so nothing says what is right"


@dataclass(frozen=True)
class CapturedWorkload(Workload):
    """The sizes of a captured launch, of any dtype. ``seed`` numbers the launches of equal sizes."""

    itemsize_of: int = 4
    elements_of: int = 0

    def __post_init__(self) -> None:
        """Accepts any dtype, as nothing is drawn by its name."""

    @property
    def itemsize(self) -> int:
        return self.itemsize_of

    @property
    def elements(self) -> int:
        """The elements of the largest tensor: the dimensions are those of several tensors."""
        return self.elements_of


class BytesOnly(Cost):
    """The bytes of whole tensors, of which a launch may move fewer. The number of operations is unknown."""

    unknown = ("flops",)
    whole_tensors = True


class NoReference:
    """Stands for a reference. ``absent`` says why there is none."""

    absent = NO_REFERENCE

    def __call__(self, **_: Any) -> NoReturn:
        raise ValueError(self.absent)


@dataclass(frozen=True)
class CapturedSpec(KernelSpec):
    """A kernel of captured launches. ``record(workload)`` is a launch's record (see ``recorder``).

    The record has the interpreter's ``artefact``, a path, where the interpreter made the launch at the capture.
    """

    record: Callable[[Workload], Mapping[str, Any]] = lambda workload: {}


class Records:
    """The records in a kernel's folder. Raises ValueError, with one line, for a folder without valid records."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        content = bounded_reading.content(folder / RECORDS_FILE, folder, most=MOST)
        try:
            self.data: dict[str, Any] = json.loads(content)
            if self.data["format"] != FORMAT:
                raise ValueError(f"{RECORDS_FILE} is of format {self.data['format']} and not {FORMAT}: capture it anew")
            self.launches: list[dict[str, Any]] = self.data["launches"]
            self.name = str(self.data["name"])
        except (KeyError, TypeError, UnicodeDecodeError) as error:
            raise ValueError(f"{folder / RECORDS_FILE} holds no captured launches") from error
        # Classes are imported from where the user's process found them.
        sys.path += [entry for entry in self.data.get("path", ()) if entry not in sys.path]
        self.reader = arguments.Reader(self.data["functions"], folder)

    @functools.cached_property
    def workloads(self) -> tuple[CapturedWorkload, ...]:
        """The workload of each launch, in order."""
        found: list[CapturedWorkload] = []
        seen: dict[Any, int] = {}
        for launch in self.launches:
            dims, dtype, size, elements = _sizes(launch)
            key = (tuple(dims.values()), dtype)
            seen[key] = seen.get(key, -1) + 1
            label = next(iter(launch["sites"]), "").partition(" < ")[0]
            found.append(CapturedWorkload(dims, dtype, seen[key], label, size, elements))
        return tuple(found)

    def spec(self, inputs: Callable[[Workload, Any], dict[str, Any]]) -> CapturedSpec:
        """The kernel's spec. ``inputs`` is a function in the file that declares it, which calls ``self.inputs``."""
        dims = max((workload.dims for workload in self.workloads), key=len)
        calls = sum(int(launch["calls"]) for launch in self.launches)
        site = next(iter(self.launches[0]["sites"]), "")
        return CapturedSpec(
            name=self.name,
            summary=f"captured: {calls} {'calls' if calls > 1 else 'call'} from {site}",
            dims=tuple(dims),
            implementations={"triton": Implementation(self.call, "as it was launched")},
            reference=NoReference(),
            inputs=inputs,
            workloads=self.workloads,
            cost=self.cost,  # type: ignore[arg-type]
            tolerance={},
            passes=(FORWARD,),
            record=self.record,
        )

    def inputs(self, workload: Workload, device: Any) -> dict[str, Any]:
        """The kernel's arguments, and for ``call`` the record's number ``_launch``, the arguments' memory ``_memory`` and the
        tensors ``_before`` to restore before each launch."""
        number = self._number(workload)
        given = self.launches[number]["arguments"]
        arguments_of = self.reader.arguments(given, device, 1000 * number, self.folder)
        memory = self.reader.memory()
        return {**arguments_of, "_launch": number, "_memory": memory, "_before": self._before(number, arguments_of)}

    def _before(self, number: int, given: Mapping[str, Any]) -> list[tuple[torch.Tensor, torch.Tensor]]:
        """Integer tensors on a GPU that the launch both reads and writes, as counters and locks, each with a copy."""
        through = self.launches[number].get("touched") or {"read": [], "written": []}
        both = [given[name] for name in through["read"] if name in through["written"] and name in given]
        found = (t for t in tensors(both) if not (t.dtype.is_floating_point or t.dtype.is_complex))
        return [(t, t.clone()) for t in found if t.untyped_storage().device.type == "cuda"]

    def call(self, _launch: int, _memory: Any = None, _before: Any = (), **given: Any) -> tuple[torch.Tensor, ...]:
        """Makes the launch and returns its tensors, some of which are results."""
        record = self.launches[_launch]
        launch_limits.set_allocator(record.get("allocator", True))
        for tensor, before in _before:
            tensor.copy_(before)
        function = self.reader.function(int(self.data["kernel"]))
        config = {name: self.reader.value(value) for name, value in record["config"].items()}
        options = {n: self.reader.value(v) for n, v in record["options"].items() if n not in config}
        if config:
            chosen = {
                name: config.pop(name) for name in ("num_warps", "num_stages", "num_ctas", "maxnreg") if name in config
            }
            function = triton.autotune([triton.Config(config, **chosen)], key=[])(function)
        function[tuple(record["grid"])](
            **{name: value for name, value in given.items() if name not in config}, **options
        )
        return tuple(t for value in given.values() for t in tensors(value))

    def cost(self, workload: Workload, direction: str) -> Cost | None:
        """The distinct bytes that the launch reads and writes, and its operations, as the interpreter counted them.

        Without counts, the bytes of the tensors that the compiled code reads and writes; None where those are unknown too.
        """
        record = self.launches[self._number(workload)]
        pipe = workload.dtype if workload.dtype in ("fp64", "bf16", "fp16") else "fp32"
        if counted := record.get("counted"):
            read, written = int(counted["unique_bytes_read"]), int(counted["unique_bytes_written"])
            return Cost(int(counted["requested_flops"]), read, written, pipe)
        if through := record.get("touched"):
            read, written = (tensor_bytes(record["arguments"], through[way]) for way in ("read", "written"))
            return BytesOnly(0, read, written, pipe)
        return None

    def record(self, workload: Workload) -> dict[str, Any]:
        """See ``CapturedSpec``."""
        number = self._number(workload)
        artefact = self.folder / COUNTED_FILE.format(number)
        return {**self.launches[number], **({"artefact": artefact} if artefact.is_file() else {})}

    def _number(self, workload: Workload) -> int:
        return next(number for number, known in enumerate(self.workloads) if known.id == workload.id)


def _sizes(launch: Mapping[str, Any]) -> tuple[dict[str, int], str, int, int]:
    """The dimensions of a launch's tensors, the name and bytes of its main dtype, and the elements of the largest tensor."""
    found = list(_tensors(launch["arguments"]["values"]))
    extents = dimensions(tensor["shape"] for tensor in found)
    names = [tensor["dtype"] for tensor in found]
    main = next((n for n in names if n.startswith(("float", "bfloat", "complex"))), names[0] if names else "int32")
    dims = {f"d{index}": int(extent) for index, extent in enumerate(extents[:_TOLD] or launch["grid"])}
    size = torch.empty(0, dtype=getattr(torch, main)).element_size()
    elements = max((math.prod(tensor["shape"]) for tensor in found), default=math.prod(dims.values()))
    return dims, _SHORT.get(main, main.replace("_", "")), size, elements


def _tensors(data: Any) -> Any:
    """Yields the data of every tensor in the data of arguments."""
    if isinstance(data, Mapping):
        for name in ("tensor", "reinterpreted"):
            if isinstance(data.get(name), Mapping) and "storage" in data[name]:
                yield data[name]
                return
        data = list(data.values())
    if isinstance(data, list):
        for item in data:
            yield from _tensors(item)


def tensor_bytes(data: Mapping[str, Any], names: Sequence[str]) -> int:
    """The bytes of the tensors in these parameters, without elements that a stride of 0 repeats.

    Tensors that share memory count for no more bytes than it has.
    """
    total = Counter[int]()
    for tensor in _tensors([data["values"].get(name) for name in names]):
        size = torch.empty(0, dtype=getattr(torch, tensor["dtype"])).element_size()
        own = [extent for extent, step in zip(tensor["shape"], tensor["stride"], strict=True) if step or not extent]
        total[tensor["storage"]] += math.prod(own) * size
    return sum(min(count, int(data["storages"][storage]["bytes"])) for storage, count in total.items())
