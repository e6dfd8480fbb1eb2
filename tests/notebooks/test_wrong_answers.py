"""What learners get wrong, puzzle by puzzle, and that the verdict says what is wrong and where to look.

Each wrong answer is the puzzle's solution with one thing changed.
"""

import dataclasses
import linecache
import re
from pathlib import Path
from typing import Any

import pytest
from tilescope.hardware import device
from tilescope.jobs.plan import Request
from tilescope.notebook import profiling, puzzles
from tilescope.notebook.opened_run import Profile

pytest.importorskip("triton")

NOTEBOOKS = Path(__file__).parents[2] / "notebooks" / "puzzles"
HEAD = "import torch\nimport triton\nimport triton.language as tl\n"
UNMASKED = "(mask those lanes, or look at the offsets), at: "
RAGGED = "Right at the round size, wrong at the ragged one: look at the mask."
FORMULA = "Wrong at the round size as well: look at the formula and the offsets before the mask."

#: Puzzle -> what the answer is called -> what of the solution is replaced by what, and what the verdict must say.
Change = tuple[list[tuple[str, str]], str]
ANSWERS: dict[str, dict[str, Change]] = {
    "vector_add": {
        "unmasked": ([(", mask=mask", "")], UNMASKED + "x = tl.load(x_ptr + offsets)"),
        "first_block": ([("tl.program_id(0) * BLOCK + ", "")], "does the grid reach every result?"),
        "far_apart": (
            [
                (
                    "tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)",
                    "tl.program_id(0) + tl.arange(0, BLOCK) * tl.num_programs(0)",
                )
            ],
            "Neighbouring lanes should touch neighbouring addresses",
        ),
        "minus": ([("x + y", "x - y")], FORMULA),
        "nothing_returned": ([("    return out\n", "")], "not yet: "),
        "fails": ([("out.numel()", "out.number()")], "AttributeError: 'Tensor' object has no attribute 'number'"),
        "not_launched": (
            [("vector_add_kernel[", "[vector_add_kernel][0] or (lambda *a, **k: None)  # [")],
            "not yet: ",
        ),
    },
    "add_relu": {
        "no_relu": ([("tl.maximum(total, 0.0)", "total")], FORMULA),
        "unfused": (
            [("tl.maximum(total, 0.0)", "total"), ("return out", "return out.relu()")],
            "The sum need never reach memory",
        ),
    },
    "row_sum": {
        "unmasked": ([(", mask=column < columns, other=0.0", "")], UNMASKED + "x = tl.load("),
        "padded_by_one": ([("other=0.0", "other=1.0")], f"{RAGGED} Masked lanes must add nothing"),
        "other_axis": ([("axis=0", "axis=1")], "axis 1 is not one of a block of shape (1024,), at: tl.store("),
        "mean": ([("tl.sum(x, axis=0)", "tl.sum(x, axis=0) / columns")], FORMULA),
    },
    "softmax": {
        "no_maximum": ([("x - tl.max(x, axis=0)", "x")], "Subtract the maximum before tl.exp."),
        "padded_by_zero": ([('-float("inf")', "0.0")], RAGGED),
        "other_axis": ([("axis=0", "axis=1")], "axis 1 is not one of a block of shape (1024,), at: e = tl.exp("),
        "read_again": (
            [("    e = ", '    x = tl.load(x_ptr + row * columns + column, mask=mask, other=-float("inf"))\n    e = ')],
            "Load each row once",
        ),
    },
    "layer_norm": {
        "masked_once": ([("tl.where(mask, x - mean, 0.0)", "x - mean")], f"{RAGGED} Masked lanes are not zero"),
        "no_eps": ([(" + eps", "")], FORMULA),
        "no_bias": ([("* weight + bias", "* weight")], FORMULA),
    },
    "matmul": {
        "no_mask_along_k": ([(" & (across < k)", ""), ("(down < k) & ", "")], UNMASKED),
        "one_step": ([("range(0, k, BLOCK_K)", "range(0, BLOCK_K, BLOCK_K)")], FORMULA),
    },
    "gelu": {
        "another_gelu": ([("tl.sigmoid(2.0 * u)", "tl.sigmoid(1.702 * x)")], f"{FORMULA} tanh(u) is 2 * tl.sigmoid"),
        "tanh": ([("tl.sigmoid(2.0 * u)", "tl.tanh(u)")], "has no attribute 'tanh', at: tl.store("),
    },
    "online_max": {
        "not_rescaled": ([("total * tl.exp(maximum - higher)", "total")], "the sum so far is worth exp(m - n) as much"),
        "one_answer": ([("return maximum, lse", "return maximum")], "the reference returns output 0, output 1"),
    },
    "rms_norm": {
        "by_the_block": ([("/ columns", "/ BLOCK")], f"{RAGGED} Divide the sum of squares by columns"),
        "no_eps": ([(" + eps", "")], FORMULA),
    },
}


