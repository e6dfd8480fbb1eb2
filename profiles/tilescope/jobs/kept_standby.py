"""Keeps a wrapped worker ready between commands: the one that used a wrapped collector leaves a worker, the next one takes it.

The worker has done its imports and uses no GPU before it is woken; it ends after the idle time of a fork server. A link beside the
servers' sockets names its folder. Its name covers the environment, the wrapper's command line and the code. Imports neither torch
nor triton.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tilescope import collectors
from tilescope.files import installed, user_cache
from tilescope.hardware import device
from tilescope.jobs import process, warm


def leave(name: str) -> None:
    """Starts a worker of the collector for a later command, unless there is one. Never raises."""
    with contextlib.suppress(OSError, RuntimeError, ValueError):
        wrap, variables = wrapping(name)
        link = _link(name, wrap, variables)
        if link is None or _is_alive(link):
            return
        place = process.Place()
        started = place.start(wrap, place.variables(variables), warm.STAND_BY, "0")
        place.job.with_name(process.PID).write_text(str(started.pid))
        own = _of_this_process(link)
        own.symlink_to(place.job.parent)
        own.replace(link)


def wake(name: str) -> None:
    """Has the collector's worker, if there is one, make its CUDA context, which takes a second under ncu. Never raises."""
    with contextlib.suppress(OSError, RuntimeError, ValueError):
        if link := _link(name, *wrapping(name)):
            (link.readlink() / warm.WAKE).touch()


def take(name: str) -> process.Standby | None:
    """The worker of the collector that an earlier command has left; None without one.

    Raises as the collector's ``command``.
    """
    wrap, variables = wrapping(name)
    with contextlib.suppress(OSError, ValueError):
        if link := _link(name, wrap, variables):
            own = link.rename(_of_this_process(link))  # of several commands one gets it
            folder = own.readlink()
            own.unlink()
            (folder / warm.WAKE).touch()
            return process.Standby(wrap, variables, folder)
    return None


def wrapping(name: str) -> tuple[process.Wrap, Mapping[str, str]]:
    """The collector's wrapper, and its variables."""
    collector: Any = collectors.load(name)
    return collector.command, getattr(collector, "environment", dict)()


def _link(name: str, wrap: process.Wrap, variables: Mapping[str, str]) -> Path | None:
    roots = [Path(__file__).parents[1], *installed.folders_of("tilescope_kernels")]
    code = [user_cache.digest_of_code(root) for root in roots]
    known = user_cache.digest([name, wrap([], Path()), code, device.installed()])
    path = warm.socket_path(warm.environment(variables))
    return path.with_suffix(f".{known[:8]}") if path else None


def _of_this_process(link: Path) -> Path:
    return link.with_suffix(f"{link.suffix}-{os.getpid()}")


def _is_alive(link: Path) -> bool:
    try:
        return process.KeptProcess(link.readlink()).returncode is None
    except (OSError, ValueError):
        return False
