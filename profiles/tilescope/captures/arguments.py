"""A launch's arguments as data, and made again: tensors as they lie in memory, those that share it sharing it still.

Imports torch and triton.
"""

from __future__ import annotations

import gc
import importlib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from triton.runtime.jit import TensorWrapper
from triton.tools.tensor_descriptor import TensorDescriptor

from tilescope.captures import contents
from tilescope.execution import kernel_code

#: Memory begins at a multiple of this many bytes wherever it is made again; what it began at is told up to that.
ALIGNMENT = 64
#: Bytes of whole numbers whose contents tell two launches apart.
TOLD_APART = 64 << 10
#: Elements of the longest table that is looked at for addresses.
MOST_ADDRESSES = 1 << 14


class Writer(kernel_code.Writer):
    """Data of arguments. ``storages`` and ``files`` (bytes by name) fill up with the memory that they lead to."""

    def __init__(self) -> None:
        super().__init__()
        self.files: dict[str, bytes] = {}

    def arguments(
        self, given: Mapping[str, Any], name: str, *, exact: bool = False, readable: bool = True
    ) -> dict[str, Any]:
        """``values`` by parameter and ``storages``. Raises CannotRecord for a value that is none of a kernel's.

        ``exact`` keeps even large floats as they are. ``readable``: whether memory may be read now; what it holds is unknown
        otherwise, and drawn as floats usually are or as zeros.
        """
        self._storages: list[dict[str, Any]] = []
        self._known: dict[int, int] = {}
        #: What of the memory is not kept as it was.
        self.notes: list[str] = []
        self._exact, self._readable = exact, readable
        values = {parameter: self.value(value, f"{name}'s {parameter}") for parameter, value in given.items()}
        return {"values": values, "storages": self._storages}

    def reached(self, value: Any, what: str) -> Any:
        if isinstance(value, torch.Tensor):
            return {"tensor": self._tensor(value, what)}
        if isinstance(value, TensorWrapper):
            return {"reinterpreted": self._tensor(value.base, what), "as": self.value(value.dtype, what)}
        if is_descriptor(value):
            kind = type(value)
            rest = {n: self.value(v, f"{what}.{n}") for n, v in vars(value).items() if n != "base"}
            return {
                "descriptor": [kind.__module__, kind.__qualname__],
                "base": self.value(value.base, what),
                "of": rest,
            }
        return super().reached(value, what)

    def _tensor(self, tensor: torch.Tensor, what: str) -> dict[str, Any]:
        tensor = tensor.detach()
        if tensor.layout is not torch.strided or tensor.is_meta:
            raise kernel_code.CannotRecord(
                f"{what} is a {tensor.layout} tensor on {tensor.device}, whose memory cannot be kept"
            )
        storage = tensor.untyped_storage()
        key = storage._cdata
        if key not in self._known:
            self._known[key] = len(self._storages)
            holds = self._holds(storage, tensor)
            if holds["kind"] == "uniform":
                why = "too large to be kept" if self._readable else "not read, for a CUDA graph was being captured"
                self.notes.append(
                    f"{what} holds {storage.nbytes()} bytes of {holds['dtype']}, {why}: drawn within bounds"
                )
            held: dict[str, Any] = {
                "bytes": storage.nbytes(),
                "misaligned": storage.data_ptr() % ALIGNMENT,
                "holds": holds,
            }
            self._storages.append(held)
            if addresses := self._addresses(tensor):
                held["addresses"] = addresses
        kept = self._storages[self._known[key]]
        if kept["holds"]["kind"] == "normal" and not _is_float(tensor):
            # The same memory seen as whole numbers.
            kept["holds"] = self._holds(storage, tensor)
        return {
            "storage": self._known[key],
            "dtype": str(tensor.dtype).removeprefix("torch."),
            "shape": list(tensor.shape),
            "stride": list(tensor.stride()),
            "offset": tensor.storage_offset(),
        }

    def _addresses(self, tensor: torch.Tensor) -> list[list[int]]:
        """Where a table of addresses points to, as a grouped kernel takes one: element, storage and byte in it, of each."""
        few = tensor.untyped_storage().nbytes() <= 8 * MOST_ADDRESSES
        if not self._readable or tensor.dtype not in (torch.int64, torch.uint64) or not few:
            return []
        whole = torch.empty(0, dtype=torch.uint8, device=tensor.device).set_(tensor.untyped_storage())
        whole = whole[: whole.numel() // 8 * 8].view(torch.int64)
        found = []
        for numbers, target in pointed_at(whole.cpu(), tensor.device):
            data = self._tensor(target, "what an address points to")
            start = target.untyped_storage().data_ptr()
            found += [[place, data["storage"], address - start] for place, address in numbers]
        return found

    def _holds(self, storage: torch.UntypedStorage, tensor: torch.Tensor) -> dict[str, Any]:
        if self._readable:
            return contents.described(storage, tensor, self.files, self._exact)
        return contents.unread(tensor)


def pointed_at(numbers: torch.Tensor, device: torch.device) -> Iterator[tuple[list[tuple[int, int]], torch.Tensor]]:
    """Tensors on ``device`` that some of the numbers are addresses in: those numbers with their places, and the tensor."""
    # Indices are small; no process has memory so low.
    left = {place: number for place, number in enumerate(numbers.tolist()) if number > 1 << 32}
    for thing in gc.get_objects() if left else ():
        if (
            type(thing) not in (torch.Tensor, torch.nn.Parameter)
            or thing.device != device
            or thing.layout != torch.strided
        ):
            continue
        start, size = thing.untyped_storage().data_ptr(), thing.untyped_storage().nbytes()
        inside = [(place, number) for place, number in left.items() if start <= number < start + size]
        if inside:
            yield inside, thing.detach()
            left = {place: number for place, number in left.items() if (place, number) not in inside}


def is_descriptor(value: Any) -> bool:
    """Whether it is a tensor descriptor that a launcher made on the host, Triton's or Gluon's."""
    return isinstance(value, TensorDescriptor) or (
        type(value).__module__.startswith("triton.") and hasattr(value, "base") and hasattr(value, "block_shape")
    )


def tensors(value: Any) -> Iterator[torch.Tensor]:
    """Every tensor in an argument, those behind descriptors too."""
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, TensorWrapper) or is_descriptor(value):
        yield from tensors(value.base)
    elif isinstance(value, (tuple, list)):
        for item in value:
            yield from tensors(item)


