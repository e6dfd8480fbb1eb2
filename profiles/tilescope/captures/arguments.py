"""Converts a launch's arguments to data and back. Tensors keep their layout, and shared memory stays shared.

The contents of memory are recorded byte by byte or as a distribution. Integers may be addresses and are kept. The values of floats
seldom matter to the cost of a launch: those of large tensors are kept as mean, deviation and bounds, and are drawn again from a seed.
Imports torch and triton.
"""

from __future__ import annotations

import hashlib
import importlib
import zlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from triton.runtime.jit import TensorWrapper
from triton.tools.tensor_descriptor import TensorDescriptor

from tilescope.execution import kernel_code
from tilescope.files import bounded_reading
from tilescope.interpreter.arguments import pointed_at

#: New memory is aligned to this many bytes; the original address is recorded modulo this.
ALIGNMENT = 64
#: Launches with integer tensors of at most this many bytes are distinguished by the contents.
DISTINGUISHED = 64 << 10
#: Most elements of a table that is searched for addresses.
MOST_ADDRESSES = 1 << 14
#: Most bytes of a storage that are kept: of floats, and of anything else.
MOST_FLOATS, MOST_EXACT = 1 << 20, 64 << 20
#: Most elements sampled for the distribution of floats, and for the bounds of integers. PyTorch wakes no thread for so few floats.
_FLOATS, _WHOLE = 30_000, 1 << 20
#: Elements that are drawn. They repeat in larger tensors, because drawing gigabytes takes minutes. The number is
#: prime, so that the rows of a matrix differ.
_DRAWN = (1 << 22) - 3


