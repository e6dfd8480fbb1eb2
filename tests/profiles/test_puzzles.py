"""The grader's verdict on kernels that are right, wrong, wasteful, scattered, or not written yet."""

import dataclasses
import linecache
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tilescope.hardware import device
from tilescope.jobs import supervisor
from tilescope.jobs.plan import Request
from tilescope.notebook import profiling, puzzles
from tilescope.notebook.opened_run import Profile
from tilescope.runs.store import LoadedRun

SOLUTIONS = Path(__file__).parents[2] / "notebooks" / "puzzles" / "solutions"

#: To grade at, a round one and a ragged one: smaller than a learner's.
SIZES = ((16, 256), (13, 250))
HEAD = """
import torch
import triton
import triton.language as tl
"""
#: Attempts at a softmax. Each is one kernel, launched a row a program.
KERNELS = {
    "stub": "    pass",
    "right": """
    x = tl.load(x_ptr + here, mask=mask, other=-float("inf"))
    e = tl.exp(x - tl.max(x, axis=0))
    tl.store(out_ptr + here, e / tl.sum(e, axis=0), mask=mask)
""",
    "three_reads": """
    m = tl.max(tl.load(x_ptr + here, mask=mask, other=-float("inf")), axis=0)
    s = tl.sum(tl.exp(tl.load(x_ptr + here, mask=mask, other=-float("inf")) - m), axis=0)
    tl.store(out_ptr + here, tl.exp(tl.load(x_ptr + here, mask=mask) - m) / s, mask=mask)
""",
    "wrong_padding": """
    x = tl.load(x_ptr + here, mask=mask, other=0.0)
    e = tl.exp(x - tl.max(x, axis=0))
    tl.store(out_ptr + here, e / tl.sum(e, axis=0), mask=mask)
""",
    "no_mask": """
    x = tl.load(x_ptr + here)
    tl.store(out_ptr + here, x, mask=mask)
""",
    "misspelt": """
    x = tl.lod(x_ptr + here)
""",
}
LAUNCHER = """
@triton.jit
def {name}_kernel(out_ptr, x_ptr, columns, BLOCK: tl.constexpr):
    column = tl.arange(0, BLOCK)
    mask = column < columns
    here = tl.program_id(0) * columns + column
{body}


def {name}(x):
    out = torch.empty_like(x)
    {name}_kernel[(x.shape[0],)](out, x, x.shape[1], BLOCK=triton.next_power_of_2(x.shape[1]))
    return out
"""
OTHERS = """
@triton.jit
def columns_kernel(out_ptr, x_ptr, rows, columns, BLOCK: tl.constexpr):
    \"\"\"A lane a row: neighbouring lanes are a row apart.\"\"\"
    row = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = row < rows
    m = tl.full((BLOCK,), -float("inf"), tl.float32)
    s = tl.zeros((BLOCK,), tl.float32)
    for column in range(0, columns):
        m = tl.maximum(m, tl.load(x_ptr + row * columns + column, mask=mask, other=0.0))
    for column in range(0, columns):
        s += tl.exp(tl.load(x_ptr + row * columns + column, mask=mask, other=0.0) - m)
    for column in range(0, columns):
        x = tl.load(x_ptr + row * columns + column, mask=mask, other=0.0)
        tl.store(out_ptr + row * columns + column, tl.exp(x - m) / s, mask=mask)


def scattered(x):
    out = torch.empty_like(x)
    columns_kernel[(triton.cdiv(x.shape[0], 64),)](out, x, *x.shape, BLOCK=64)
    return out


def unfused(x):
    return right(x - x.amax(-1, keepdim=True))


def pytorch(x):
    return torch.softmax(x, -1)


def raises(x):
    raise NotImplementedError("to be written")
"""


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LoadedRun]:
    """A run with every attempt as an implementation, because starting workers takes longer than grading."""
    text = HEAD + "".join(LAUNCHER.format(name=n, body=body.strip("\n")) for n, body in KERNELS.items()) + OTHERS
    namespace: dict[str, Any] = {"__name__": "__main__"}
    linecache.cache["<attempts>"] = (len(text), None, text.splitlines(keepends=True), "<attempts>")
    exec(compile(text, "<attempts>", "exec"), namespace)  # noqa: S102
    names = [*KERNELS, "scattered", "unfused", "pytorch", "raises"]
    folder = tmp_path_factory.mktemp("runs")
    with pytest.MonkeyPatch.context() as patch:
        smaller = dataclasses.replace(puzzles.PUZZLES["softmax"], sizes=SIZES)
        patch.setitem(puzzles.PUZZLES, "softmax", smaller)
        patch.setattr(device, "detect", lambda: None)
        patch.setattr(supervisor, "processors", lambda: 1)  # each imports torch
        declared = puzzles.spec("softmax", namespace["right"])
        implementation = declared.implementations[puzzles.YOURS]
        tried = {name: dataclasses.replace(implementation, call=namespace[name]) for name in names}
        kernel = profiling.reference_to(dataclasses.replace(declared, implementations=tried), folder / profiling.CELLS)
        limits = {"check_limit": 200, "interpreter_limit": 200}
        request = Request([kernel], collectors=["check", "interpreter"], target="sm_90", settings=limits)
        yield profiling.run(request, folder, lambda event: None)
    del linecache.cache["<attempts>"]


