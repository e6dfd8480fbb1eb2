"""The packages import in one direction, and what only reads runs needs neither torch nor triton."""

import ast
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import tilescope
from tilescope import collectors

ROOT = Path(__file__).resolve().parents[2]
ROOTS = {
    "tilescope_kernels": ROOT / "kernels", "tilescope": ROOT / "profiles", "tilescope_dashboard": ROOT / "dashboard",
}  # fmt: skip
FORBIDDEN = {
    "tilescope_kernels": {"tilescope", "tilescope_dashboard"},
    "tilescope": {"tilescope_dashboard"},
    "tilescope_dashboard": {"torch", "triton", "tilescope_kernels"},
}
#: Modules of the profiler that only the worker may import: they bring torch, triton or the kernels along.
BLOCKER = """
import sys
class Blocker:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in ("torch", "triton"):
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
sys.meta_path.insert(0, Blocker())
"""


def imported(file):
    """Top-level names of everything that a file imports, inside functions and by a string too."""
    names = set()
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.Import):
            names |= {alias.name.split(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.level == 0:
            names.add((node.module or "").split(".")[0])
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            names |= {root for root in ROOTS if re.fullmatch(rf"{root}(\.\w+)*(:\w+)?", node.value)}
    return names


def python(code):
    path = os.pathsep.join([*map(str, ROOTS.values()), os.environ.get("PYTHONPATH", "")])
    return subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, env={**os.environ, "PYTHONPATH": path},
        timeout=300, check=False,
    )  # fmt: skip


@pytest.mark.parametrize("package", ROOTS)
def test_imports_point_one_way(package):
    files = [*(ROOTS[package] / package).rglob("*.py"), *ROOTS[package].glob("*.py")]
    assert files
    wrong = {str(file.relative_to(ROOT)): imported(file) & FORBIDDEN[package] for file in files}
    assert {file: names for file, names in wrong.items() if names} == {}


@pytest.mark.parametrize("modules", [
    "tilescope, tilescope.table.schema, tilescope.table.metrics, tilescope.runs.store, tilescope.models.roofline, "
    "tilescope.hardware.occupancy, tilescope.models.text_table, tilescope.jobs.supervisor, tilescope.jobs.plan, "
    "tilescope.notebook.profiling, tilescope.cli, tilescope.jobs.doctor, tilescope.collectors.check, "
    "tilescope.collectors.compiler, tilescope.collectors.interpreter, tilescope.collectors.events, "
    "tilescope.collectors.torch_profiler, tilescope.collectors.ncu",
    "tilescope_dashboard.report, tilescope_dashboard.session.jobs, tilescope_dashboard.views.groups, "
    "tilescope_dashboard.views.navigation, tilescope_dashboard.views.form.profile, tilescope_dashboard.views.jobs.job_panel",
])  # fmt: skip
def test_reading_runs_needs_neither_torch_nor_triton(modules):
    done = python(BLOCKER + f"import {modules}\nassert not {{'torch', 'triton'}} & set(sys.modules)")
    assert done.returncode == 0, done.stderr


def test_importing_tilescope_imports_nothing_that_takes_long():
    heavy = {"bokeh", "numpy", "pandas", "panel", "pyarrow", "torch", "triton"}
    done = python(f"import sys, tilescope\nassert not {heavy} & set(sys.modules)")
    assert done.returncode == 0, done.stderr


def test_describing_a_users_kernel_imports_no_kernel_of_the_library(tmp_path):
    file = tmp_path / "theirs.py"
    file.write_text("import tilescope, torch\ndef double(x):\n    return 2 * x\n"
                    "SPEC = tilescope.spec(double, inputs={'x': torch.ones(8, 5)}, reference=double)\n")  # fmt: skip
    describe = f"import sys\nfrom tilescope.execution import describe\ndescribe.catalog(['{file}:SPEC'])\n"
    done = python(describe + "assert 'tilescope_kernels.elementwise.vector_add' not in sys.modules")
    assert done.returncode == 0, done.stderr


def test_what_tilescope_offers_is_there():
    assert all(hasattr(tilescope, name) for name in tilescope.__all__)
    with pytest.raises(AttributeError, match="module 'tilescope' has no attribute 'nothing'"):
        _ = tilescope.nothing


def test_one_module_lists_the_collectors():
    for path in (ROOTS["tilescope"] / "tilescope").rglob("*.py"):
        if path.name != "sources.py":
            assert not all(f'"{name}"' in path.read_text() for name in collectors.COLLECTORS), path


def test_no_package_is_called_kernels():
    """Other libraries import whatever answers to that name."""
    assert not (ROOT / "kernels" / "__init__.py").exists()
    assert {path.name for path in (ROOT / "kernels").iterdir() if path.is_dir()} - {"__pycache__"} == {
        "tilescope_kernels"
    }
