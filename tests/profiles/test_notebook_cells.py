"""Functions in notebook cells: their files are named by the cells' numbers."""

import sys
from types import SimpleNamespace

import pytest
from tilescope.captures.call_site import call_site
from tilescope.execution import kernel_code, notebook_cells
from tilescope.files import names

CELL = """
import triton, triton.language as tl

@triton.jit
def mine(x_ptr):
    tl.store(x_ptr, 1.0)

def where():
    return ask()
"""


@pytest.mark.parametrize("known", [True, False])
def test_a_cells_file_is_called_by_its_number(monkeypatch, known):
    shell = pytest.importorskip("IPython.core.interactiveshell").InteractiveShell(user_ns={"ask": call_site})
    monkeypatch.setitem(sys.modules, "IPython", SimpleNamespace(get_ipython=lambda: shell if known else None))
    for cell in ("1 + 1", CELL):
        shell.run_cell(cell, store_history=True)
    file = shell.user_ns["mine"].fn.__code__.co_filename
    assert notebook_cells.is_cell(file)
    assert kernel_code.file_stem(file) == ("notebook_cell_2" if known else "notebook_cell")
    assert shell.user_ns["where"]()[0] == ("cell 2:8" if known else "cell:8")


@pytest.mark.parametrize(("name", "said"), [
    ("notebook_cell_5.py", "notebook cell 5"), ("notebook_cell.py", "notebook cell"), ("notebook_cell_5-2.py", "notebook cell 5"),
    ("3738046210.py", "notebook cell"), ("softmax.py", "softmax.py"), ("cell_5.py", "cell_5.py"), ("cuda12.py", "cuda12.py"),
])  # fmt: skip
def test_a_cell_is_told_as_people_know_it(name, said):
    assert names.readable(name) == said
