"""Triton's launcher of a compiled kernel in C, without what is done around it in Python at each launch.

That is memory for the kernel's own use, which most need none of, and the map that a descriptor is to the GPU: of one address
and one set of extents it is the same each time. On an H200's host it took 11 of the 17 us that Triton took for a launch of
three descriptors (2026-11-26, torch 2.11, triton 3.6).
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any, NamedTuple

import torch

#: Addresses whose maps a descriptor keeps; beyond, all are forgotten.
_MOST = 64


class Tiles(NamedTuple):
    """What Triton's launcher reads of a descriptor, without the checks that another one of the same extents has passed."""

    base: torch.Tensor
    shape: Any
    strides: Any
    padding: str


class Launcher(NamedTuple):
    """``start(x, y, z, stream, *first, *arguments)`` launches.

    ``maps`` are Triton's facts of the kernel's descriptors, each given as what ``make_map`` returns: a map, extents and
    strides. None are made where ``start`` takes descriptors as they are.
    """

    start: Callable[..., Any]
    first: tuple[Any, ...]
    maps: tuple[Any, ...] = ()
    make_map: Callable[[Any, Any], list[Any]] | None = None


#: What is not handed on: the launch's metadata and hooks, of which there are none.
_HOOKS = (None, None, None)


def whole_launcher(compiled: Any) -> Launcher:
    """The launcher of a ``CompiledKernel`` as Triton calls it."""
    return Launcher(compiled.run, (compiled.function, compiled.packed_metadata, *_HOOKS))


def launcher_of(compiled: Any) -> Launcher:
    """The launcher of a ``CompiledKernel`` in C, where that is all there is to a launch; else as Triton calls it."""
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
    """A descriptor of tensors of the same extents: what a launch is given of each."""

    def __init__(self, example: Any, make_map: Callable[[Any, Any], list[Any]] | None, facts: Any) -> None:
        self._extents = (example.shape, example.strides, example.padding)
        self._make_map, self._facts = make_map, facts
        self._maps: dict[int, Any] = {}
        #: What follows the map among a launch's arguments.
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
