"""Finds the lines of a user's code that a launch was made from."""

from __future__ import annotations

import functools
import sys
import sysconfig
import traceback
from pathlib import Path

from tilescope.execution import kernel_code

#: Packages whose frames are skipped.
_BETWEEN = ("torch", "triton", "tilescope")
_STANDARD = str(Path(sysconfig.get_path("stdlib")))
_INSTALLED = ("site-packages", "dist-packages")


def call_site() -> tuple[str, ...]:
    """Texts ``file:line``, innermost first: the line of the launch, and if that is a library's, the user's line that called it.

    In the thread of a backward pass on a GPU the latter is unknown.
    """
    found: list[str] = []
    for frame, line in traceback.walk_stack(sys._getframe(1)):
        name, own = _named(frame.f_code.co_filename, frame.f_globals.get("__name__", ""))
        if name and (own or not found):
            found.append(f"{name}:{line}")
        if name and own:
            break
    return tuple(found)


def _named(file: str, module: str) -> tuple[str, bool]:
    """A file's name to show (empty: skipped), and whether it is the user's own and not an installed library's."""
    if kernel_code.is_cell(file):  # not cached: a cell that is run again has another number
        return f"cell {kernel_code.cell_number(file)}".rstrip(), True
    return _of_file(file, module)


@functools.lru_cache(maxsize=4096)
def _of_file(file: str, module: str) -> tuple[str, bool]:
    if module.partition(".")[0] in _BETWEEN or file.startswith("<frozen"):
        return "", False
    installed = next((place for place in _INSTALLED if f"/{place}/" in file), None)
    if installed:
        return file.rpartition(f"/{installed}/")[2], False
    if file.startswith(_STANDARD):
        return "", False
    try:
        return str(Path(file).relative_to(Path.cwd())), True
    except (ValueError, FileNotFoundError):  # a script may remove its folder
        return "/".join(Path(file).parts[-3:]).lstrip("/"), True
