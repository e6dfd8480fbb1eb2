"""The puzzles' list, and messages before anything is graded. ``tests/notebooks`` grades answers."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from tilescope.notebook import puzzles

SOLUTIONS = Path(__file__).parents[2] / "notebooks" / "puzzles" / "solutions"


def test_unknown_puzzle_is_named():
    with pytest.raises(ValueError, match="unknown puzzle 'sofmax': did you mean 'softmax'"):
        puzzles.grade("sofmax", print)


def test_import_of_puzzles_brings_no_torch():
    code = "import sys, tilescope.notebook.puzzles; assert not {'torch', 'triton'} & set(sys.modules)"
    environment = {**os.environ, "PYTHONPATH": str(Path(puzzles.__file__).parents[2])}
    subprocess.run([sys.executable, "-c", code], env=environment, check=True, timeout=300)


def test_puzzles_have_notebooks_solutions_and_hints():
    assert set(puzzles.PUZZLES) == {path.stem for path in SOLUTIONS.glob("*.py")}
    assert set(puzzles.PUZZLES) == {path.stem for path in SOLUTIONS.parent.glob("*.ipynb")}
    assert all(set(puzzle.hints) == {"wrong", "bytes", "coalesced"} for puzzle in puzzles.PUZZLES.values())
