"""Hooks into Triton's compilation stages. Imports triton: worker-side only."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any
from unittest import mock

#: It gets the backend and the stages by name.
Hook = Callable[[Any, dict[str, Any]], None]


@contextlib.contextmanager
def hooked(hook: Hook) -> Iterator[None]:
    """Calls ``hook`` for each compilation for NVIDIA's GPUs while active.

    Triton's own ``add_stages_inspection_hook`` is left to others, and from 3.9 on changes the keys of all kernels.
    """
    from triton.backends.nvidia.compiler import CUDABackend  # noqa: PLC0415

    original = CUDABackend.add_stages

    def add_stages(backend: Any, stages: dict[str, Any], options: Any, language: Any) -> None:
        original(backend, stages, options, language)
        hook(backend, stages)

    with mock.patch.object(CUDABackend, "add_stages", add_stages):
        yield
