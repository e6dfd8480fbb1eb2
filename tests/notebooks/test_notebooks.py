"""Every notebook runs from top to bottom, without a GPU; a puzzle with its solution in place of its stub."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
NOTEBOOKS = sorted((ROOT / "notebooks").rglob("*.ipynb"))
PUZZLES = [path for path in NOTEBOOKS if path.parent.name == "puzzles"]
GUIDES = [path for path in NOTEBOOKS if path not in PUZZLES]

#: What each notebook said, and how it ended.
Answers = dict[Path, dict[str, Any]]


def run(notebooks, folder):
    """What each notebook said. One process for all of them: importing torch takes longer than most puzzles."""
    paths = [str(ROOT / part) for part in ("kernels", "profiles", "dashboard")]
    environment = {**os.environ, "TILESCOPE_RUNS": str(folder), "PYTHONPATH": os.pathsep.join(paths)}
    command = [sys.executable, str(Path(__file__).with_name("run_notebooks.py")), *map(str, notebooks)]
    done = subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, timeout=800, check=False
    )
    said = [json.loads(line) for line in done.stdout.splitlines()]
    assert len(said) == len(notebooks), done.stderr
    return {Path(answer["notebook"]): answer for answer in said}


@pytest.fixture(scope="module")
def guides(tmp_path_factory):
    return run(GUIDES, tmp_path_factory.mktemp("runs"))


@pytest.fixture(scope="module")
def puzzles(tmp_path_factory):
    return run(PUZZLES, tmp_path_factory.mktemp("runs"))


def named(path):
    return path.stem


@pytest.mark.parametrize("notebook", GUIDES, ids=named)
def test_a_guide_runs(notebook, guides):
    assert not guides[notebook]["error"]


@pytest.mark.parametrize("notebook", PUZZLES, ids=named)
def test_the_solution_solves_the_puzzle(notebook, puzzles):
    assert not puzzles[notebook]["error"]
    said = puzzles[notebook]["text"]
    assert said.startswith(f"{notebook.stem}: solved\n")
    assert said.count("  yes  ") == 3


@pytest.mark.parametrize("notebook", NOTEBOOKS, ids=named)
def test_it_is_kept_without_outputs(notebook):
    cells = json.loads(notebook.read_text(encoding="utf-8"))["cells"]
    assert all(not cell["outputs"] and cell["execution_count"] is None for cell in cells if cell["cell_type"] == "code")


def test_the_quickstart_counts_what_it_says(guides):
    said = guides[ROOT / "notebooks" / "quickstart.ipynb"]["text"]
    # The grouped frame of the bytes of an fp32 softmax of 256 x 781.
    assert said.count("799,744") >= 2


def test_the_guides_say_what_their_figures_are(guides):
    fusion = guides[ROOT / "notebooks" / "fusion.ipynb"]["text"]
    # Seven transfers of 65536 bf16 numbers against three.
    assert {"917,504", "393,216", "2.33"} <= set(re.findall(r"[\d.,]+", fusion))
    own = guides[ROOT / "notebooks" / "own_kernel.ipynb"]["text"]
    # One number of each sector, first; the whole row, in the end.
    assert own.index(">12.5%<") < own.index(">99.2%<")


@pytest.mark.parametrize("name", ["quickstart", "fusion"])
def test_a_guide_takes_a_recording_that_has_what_it_tells_of(name, guides):
    """Of several recordings of a kernel, one is timed against nothing and has no counters."""
    said = guides[ROOT / "notebooks" / f"{name}.ipynb"]["text"]
    assert re.search(r">[\d.]+ times<.*>[\d.]+ times<", said, re.DOTALL)
    assert "of the measured copy bandwidth" in said
    assert "no counters say" not in said


@pytest.mark.parametrize("notebook", GUIDES, ids=named)
def test_tables_are_written_for_people(notebook, guides):
    cells = re.findall(r"<t[hd][^>]*>([^<]*)</t[hd]>", guides[notebook]["text"])
    assert cells
    assert not {"nan", "NaN", "None", "&lt;NA&gt;"} & set(cells)
    # No seconds in six decimals and no bytes as 917504.0; no long text ended by pandas with dots.
    assert not [cell for cell in cells if re.fullmatch(r"\d+\.\d{4,}|\d{4,}\.0", cell) or cell.endswith("...")]
