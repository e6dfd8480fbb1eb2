"""Recognises notebook cells, which IPython compiles under generated file names."""

from __future__ import annotations

import sys


def is_cell(file: str) -> bool:
    return "ipykernel_" in file or file.startswith(("<ipython", "<cell"))


def number(file: str) -> str:
    """The cell's number, as in ``In [5]``; empty where it is unknown."""
    ipython = sys.modules.get("IPython")
    shell = ipython.get_ipython() if ipython else None
    named = getattr(getattr(shell, "compile", None), "format_code_name", lambda file: None)(file)
    return "".join(filter(str.isdigit, named[1])) if named else ""
