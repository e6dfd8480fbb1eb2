"""Runs notebooks one after the other in this process, without Jupyter: ``run_notebooks.py NOTEBOOK…``.

Cells are compiled under names of their own that ``linecache`` knows, as IPython does, and a last expression is shown. A
cell tagged ``stub`` is replaced by the file of the notebook's name in ``solutions``. Writes one JSON line a notebook:
``{"notebook": …, "text": what it printed and showed, "seconds": …, "error": traceback or ""}``.
"""

import ast
import contextlib
import io
import json
import linecache
import sys
import time
import traceback
from pathlib import Path
from typing import Any

from IPython.core.formatters import HTMLFormatter
from tilescope.notebook import puzzles

#: A person is told early that a loop does not end; a busy machine may take this many seconds over a sound one.
puzzles._LIMIT = 200


def run(notebook):
    """One notebook from top to bottom."""
    namespace: dict[str, Any] = {"__name__": "__main__"}
    said, error, began = io.StringIO(), "", time.monotonic()
    with contextlib.redirect_stdout(said):
        try:
            for number, text in enumerate(sources(notebook)):
                execute(text, f"<{notebook.stem}, cell {number}>", namespace)
        except Exception:
            error = traceback.format_exc()
    seconds = round(time.monotonic() - began, 2)
    return {"notebook": str(notebook), "text": said.getvalue(), "seconds": seconds, "error": error}


def sources(notebook):
    """Code of each cell, solutions in place of stubs."""
    solution = notebook.parent / "solutions" / f"{notebook.stem}.py"
    cells = json.loads(notebook.read_text(encoding="utf-8"))["cells"]
    return [
        solution.read_text(encoding="utf-8") if "stub" in cell["metadata"].get("tags", []) else "".join(cell["source"])
        for cell in cells
        if cell["cell_type"] == "code"
    ]


def execute(text, name, namespace):
    """One cell."""
    linecache.cache[name] = (len(text), None, text.splitlines(keepends=True), name)
    tree = ast.parse(text, name)
    last = ast.Expression(tree.body.pop().value) if tree.body and isinstance(tree.body[-1], ast.Expr) else None
    exec(compile(tree, name, "exec"), namespace)  # noqa: S102 (our own notebooks)
    shown = eval(compile(last, name, "eval"), namespace) if last else None  # noqa: S307
    if shown is not None:
        print(HTMLFormatter()(shown) or repr(shown))


if __name__ == "__main__":
    for path in sys.argv[1:]:
        print(json.dumps(run(Path(path))), flush=True)
