"""Triton's C launcher of a compiled kernel, without the Python around it.

That Python allocates scratch memory, which most kernels need none of, and encodes each tensor descriptor as a TMA map, which is the
same for the same address, shape and strides. On an H200's host it took 11 of the 17 us of a launch with three descriptors
(2026-11-26, torch 2.11, triton 3.6).
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any, NamedTuple

import torch

#: TMA maps kept per descriptor, by address. The cache is cleared when it is full.
_MOST = 64


class Tiles(NamedTuple):
    """The fields of a descriptor that Triton's launcher reads. Skips the checks that one of the same shape has passed."""

    base: torch.Tensor
    shape: Any
    strides: Any
    padding: str


class Launcher(NamedTuple):
    """``start(x, y, z, stream, *first, *arguments)`` launches.

    ``maps`` has Triton's metadata of each descriptor. ``make_map`` turns a descriptor and its metadata into arguments: a TMA map,
    shape and strides. It is None where ``start`` takes descriptors as they are.
    """

    start: Callable[..., Any]
    first: tuple[Any, ...]
    maps: tuple[Any, ...] = ()
    make_map: Callable[[Any, Any], list[Any]] | None = None


#: The launch's metadata and its two hooks: none.
_HOOKS = (None, None, None)


def whole_launcher(compiled: Any) -> Launcher:
    """The launcher of a ``CompiledKernel`` with Triton's Python around it."""
    return Launcher(compiled.run, (compiled.function, compiled.packed_metadata, *_HOOKS))


def launcher_of(compiled: Any) -> Launcher:
    """The C launcher of a ``CompiledKernel`` where that suffices, else ``whole_launcher``."""
    run, whole = compiled.run, whole_launcher(compiled)
    try:
        if run.global_scratch_size or run.profile_scratch_size:
            return whole
        flags = (run.launch_cooperative_grid, run.launch_pdl)
        first = (compiled.function, *flags, None, None, compiled.packed_metadata, *_HOOKS)
        if inspect.isbuiltin(run.launch):
            return Launcher(run.launch, first)
        around = inspect.getclosurevars(run.launch)
        start, maps = around.nonlocals["launcher"], around.nonlocals["tensordesc_meta"]
        if not inspect.isbuiltin(start) or None in maps:
            return whole
        return Launcher(start, first, tuple(maps), around.globals["make_tensordesc_arg"])
    except (AttributeError, KeyError, TypeError):  # another version of Triton
        return whole


class Descriptor:
    """A descriptor of tensors of one shape and strides: turns each tensor into the launch's argument."""

    def __init__(self, example: Any, make_map: Callable[[Any, Any], list[Any]] | None, facts: Any) -> None:
        self._extents = (example.shape, example.strides, example.padding)
        self._make_map, self._facts = make_map, facts
        self._maps: dict[int, Any] = {}
        #: The arguments that follow the map.
        self.rest = [*example.shape, *example.strides] if make_map else []

    def of(self, tensor: torch.Tensor, address: int) -> Any:
        if self._make_map is None:
            return Tiles(tensor, *self._extents)
        found = self._maps.get(address)
        if found is None:
            if len(self._maps) >= _MOST:
                self._maps.clear()
            found = self._maps[address] = self._make_map(Tiles(tensor, *self._extents), self._facts)[0]
        return found
