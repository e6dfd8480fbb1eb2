"""Shares Triton's only hook into its compilation stages. Imports triton: worker-side only."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

#: Triton calls it with the backend, the stages by name, the options, the language and the compute capability.
Hook = Callable[[Any, dict[str, Any], Any, Any, int], None]


@contextlib.contextmanager
def hooked(hook: Hook) -> Iterator[None]:
    """While active, Triton calls ``hook`` for each compilation, after the hook that was set before."""
    from triton import knobs  # noqa: PLC0415

    with knobs.runtime.scope():
        before = knobs.runtime.add_stages_inspection_hook

        def both(*args: Any) -> None:
            if before is not None:
                before(*args)
            hook(*args)

        knobs.runtime.add_stages_inspection_hook = both
        yield
