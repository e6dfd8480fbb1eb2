"""The dashboard's rooms: imports go one way, and what is drawn and said stands on no Panel."""

import ast
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2] / "dashboard" / "tilescope_dashboard"
#: A room imports from those before it.
ORDER = ("data", "figures", "topics", "session", "components", "browser", "report", "views.jobs", "views.form", "views",
         "notebook", "panel_patches", "serving")  # fmt: skip


def room(module: str) -> str:
    """The room of a module, named below the package."""
    parts = module.split(".")
    inner = ".".join(parts[:2])
    return inner if inner in ORDER else parts[0]


def test_a_room_imports_from_those_below_it() -> None:
    upwards = []
    for path in sorted(ROOT.rglob("*.py")):
        here = room(".".join(path.relative_to(ROOT).with_suffix("").parts))
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "tilescope_dashboard":
                modules = [f"{node.module}.{name.name}".removeprefix("tilescope_dashboard.") for name in node.names]
                upwards += [
                    (path.name, m) for m in modules if here in ORDER and ORDER.index(room(m)) > ORDER.index(here)
                ]
    assert not upwards


def test_data_figures_and_topics_need_no_panel() -> None:
    code = (
        f"import importlib, pkgutil, sys; sys.path[:0] = {[str(ROOT.parent), str(ROOT.parents[1] / 'profiles')]}\n"
        "for room in ('data', 'figures', 'topics'):\n"
        "    found = importlib.import_module(f'tilescope_dashboard.{room}')\n"
        "    for module in pkgutil.iter_modules(found.__path__, found.__name__ + '.'):\n"
        "        importlib.import_module(module.name)\n"
        "assert 'panel' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=300)