class Writer(kernel_code.Writer):
    """Converts arguments to data. ``files`` collects the contents of memory, as bytes by name."""

    def __init__(self) -> None:
        super().__init__()
        self.files: dict[str, bytes] = {}
        self._in_function = False

    def function(self, function: Any) -> int:
        before, self._in_function = self._in_function, True
        try:
            return super().function(function)
        finally:
            self._in_function = before

    def arguments(
        self, given: Mapping[str, Any], name: str, *, exact: bool = False, readable: bool = True
    ) -> dict[str, Any]:
        """Data of the arguments ``given`` by parameter: ``values`` and ``storages``. ``name`` is the kernel's.

        ``exact`` keeps the contents of large float tensors too. Where memory is not ``readable`` now, its contents are unknown:
        floats will be drawn from a usual distribution, and integers will be 0. Raises CannotRecord for a value that no kernel
        takes.
        """
        self._storages: list[dict[str, Any]] = []
        self._known: dict[int, int] = {}
        #: Remarks on memory whose contents are not kept.
        self.notes: list[str] = []
        self._exact, self._readable = exact, readable
        values = {parameter: self.value(value, f"{name}'s {parameter}") for parameter, value in given.items()}
        return {"values": values, "storages": self._storages}

    def reached(self, value: Any, what: str) -> Any:
        if self._in_function:  # a tensor that code names is no argument
            return super().reached(value, what)
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
                why = "too many to be stored" if self._readable else "not read, because a CUDA graph was being captured"
                self.notes.append(
                    f"{what} holds {storage.nbytes()} bytes of {holds['dtype']}, {why}: random values within their bounds replace them"
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
            # A view of the same memory as integers.
            kept["holds"] = self._holds(storage, tensor)
        return {
            "storage": self._known[key],
            "dtype": str(tensor.dtype).removeprefix("torch."),
            "shape": list(tensor.shape),
            "stride": list(tensor.stride()),
            "offset": tensor.storage_offset(),
        }

    def _addresses(self, tensor: torch.Tensor) -> list[list[int]]:
        """The element, storage and byte offset of each address in a table, as grouped kernels take one."""
        few = tensor.untyped_storage().nbytes() <= 8 * MOST_ADDRESSES
        if not self._readable or tensor.dtype not in (torch.int64, torch.uint64) or not few:
            return []
        whole = torch.empty(0, dtype=torch.uint8, device=tensor.device).set_(tensor.untyped_storage())
        whole = whole[: whole.numel() // 8 * 8].view(torch.int64)
        found = []
        numbers = whole.cpu().numpy()
        for target, places in pointed_at(numbers, lambda other: other.device == tensor.device):
            data = self._tensor(target, "what an address points to")
            start = target.untyped_storage().data_ptr()
            found += [[place, data["storage"], int(numbers[place]) - start] for place in sorted(places)]
        return found

    def _holds(self, storage: torch.UntypedStorage, tensor: torch.Tensor) -> dict[str, Any]:
        if self._readable:
            return described(storage, tensor, self.files, self._exact)
        return unread(tensor)


def is_descriptor(value: Any) -> bool:
    """Whether the value is a tensor descriptor that a launcher made on the host, Triton's or Gluon's."""
    return isinstance(value, TensorDescriptor) or (
        type(value).__module__.startswith("triton.") and hasattr(value, "base") and hasattr(value, "block_shape")
    )


def shape_of(value: Any, with_contents: bool) -> Any:
    """A hashable key that is equal for arguments of equal launches, ``with_contents`` of small integer tensors or without."""
    if isinstance(value, torch.Tensor):
        distinct = with_contents and not _is_float(value) and value.untyped_storage().nbytes() <= DISTINGUISHED
        return (
            str(value.dtype), tuple(value.shape), value.stride(), value.storage_offset() * value.element_size() % 16,
            digest(value.detach()) if distinct else "",
        )  # fmt: skip
    if isinstance(value, TensorWrapper):
        return (shape_of(value.base, with_contents), str(value.dtype))
    if is_descriptor(value):
        rest = {name: repr(item) for name, item in vars(value).items() if name != "base"}
        return (shape_of(value.base, with_contents), *rest.items())
    if isinstance(value, (tuple, list)):
        return tuple(shape_of(item, with_contents) for item in value)
    # The value of a float does not matter: a learning rate changes from step to step.
    return "float" if type(value) is float else repr(value)


def _is_float(tensor: torch.Tensor) -> bool:
    return tensor.dtype.is_floating_point or tensor.dtype.is_complex


class Reader(kernel_code.Reader):
    """Converts the data of a ``Writer`` back to values on a device."""

    def arguments(self, data: Mapping[str, Any], device: Any, seed: int, contents_in: Path) -> dict[str, Any]:
        """The arguments by parameter. On ``meta`` they have shapes, strides and offsets but no memory.

        ``seed`` is for drawn contents; ``contents_in`` is the folder of kept contents. Raises ValueError for damaged data.
        """
        self._device = torch.device(device)
        self._memory = [self._storage(held, seed + n, contents_in) for n, held in enumerate(data["storages"])]
        self._starts = [int(held["misaligned"]) for held in data["storages"]]
        if self._device.type != "meta":
            self._point(data["storages"])
        return {name: self.value(value) for name, value in data["values"].items()}

    def memory(self) -> list[torch.Tensor]:
        """The memory of the last arguments, including what addresses point to. It must be held as long as they are used."""
        return [torch.empty(0, dtype=torch.uint8, device=self._device).set_(storage) for storage in self._memory]

    def _point(self, storages: Sequence[Mapping[str, Any]]) -> None:
        """Rewrites the tables of addresses, so that they point to the new memory."""
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
            draw(storage, start, held["holds"], folder, seed)
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


def described(
    storage: torch.UntypedStorage, view: torch.Tensor, files: dict[str, bytes], exact: bool
) -> dict[str, Any]:
    """JSON data of the contents of ``storage``, as elements of ``view``'s dtype.

    Kept bytes are added to ``files`` under the name in the data. ``exact`` keeps the bytes of large floats too.
    """
    floating = view.dtype.is_floating_point or view.dtype.is_complex
    if storage.nbytes() == 0:
        return {"kind": "none"}
    if storage.nbytes() <= (MOST_FLOATS if floating and not exact else MOST_EXACT):
        content = _bytes(storage)
        name = f"{hashlib.sha256(content).hexdigest()[:24]}.zlib"
        files.setdefault(name, zlib.compress(content, 1))
        return {"kind": "exact", "file": name}
    sample = _sample(view)
    dtype = str(view.dtype).removeprefix("torch.")
    if not floating:
        return {"kind": "uniform", "dtype": dtype, "low": int(sample.min()), "high": int(sample.max())}
    finite = sample[sample.isfinite()]
    if not finite.numel():
        return unread(view)
    return {
        "kind": "normal",
        "dtype": dtype,
        "mean": float(finite.mean()),
        "deviation": float(finite.std(correction=0)),
        "low": float(finite.min()),
        "high": float(finite.max()),
    }


def unread(view: torch.Tensor) -> dict[str, Any]:
    """JSON data of memory that cannot be read: a standard normal distribution of floats, zeros for anything else."""
    dtype = str(view.dtype).removeprefix("torch.")
    if view.dtype.is_floating_point or view.dtype.is_complex:
        return {"kind": "normal", "dtype": dtype, "mean": 0.0, "deviation": 1.0, "low": -4.0, "high": 4.0}
    return {"kind": "uniform", "dtype": dtype, "low": 0, "high": 0}


def digest(view: torch.Tensor) -> str:
    """A digest of a small tensor's contents."""
    return hashlib.sha256(_bytes(view.untyped_storage())).hexdigest()[:16]


def draw(storage: torch.UntypedStorage, start: int, data: Mapping[str, Any], folder: Path, seed: int) -> None:
    """Fills ``storage``, from byte ``start`` on, with the contents that ``data`` describes. Raises ValueError for invalid data."""
    kind = data["kind"]
    if kind == "none":
        return
    whole = torch.empty(0, dtype=torch.uint8, device=storage.device).set_(storage)[start:]
    if kind == "exact":
        packed = bounded_reading.content(folder / str(data["file"]), folder, most=2 * MOST_EXACT)
        content = zlib.decompressobj().decompress(packed, MOST_EXACT + 1)
        if len(content) != whole.numel():
            raise ValueError(f"{data['file']} holds {len(content)} bytes and not the {whole.numel()} of its tensor")
        whole.copy_(torch.frombuffer(bytearray(content), dtype=torch.uint8))
        return
    dtype = getattr(torch, data["dtype"])
    size = torch.empty(0, dtype=dtype).element_size()
    elements = whole[: whole.numel() // size * size].view(dtype)
    numbers = torch.Generator(storage.device).manual_seed(seed)
    if kind == "uniform":
        low, high = int(data["low"]), int(data["high"])
        first = elements[:_DRAWN]
        first.copy_(torch.randint(low, high + 1, first.shape, generator=numbers, device=storage.device))
        _repeat(elements)
    elif kind == "normal":
        flat = (torch.view_as_real(elements) if dtype.is_complex else elements).reshape(-1)
        drawn = torch.randn(flat[:_DRAWN].shape, generator=numbers, device=flat.device)
        drawn.mul_(float(data["deviation"])).add_(float(data["mean"])).clamp_(float(data["low"]), float(data["high"]))
        flat[:_DRAWN].copy_(drawn)
        _repeat(flat)
    else:
        raise ValueError(f"captured contents of an unknown kind: {kind}")


def _repeat(elements: torch.Tensor) -> None:
    """Fills the rest with copies of the numbers that were drawn."""
    for piece in torch.split(elements, _DRAWN)[1:]:
        piece.copy_(elements[: piece.numel()])


def _bytes(storage: torch.UntypedStorage) -> bytes:
    whole = torch.empty(0, dtype=torch.uint8, device=storage.device).set_(storage)
    return whole.cpu().numpy().tobytes()


def _sample(view: torch.Tensor) -> torch.Tensor:
    """Some of the tensor's elements, in order, as fp64 or int64 on the CPU."""
    flat = view.detach()
    flat = flat.reshape(-1) if flat.is_contiguous() else flat.flatten()
    # An odd step: an even one would take the same few columns of each row.
    most = _FLOATS if flat.is_floating_point() or flat.is_complex() else _WHOLE
    flat = flat[:: max(1, -(-flat.numel() // most)) | 1]
    if flat.is_complex():
        flat = torch.view_as_real(flat).reshape(-1)
    return flat.cpu().double() if flat.is_floating_point() else flat.cpu().to(torch.int64)