def verdict(run: LoadedRun, name: str) -> puzzles.Verdict:
    """The grade of one attempt."""
    table = run.table[run.table["impl"] == name]
    failures = tuple(failure for failure in run.run.failures if f"/{name}/" in failure.case)
    return puzzles.judge("softmax", Profile(dataclasses.replace(run.run, failures=failures), table, run.folder))


def test_a_right_kernel_is_solved(run: LoadedRun) -> None:
    said = verdict(run, "right")
    assert said.solved
    assert said.bytes_text == "asks for 1× and touches 1× what the algorithm needs"
    assert "try next   profile it at larger sizes" in str(said)


def test_reading_the_row_again_is_seen_in_the_bytes_asked_for(run: LoadedRun) -> None:
    said = verdict(run, "three_reads")
    assert (said.correct, said.thrifty, said.coalesced) == (True, False, True)
    # Three reads and a write where a read and a write are needed; the caches would hold the row.
    assert said.bytes_text.startswith("asks for 2× and touches 1×")
    assert said.hint == puzzles.PUZZLES["softmax"].hints["bytes"]


def test_what_pytorch_computes_on_the_way_is_counted(run: LoadedRun) -> None:
    said = verdict(run, "unfused")
    assert (said.correct, said.thrifty) == (True, False)
    # amax reads x; the subtraction reads x and a column and writes; the kernel reads and writes: five where two do.
    assert said.bytes_text.startswith("asks for 2.50× and touches 2.50×")


def test_padding_that_counts_is_wrong_at_the_ragged_size_only(run: LoadedRun) -> None:
    said = verdict(run, "wrong_padding")
    assert (said.correct, said.thrifty, said.coalesced) == (False, True, True)
    assert said.hint.startswith("Right at the round size, wrong at the ragged one: look at the mask.")
    assert said.hint.endswith(puzzles.PUZZLES["softmax"].hints["wrong"])
    assert "  correct    no " in str(said)


def test_lanes_a_row_apart_use_little_of_each_sector(run: LoadedRun) -> None:
    said = verdict(run, "scattered")
    assert said.correct
    assert not said.coalesced
    # 4 bytes of each 32.
    assert said.coalesced_text == "uses 12% of the sectors it touches"


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("stub", "nothing is written to the output: fill in the kernel"),
        ("no_mask", "(mask those lanes, or look at the offsets), at: x = tl.load(x_ptr + here)"),
        ("misspelt", "AttributeError: module 'triton.language' has no attribute 'lod', at: x = tl.lod(x_ptr + here)"),
        ("pytorch", "no Triton kernel is launched: launch yours with kernel[grid](...)"),
        ("raises", "NotImplementedError: to be written"),
    ],
)
def test_what_cannot_be_graded_is_told_why_in_one_line(run: LoadedRun, name: str, said: str) -> None:
    text = str(verdict(run, name))
    assert text.startswith("softmax: not yet: ")
    assert text.endswith(said)
    assert "\n" not in text


def test_a_puzzle_that_there_is_not_is_named() -> None:
    with pytest.raises(ValueError, match="unknown puzzle 'sofmax': did you mean 'softmax'"):
        puzzles.grade("sofmax", print)


def test_importing_the_puzzles_brings_no_torch() -> None:
    code = "import sys, tilescope.notebook.puzzles; assert not {'torch', 'triton'} & set(sys.modules)"
    environment = {**os.environ, "PYTHONPATH": str(Path(puzzles.__file__).parents[2])}
    subprocess.run([sys.executable, "-c", code], env=environment, check=True, timeout=300)


def test_every_puzzle_has_a_notebook_a_solution_and_hints() -> None:
    assert set(puzzles.PUZZLES) == {path.stem for path in SOLUTIONS.glob("*.py")}
    assert set(puzzles.PUZZLES) == {path.stem for path in SOLUTIONS.parent.glob("*.ipynb")}
    assert all(set(puzzle.hints) == {"wrong", "bytes", "coalesced"} for puzzle in puzzles.PUZZLES.values())
