"""Installed packages: their folders, and which are absent. Imports none of them."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterable
from pathlib import Path


def folders_of(package: str) -> list[Path]:
    """The folders of a package, which is not imported; none where it is not installed or is no package."""
    try:
        spec = importlib.util.find_spec(package) if package.isidentifier() else None
    except (ImportError, ValueError, AttributeError):  # as ``__main__``
        return []
    return [Path(root) for root in (spec.submodule_search_locations or [])] if spec else []


def not_installed(requires: Iterable[str]) -> tuple[str, ...]:
    """The distributions of ``requires`` that cannot be imported."""
    return tuple(name for name in requires if importlib.util.find_spec(name.replace("-", "_").lower()) is None)
