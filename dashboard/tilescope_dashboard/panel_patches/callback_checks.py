"""Skips Bokeh's check of callback signatures.

Bokeh 3.9 inspects the signature of each callback when it is added: a twelfth of the server's time for a page, nearly all of it for
Panel's own callbacks. Without the patch 20 pages at once take longer than their budget. A callback with a wrong signature still raises TypeError when it is called.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from bokeh.util import callback_manager


def _trusted(callback: Callable[..., Any], fargs: Sequence[str], what: str = "") -> None:
    """``_check_callback`` without the check."""


def install() -> None:
    callback_manager._check_callback = _trusted
