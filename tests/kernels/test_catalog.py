"""The lazy package: what is imported when, and that one line of the catalog adds a kernel."""

import ast
import importlib
import os
import pkgutil
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import tilescope_kernels as kernels
import triton
from tilescope_kernels import catalog

PACKAGE = Path(kernels.__file__).parent
NEW = """
from dataclasses import replace

from tilescope_kernels.elementwise.vector_add import SPEC as ADD


def twice(x):
    return x + x


SPEC = replace(ADD, name="twice")
"""


def python(code, root=PACKAGE.parent):
    """What a new process prints that imports the package from below ``root``."""
    environment = {**os.environ, "PYTHONPATH": str(root)}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_declarations_import_neither_torch_nor_triton():
    code = "import sys, tilescope_kernels.spec, tilescope_kernels.catalog; dir(tilescope_kernels); print(*sys.modules)"
    imported = set(python(code).split())
    assert "tilescope_kernels.spec" in imported
    assert not {"torch", "triton"} & imported
    assert not {name for name in imported if name.startswith("tilescope_kernels.elementwise")}


def test_every_name_is_offered_and_no_module_shadows_one():
    assert set(kernels.__all__) == {"CATALOG", "FAMILIES", "warm", *catalog.EXPORTS}
    assert set(kernels.__all__) <= set(dir(kernels))
    for name, module in catalog.EXPORTS.items():
        assert getattr(kernels, name).__module__ == f"tilescope_kernels.{module}"
    assert not {module.name for module in pkgutil.iter_modules(kernels.__path__)} & set(kernels.__all__)
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        _ = kernels.nothing
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        _ = catalog.nothing


def test_type_checkers_are_told_what_the_catalog_says():
    (block,) = (node for node in ast.parse((PACKAGE / "__init__.py").read_text()).body if isinstance(node, ast.If))
    told = {alias.asname: f"{node.module}.{alias.name}" for node in block.body for alias in node.names}
    homes = {"CATALOG": "catalog", "FAMILIES": "catalog", "warm": "warming", **catalog.EXPORTS}
    assert told == {name: f"tilescope_kernels.{module}.{name}" for name, module in homes.items()}


def test_catalog_line_adds_a_kernel(tmp_path):
    copy = tmp_path / "tilescope_kernels"
    shutil.copytree(PACKAGE, copy, ignore=shutil.ignore_patterns("__pycache__"))
    (copy / "elementwise" / "twice.py").write_text(NEW)
    table = (copy / "catalog.py").read_text()
    line = '    Entry("elementwise", "elementwise.twice", "SPEC", "twice"),\n'
    (copy / "catalog.py").write_text(table.replace("ENTRIES = (\n", f"ENTRIES = (\n{line}", 1))
    code = (
        "import torch; from tilescope_kernels import softmax; "
        "print(softmax.__module__, hasattr(torch.ops.tilescope, 'softmax'), hasattr(torch.ops.tilescope, 'gelu')); "
        "import tilescope_kernels as k; "
        "print(k.CATALOG[0].name, k.FAMILIES['elementwise'][0].name, k.twice(4), 'twice' in dir(k))"
    )
    first, second = python(code, tmp_path).splitlines()
    assert first.split() == ["tilescope_kernels.reductions.softmax", "True", "False"]
    assert second.split() == ["twice", "twice", "8", "True"]


def _modules():
    names = (found.name for found in pkgutil.walk_packages(kernels.__path__, "tilescope_kernels."))
    return [importlib.import_module(name) for name in names]


def test_kernels_refer_to_what_triton_compiles():
    """Triton reads all that a kernel refers to before it compiles it, and refuses functions of the host."""
    functions = {
        value for module in _modules() for value in vars(module).values() if isinstance(value, triton.JITFunction)
    }
    assert len(functions) > 100
    for function in functions:
        assert function.cache_key
