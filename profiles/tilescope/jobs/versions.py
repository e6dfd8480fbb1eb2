"""Versions of the software that takes part in a run. Imports neither torch nor triton."""

from __future__ import annotations

import platform
import re
import subprocess
from functools import cache
from pathlib import Path

from tilescope.files import user_cache
from tilescope.hardware import device
from tilescope.version import VERSION


def versions() -> dict[str, str]:
    """Versions by name, of the software that is installed."""
    found = {"python": platform.python_version(), "tilescope": VERSION, **device.installed()}
    if driver := device.driver():
        found["driver"] = driver
    if ncu := device.find_ncu():
        version = re.search(r"Version\s+(\S+)", version_text(ncu))
        found["ncu"] = version[1] if version else "unknown"
    return found


def version_text(program: str) -> str:
    """The program's output for ``--version``; empty where it cannot be run. Cached until its file changes."""
    try:
        seen = Path(program).resolve().stat()
    except OSError:
        return ""
    return known_text(program, seen.st_mtime_ns, seen.st_size)


@cache
def known_text(program: str, *_: int) -> str:
    """The output of the program whose file was changed then and has this size, as once seen."""
    key = user_cache.digest([program, *_])
    said = user_cache.read("versions", key)
    if not isinstance(said, str):
        said = _output([program, "--version"])
        if said:
            user_cache.write("versions", key, said)
    return said


def _output(command: list[str]) -> str:
    """The command's output; empty where it cannot be run or takes more than 30 s."""
    try:
        return subprocess.run(command, capture_output=True, text=True, timeout=30, check=False).stdout
    except (OSError, subprocess.TimeoutExpired):
        return ""
