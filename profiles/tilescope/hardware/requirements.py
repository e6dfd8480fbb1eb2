"""Finds required distributions that are not installed. Imports neither torch nor triton."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterable


def absent(requires: Iterable[str]) -> tuple[str, ...]:
    """The distributions of ``requires`` that cannot be imported."""
    return tuple(name for name in requires if importlib.util.find_spec(name.replace("-", "_").lower()) is None)