def defined(text: str, name: str) -> dict[str, Any]:
    """What cells of that text define."""
    linecache.cache[name] = (len(text), None, text.splitlines(keepends=True), name)
    namespace: dict[str, Any] = {"__name__": "__main__"}
    exec(compile(text, name, "exec"), namespace)  # noqa: S102
    return namespace


def said_of(puzzle: str, folder: Path) -> dict[str, str]:
    """The verdict on each wrong answer of a puzzle, all from one run: starting workers takes longer than grading."""
    whole = (NOTEBOOKS / "solutions" / f"{puzzle}.py").read_text(encoding="utf-8")
    solution = whole[whole.index("@triton.jit") :]
    text = HEAD
    for name, (changes, _) in ANSWERS[puzzle].items():
        answer = solution
        for old, new in changes:
            assert old in answer, (name, old)
            answer = answer.replace(old, new)
        answer = re.sub(rf"\b{puzzle}_kernel\b", f"{name}_kernel", answer)
        text += "\n\n" + answer.replace(f"def {puzzle}(", f"def {name}(")
    calls = defined(text, f"<wrong answers to {puzzle}>")
    declared = puzzles.spec(puzzle, calls[next(iter(ANSWERS[puzzle]))])
    implementation = declared.implementations[puzzles.YOURS]
    tried = {name: dataclasses.replace(implementation, call=calls[name]) for name in ANSWERS[puzzle]}
    kernel = profiling.reference_to(dataclasses.replace(declared, implementations=tried), folder / profiling.CELLS)
    limits = {"check_limit": 200, "interpreter_limit": 200}
    request = Request([kernel], collectors=["check", "interpreter"], target="sm_90", settings=limits)
    run = profiling.run(request, folder, lambda event: None)
    said = {}
    for name in tried:
        failures = tuple(failure for failure in run.run.failures if f"/{name}/" in failure.case)
        mine = Profile(
            dataclasses.replace(run.run, failures=failures), run.table[run.table["impl"] == name], run.folder
        )
        said[name] = str(puzzles.judge(puzzle, mine))
    return said


@pytest.mark.parametrize("puzzle", ANSWERS)
def test_the_verdict_says_what_is_wrong_and_where_to_look(
    puzzle: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(device, "detect", lambda: None)
    verdicts = said_of(puzzle, tmp_path)
    for name, verdict in verdicts.items():
        _, wanted = ANSWERS[puzzle][name]
        words = " ".join(verdict.split())
        assert " ".join(wanted.split()) in words, f"{name}: {verdict}"
        assert not words.startswith(f"{puzzle}: solved"), name
        assert "Traceback" not in words
        assert str(tmp_path) not in words, "no one knows the worker's files"


def test_every_puzzle_has_wrong_answers() -> None:
    assert set(ANSWERS) == set(puzzles.PUZZLES)


def test_a_loop_that_does_not_end_is_stopped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(device, "detect", lambda: None)
    monkeypatch.setattr(puzzles, "_LIMIT", 15)
    solution = (NOTEBOOKS / "solutions" / "vector_add.py").read_text(encoding="utf-8")
    endless = solution.replace("    mask = ", "    while n > 0:\n        n = n + 0\n    mask = ")
    assert endless != solution
    verdict = puzzles.grade("vector_add", defined(endless, "<endless>")["vector_add"])
    assert str(verdict).startswith("vector_add: not yet: it is not done after 15 s: does every loop end")


def test_a_name_that_no_cell_defines_is_told_in_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    calls = defined(f"{HEAD}def vector_add(x, y):\n    return later(x, y)\n", "<later>")
    puzzles.check("vector_add", calls["vector_add"])
    said = capsys.readouterr().out
    assert said == (
        "vector_add: not yet: 'vector_add' uses 'later', which is not defined: run the cell that defines it\n"
    )
