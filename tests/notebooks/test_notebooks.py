"""Every notebook runs from top to bottom, without a GPU."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
NOTEBOOKS = sorted((ROOT / "notebooks").rglob("*.ipynb"))


def code(notebook: Path) -> str:
    cells = json.loads(notebook.read_text(encoding="utf-8"))["cells"]
    return "\n\n".join("".join(cell["source"]) for cell in cells if cell["cell_type"] == "code")


@pytest.mark.parametrize("notebook", NOTEBOOKS, ids=lambda path: path.stem)
def test_it_runs(notebook, tmp_path):
    paths = [str(ROOT / part) for part in ("kernels", "profiles", "dashboard")]
    environment = {**os.environ, "TILESCOPE_RUNS": str(tmp_path), "PYTHONPATH": os.pathsep.join(paths)}
    done = subprocess.run(
        [sys.executable, "-c", code(notebook)],
        cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=250, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("notebook", NOTEBOOKS, ids=lambda path: path.stem)
def test_it_is_kept_without_outputs(notebook):
    cells = json.loads(notebook.read_text(encoding="utf-8"))["cells"]
    assert all(not cell["outputs"] and cell["execution_count"] is None for cell in cells if cell["cell_type"] == "code")


def test_the_quickstart_counts_what_it_says(tmp_path):
    text = code(ROOT / "notebooks" / "quickstart.ipynb")
    text += (
        "\nassert asked[asked['impl'] == 'triton'].groupby('metric')['value'].sum().tolist() == [5_695_052, 5_695_052]"
    )
    text += "\nassert (triton['measured']).all() and len(triton) >= 10"
    paths = [str(ROOT / part) for part in ("kernels", "profiles", "dashboard")]
    environment = {**os.environ, "TILESCOPE_RUNS": str(tmp_path), "PYTHONPATH": os.pathsep.join(paths)}
    subprocess.run([sys.executable, "-c", text], cwd=tmp_path, env=environment, check=True, timeout=250)
