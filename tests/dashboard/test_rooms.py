"""The dashboard's rooms: what is drawn and said stands on no Panel, and parts of the page on no view."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2] / "dashboard" / "tilescope_dashboard"


@pytest.mark.parametrize(("folder", "below"), [("jobs", "jobs"), ("form", "form|jobs")])
def test_form_and_jobs_import_no_view(folder: str, below: str) -> None:
    for path in sorted((ROOT / "views" / folder).glob("*.py")):
        assert not re.search(rf"tilescope_dashboard\.views(\.(?!{below})| import)", path.read_text()), path


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