def shape_of(value: Any, with_contents: bool = True) -> Any:
    """What two arguments have in common if launches with them are the same. It can be hashed and compared."""
    if isinstance(value, torch.Tensor):
        told = with_contents and not _is_float(value) and value.untyped_storage().nbytes() <= TOLD_APART
        return (
            str(value.dtype), tuple(value.shape), value.stride(), value.storage_offset() * value.element_size() % 16,
            contents.digest(value.detach()) if told else "",
        )  # fmt: skip
    if isinstance(value, TensorWrapper):
        return (shape_of(value.base, with_contents), str(value.dtype))
    if is_descriptor(value):
        rest = {name: repr(item) for name, item in vars(value).items() if name != "base"}
        return (shape_of(value.base, with_contents), *rest.items())
    if isinstance(value, (tuple, list)):
        return tuple(shape_of(item, with_contents) for item in value)
    # A float is data: a learning rate changes from step to step.
    return "float" if type(value) is float else repr(value)


def _is_float(tensor: torch.Tensor) -> bool:
    return tensor.dtype.is_floating_point or tensor.dtype.is_complex


class Reader(kernel_code.Reader):
    """Values of the data that a ``Writer`` made, on a device."""

    def arguments(self, data: Mapping[str, Any], device: Any, seed: int, contents_in: Path) -> dict[str, Any]:
        """The arguments by parameter. On ``meta`` they have shapes, strides and offsets, and no memory."""
        self._device = torch.device(device)
        self._memory = [self._storage(held, seed + n, contents_in) for n, held in enumerate(data["storages"])]
        self._starts = [int(held["misaligned"]) for held in data["storages"]]
        if self._device.type != "meta":
            self._point(data["storages"])
        return {name: self.value(value) for name, value in data["values"].items()}

    def memory(self) -> list[torch.Tensor]:
        """What the arguments made last lead to, that behind addresses too: whoever holds it holds all of it."""
        return [torch.empty(0, dtype=torch.uint8, device=self._device).set_(storage) for storage in self._memory]

    def _point(self, storages: Sequence[Mapping[str, Any]]) -> None:
        """Has addresses in memory point to where what they pointed to lies now."""
        for number, held in enumerate(storages):
            if "addresses" in held:
                whole = torch.empty(0, dtype=torch.uint8, device=self._device).set_(self._memory[number])
                table = whole[self._starts[number] :].view(torch.int64)
                for place, target, byte in held["addresses"]:
                    table[place] = self._memory[target].data_ptr() + self._starts[target] + byte

    def _storage(self, held: Mapping[str, Any], seed: int, folder: Path) -> torch.UntypedStorage:
        start = int(held["misaligned"])
        storage = torch.empty(start + int(held["bytes"]), dtype=torch.uint8, device=self._device).untyped_storage()
        if self._device.type != "meta":
            contents.draw(storage, start, held["holds"], folder, seed)
        return storage

    def _forms(self) -> dict[str, Any]:
        return {
            "tensor": lambda d: self._tensor(d["tensor"]),
            "reinterpreted": lambda d: TensorWrapper(self._tensor(d["reinterpreted"]), self.value(d["as"])),
            "descriptor": self._descriptor,
            **super()._forms(),
        }

    def _tensor(self, data: Mapping[str, Any]) -> torch.Tensor:
        number = int(data["storage"])
        empty = torch.empty(0, dtype=getattr(torch, data["dtype"]), device=self._device)
        start, rest = divmod(self._starts[number], empty.element_size())
        if rest:
            raise ValueError(f"a captured tensor begins {rest} bytes into an element")
        return empty.set_(self._memory[number], start + int(data["offset"]), data["shape"], data["stride"])

    def _descriptor(self, data: Mapping[str, Any]) -> Any:
        module, name = data["descriptor"]
        kind = getattr(importlib.import_module(module), name)
        return kind(base=self.value(data["base"]), **{field: self.value(value) for field, value in data["of"].items()})
