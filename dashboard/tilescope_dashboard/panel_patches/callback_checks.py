"""Signatures of callbacks on Bokeh's models, which are not looked up.

Bokeh 3.9 inspects the signature of each function that is to be called of a change: a twentieth of the server's time for a
page, on which all but Panel's own are few. What has a wrong one raises TypeError when it is called.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from bokeh.util import callback_manager


def _trusted(callback: Callable[..., Any], fargs: Sequence[str], what: str = "") -> None:
    """``_check_callback``, which raises nothing."""


def leave_out() -> None:
    """From here on in this process."""
    callback_manager._check_callback = _trusted
