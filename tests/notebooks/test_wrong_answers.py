"""What learners get wrong, puzzle by puzzle, and that the verdict says what is wrong and where to look.

Each wrong answer is the puzzle's solution with one thing changed.
"""

import dataclasses
import linecache
import re
from pathlib import Path
from typing import Any

import pytest
import tilescope
from tilescope.notebook import puzzles
from tilescope.notebook.opened_run import Profile

pytest.importorskip("triton")

NOTEBOOKS = Path(__file__).parents[2] / "notebooks" / "puzzles"
HEAD = "import torch\nimport triton\nimport triton.language as tl\n"
UNMASKED = "(mask those lanes, or look at the offsets), at: "
RAGGED = "Right at the round size, wrong at the ragged one: look at the mask."
FORMULA = "Wrong at the round size as well: look at the formula and the offsets before the mask."

#: Puzzle -> the answer's name -> the replaced text of the solution, the new text, and what the verdict must say.
Change = tuple[str, str, str]
ANSWERS: dict[str, dict[str, Change]] = {
    "vector_add": {
        "unmasked": (", mask=mask", "", UNMASKED + "x = tl.load(x_ptr + offsets)"),
        "first_block": ("tl.program_id(0) * BLOCK + ", "", "does the grid reach every result?"),
        "far_apart": (
            "tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)",
            "tl.program_id(0) + tl.arange(0, BLOCK) * tl.num_programs(0)",
            "Neighbouring lanes should touch neighbouring addresses",
        ),
        "nothing_returned": ("    return out\n", "", "not yet: "),
        "not_written": (
            "tl.store(out_ptr + offsets, x + y, mask=mask)",
            "x + y",
            "nothing is written to the output: fill in the kernel",
        ),
        "not_launched": ("    out = ", "    return x + y\n    out = ", "not yet: no Triton kernel is launched"),
        "to_be_written": (
            "    out = ",
            "    raise NotImplementedError('later')\n    out = ",
            "NotImplementedError: later",
        ),
        "fails": ("out.numel()", "out.number()", "AttributeError: 'Tensor' object has no attribute 'number'"),
    },
    # Two more passes over memory where three are needed.
    "add_relu": {"unfused": ("return out", "return out.relu()", "The sum need never reach memory")},
    "row_sum": {
        "padded_by_one": ("other=0.0", "other=1.0", f"{RAGGED} Masked lanes must add nothing"),
        "other_axis": ("axis=0", "axis=1", "axis 1 is not one of a block of shape (1024,), at: tl.store("),
    },
    "softmax": {
        "no_maximum": ("x - tl.max(x, axis=0)", "x", "Subtract the maximum before tl.exp."),
        "read_again": (
            "    e = ",
            '    x = tl.load(x_ptr + row * columns + column, mask=mask, other=-float("inf"))\n    e = ',
            "asks for 1.50× and touches 1× what the algorithm needs (good: 1.05× and 1.05×)",
        ),
    },
    "layer_norm": {"no_eps": (" + eps", "", FORMULA)},
    "matmul": {"one_step": ("range(0, k, BLOCK_K)", "range(0, BLOCK_K, BLOCK_K)", FORMULA)},
    "gelu": {"tanh": ("tl.sigmoid(2.0 * u)", "tl.tanh(u)", "has no attribute 'tanh', at: tl.store(")},
    "online_max": {"one_answer": ("return maximum, lse", "return maximum", "the reference returns output 0, output 1")},
    "rms_norm": {"by_the_block": ("/ columns", "/ BLOCK", f"{RAGGED} Divide the sum of squares by columns")},
}


def defined(text, name):
    """What cells of that text define."""
    linecache.cache[name] = (len(text), None, text.splitlines(keepends=True), name)
    namespace: dict[str, Any] = {"__name__": "__main__"}
    exec(compile(text, name, "exec"), namespace)  # noqa: S102
    return namespace


def declared(puzzle):
    """The puzzle's kernel, with each wrong answer as an implementation."""
    whole = (NOTEBOOKS / "solutions" / f"{puzzle}.py").read_text(encoding="utf-8")
    solution, text = whole[whole.index("@triton.jit") :], HEAD
    for name, (old, new, _) in ANSWERS[puzzle].items():
        assert old in solution, (name, old)
        answer = re.sub(rf"\b{puzzle}_kernel\b", f"{name}_kernel", solution.replace(old, new))
        text += "\n\n" + answer.replace(f"def {puzzle}(", f"def {name}(")
    calls = defined(text, f"<wrong answers to {puzzle}>")
    kernel = puzzles.spec(puzzle, calls[next(iter(ANSWERS[puzzle]))])
    implementation = kernel.implementations[puzzles.YOURS]
    tried = {name: dataclasses.replace(implementation, call=calls[name]) for name in ANSWERS[puzzle]}
    return dataclasses.replace(kernel, implementations=tried)


def test_verdict_says_what_is_wrong(tmp_path, no_gpu):
    assert set(ANSWERS) == set(puzzles.PUZZLES)
    # One run of all, because starting workers takes longer than grading.
    run = tilescope.profile_kernels(
        *map(declared, ANSWERS), collectors=["check", "interpreter"], target="sm_90", runs_dir=tmp_path,
        on_event=lambda event: None, check_limit=200, interpreter_limit=200,
    )  # fmt: skip
    for puzzle, answers in ANSWERS.items():
        for name, (_, _, wanted) in answers.items():
            table = run.table[(run.table["kernel"] == puzzle) & (run.table["impl"] == name)]
            failures = tuple(f for f in run.run.failures if f"{puzzle}-" in f.case and f"/{name}/" in f.case)
            verdict = str(
                puzzles.judge(puzzle, Profile(dataclasses.replace(run.run, failures=failures), table, run.folder))
            )
            words = " ".join(verdict.split())
            assert " ".join(wanted.split()) in words, f"{name}: {verdict}"
            assert not words.startswith(f"{puzzle}: solved"), name
            assert "Traceback" not in words
            assert str(tmp_path) not in words, "no one knows the worker's files"


def test_endless_loop_is_stopped(monkeypatch, no_gpu):
    monkeypatch.setattr(puzzles, "_LIMIT", 15)
    solution = (NOTEBOOKS / "solutions" / "vector_add.py").read_text(encoding="utf-8")
    endless = solution.replace("    mask = ", "    while n > 0:\n        n = n + 0\n    mask = ")
    assert endless != solution
    verdict = puzzles.grade("vector_add", defined(endless, "<endless>")["vector_add"])
    assert str(verdict).startswith("vector_add: not yet: it is not done after 15 s: does every loop end")


def test_undefined_name_is_told_in_one_line(capsys):
    calls = defined(f"{HEAD}def vector_add(x, y):\n    return later(x, y)\n", "<later>")
    puzzles.check("vector_add", calls["vector_add"])
    said = capsys.readouterr().out
    assert said == (
        "vector_add: not yet: 'vector_add' uses 'later', which is not defined: run the cell that defines it\n"
    )
