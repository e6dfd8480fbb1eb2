"""Records the contents of memory at a launch, byte by byte or as a distribution, and restores them.

Integers may be addresses and are kept. The values of floats seldom matter to the cost of a launch: those of large tensors are kept
as mean, deviation and bounds, and are drawn again from a seed. Imports torch.
"""

from __future__ import annotations

import hashlib
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from tilescope.files import bounded_reading

#: Most bytes of a storage that are kept: of floats, and of anything else.
MOST_FLOATS, MOST_EXACT = 1 << 20, 64 << 20
#: Most elements sampled for the distribution of floats, and for the bounds of integers. PyTorch wakes no thread for so few floats.
_FLOATS, _WHOLE = 30_000, 1 << 20
#: Elements that are drawn. They repeat in larger tensors, because drawing gigabytes takes minutes. The number is
#: prime, so that the rows of a matrix differ.
_DRAWN = (1 << 22) - 3


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
