"""Which of the distributions that an implementation requires are here. Imports neither torch nor triton."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterable


def absent(requires: Iterable[str]) -> tuple[str, ...]:
    """Those that cannot be imported."""
    return tuple(name for name in requires if importlib.util.find_spec(name.replace("-", "_").lower()) is None)
