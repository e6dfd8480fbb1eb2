"""Faults come before what is slow, and nothing else is concluded about a case that has one."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest
from tilescope.commands import advise
from tilescope.models import advice, faults, json_documents, summary, text_table
from tilescope.notebook.opened_run import Profile
from tilescope.runs.store import MODEL, LoadedRun
from tilescope.table import schema
from tilescope.table.run import Failure

from . import made_up
from .made_up import CASE, MB, OCCUPANCY, values

TRACE = 'Traceback\n  File "/some/where/own.py", line 6, in scale\n    tl.store(y + o, tl.load(x + o) * 2)\n'
CARET = "CompilationError: at 3:4:\ndef scale(x):\n    y = x\n    z = y * SCALE\n            ^\nNo\n"
OUTSIDE = ("interpreter", "InterpretationFailed: scale, program (7, 0, 0), line 6: "
           "reads 96 bytes past the end of x: element 1,000 of 1,000", TRACE)  # fmt: skip
UNCOMPILED = ("compiler", "CompilationFailed: scale does not compile for sm_90: line 8: Cannot access global variable SCALE "
              "from within @jit'ed function. Triton kernels can only …", CARET)  # fmt: skip
SHARED = ("compiler", "CompilationFailed: scale needs 262144 bytes of shared memory a block and sm_86 has 101376: "
          "use smaller blocks or fewer stages", "")  # fmt: skip
WRONG = ("check", f"CheckFailed: {CASE.id}, output 0 has NaN in 5 of 10 elements: wrong, or never written", "")
CRASHED = (
    "compiler",
    f"worker crashed (SIGSEGV) while compiling {CASE.id}; finished cases are kept",
    "first\nlast word\n",
)
WRAPS = ("compiler", "scale, line 5: offsets into x are computed in 32 bits and reach 3: cast a factor", "")
ASSERTED = ("interpreter", "InterpretationFailed: scale, program (1, 0, 0), line 6: AssertionError: negative", TRACE)
ADDRESS = ("events", "AcceleratorError: CUDA error: an illegal memory access was encountered", "")
#: A case with enough values for findings on occupancy and bytes.
KNOWN = {**OCCUPANCY, "registers@compiler": 255, "widest_load@compiler": 4, "spill_bytes_stored@compiler": 400}
TIMED = {"gpu_time@torch_profiler": 400e-6, "dram_bytes_read@ncu": 150 * MB, "dram_bytes_written@ncu": 50 * MB}


def loaded(*failed: tuple[str, str, str], known: dict[str, Any] | None = None) -> LoadedRun:
    """A run of one case with these failures and these values beside its cost."""
    failures = tuple(Failure(CASE.id, *one) for one in failed)
    rows = [*made_up.cost(), *values(known or {})]
    return LoadedRun(dataclasses.replace(made_up.run(), failures=failures), schema.frame(rows), Path("run"))


@pytest.mark.parametrize(
    ("failed", "rule", "title", "why", "remedy"),
    [
        (OUTSIDE, faults.OUTSIDE, "scale reads past the end of x in line 6",
         "It reads x[1,000]; the last element is 999. It happens in program (7, 0, 0) of scale. "
         "Line 6 of own.py: tl.store(y + o, tl.load(x + o) * 2).", "Mask those lanes"),
        (("interpreter", "f, program (0, 0, 0), line 3: reads 4,294,967,294 bytes before the start of x: element -2,147,483,647 of 2,147,483,650", ""),
         faults.OUTSIDE, "scale reads before the start of x in line 3: the offset does not fit in 32 bits", "It reads x[-2,147,483,647]", "Cast a factor"),
        (("interpreter", "f, program (0, 0, 0), line 3: reads 2 bytes before the start of x: element -1 of 3,000,000,000", ""),
         faults.OUTSIDE, "scale reads before the start of x in line 3", "It reads x[-1]", "Mask those lanes"),
        (UNCOMPILED, faults.COMPILE,
         "scale does not compile for sm_90: line 8: Cannot access global variable SCALE from within @jit'ed function",
         "The line: z = y * SCALE.", "Declare it as SCALE = tl.constexpr(…)"),
        (SHARED, faults.LAUNCH, "scale needs 262144 bytes of shared memory a block and sm_86 has 101376", "",
         "Use smaller blocks or fewer stages."),
        (WRONG, faults.WRONG, "Wrong: output 0 has NaN in 5 of 10 elements: wrong, or never written", "", "Correct the result"),
        (CRASHED, faults.CRASH, "scale: its process crashed (SIGSEGV) while compiling", "The end of its output: last word",
         "python -X faulthandler"),
        (ASSERTED, faults.FAILED, "scale fails in line 6: AssertionError: negative", "Line 6 of own.py: tl.store(", "Correct that line"),
        (ADDRESS, faults.OUTSIDE, "illegal memory access was encountered", "", "names the line"),
    ],
)  # fmt: skip
def test_fault_is_the_only_finding(failed: tuple[str, str, str], rule: str, title: str, why: str, remedy: str) -> None:
    run = loaded(failed, known=KNOWN)
    assert advice.of_run(loaded(known=KNOWN), run.table)
    (found,) = advice.of_run(run, run.table)
    assert found.rule == rule and title in found.title and why in found.explanation and remedy in found.remedy
    assert found.bound is None
    shown = advise.text(1, found)
    assert title.split(maxsplit=1)[0] in shown and "up to" not in shown
    (row,) = summary.of_run(run, run.table).to_dict("records")
    assert (row["fault"], row["bound"]) == (rule, "") and row["why"].startswith(found.title)
    document = json_documents.advice(run, run.table, [found])
    assert document.findings[0].fault and document.cases[0].fault == rule and document.cases[0].bound == ""
    head, line = text_table.text(run).splitlines()
    assert faults.LABELS[rule] in line and "occupancy" not in head and "registers" not in head
    page = made_up.html(Profile.of(run))
    assert page.index("Failed:") < page.index("<table") and "100.0%" not in page
    assert repr(Profile.of(run)).splitlines()[0].startswith(CASE.id)


LIMITS = [
    ("compiler", "NotImplementedError: The register_meta function for torch.nonzero() raises unimplemented by default", ""),
    ("interpreter", "InterpretationFailed: scale, program (0, 0, 0), line 6: TypeError: no", TRACE),
    ("ncu", "NcuError: ERR_NVGPUCTRPERM", ""),
    ("cupti", f"worker crashed (SIGSEGV) while counting {CASE.id}; finished cases are kept", ""),
    ("interpreter", f"worker did not answer for 600 s and was killed while interpreting {CASE.id}; finished cases are kept", ""),
]  # fmt: skip


@pytest.mark.parametrize("limit", LIMITS)
def test_fault_of_a_collector_leaves_other_findings(limit: tuple[str, str, str]) -> None:
    run = loaded(limit, known=KNOWN)
    assert not any(finding.fault for finding in advice.of_run(run, run.table))
    # Without any other value the case has not run.
    alone = loaded(limit)
    assert [finding.fault for finding in advice.of_run(alone, alone.table)] == [True]


def test_fault_needs_that_the_case_was_not_timed() -> None:
    for failed in (("events", "RuntimeError: needs bf16", ""), SHARED, CRASHED):
        run = loaded(failed, known=TIMED | KNOWN)
        assert not any(finding.fault for finding in advice.of_run(run, run.table)), failed
    untimed = loaded(("events", "RuntimeError: needs bf16", ""), known=KNOWN)
    assert [finding.rule for finding in advice.of_run(untimed, untimed.table)] == [faults.FAILED]
    for failed in (WRONG, OUTSIDE):
        run = loaded(failed, known=TIMED)
        assert [finding.fault for finding in advice.of_run(run, run.table)] == [True]


def test_fault_that_causes_others_comes_first() -> None:
    for failed, rule in (((WRONG, OUTSIDE, UNCOMPILED), faults.COMPILE), ((OUTSIDE, WRAPS), faults.CODE)):
        run = loaded(*failed)
        (found,) = advice.of_run(run, run.table)
        assert found.rule == rule


def test_fault_of_a_case_without_rows_is_found() -> None:
    run = loaded(UNCOMPILED)
    bare = LoadedRun(run.run, schema.frame([]), run.folder)
    (found,) = advice.of_run(bare, bare.table)
    assert found.case == (CASE.kernel, CASE.impl, CASE.direction, CASE.workload, "") and found.rule == faults.COMPILE
    assert MODEL not in set(bare.table["source"])


@pytest.mark.parametrize(("messages", "left"), [
    # The same fault in other words, by the compiler and the interpreter.
    (["CompilationFailed: k does not compile for sm_90: line 3: no", "InterpretationFailed: k, program (0, 0, 0), line 3: ValueError: no"], 1),
    (["CompilationFailed: ptxas failed on k: no", "InterpretationFailed: k, program (0, 0, 0), line 3: ValueError: no"], 1),
    (["CompilationFailed: k does not compile for sm_90: no", "InterpretationFailed: k, program (0, 0, 0), line 3: ValueError: no"], 1),
    (["CompilationFailed: k does not compile for sm_90: line 3: yy is not defined",
      "InterpretationFailed: k, program (0, 0, 0), line 3: NameError: name 'yy' is not defined"], 1),
    # An offset that does not fit in 32 bits, and the access to which it leads; another access.
    (["k, line 3: offsets into x are computed in 32 bits: cast a factor before the product, as in row.to(tl.int64) * stride",
      "InterpretationFailed: k, program (0, 0, 0), line 4: reads 8 bytes before the start of x: element -8 of 4,294,967,295"], 1),
    (["k, line 3: offsets into x are computed in 32 bits: cast a factor before the product, as in row.to(tl.int64) * stride",
      "InterpretationFailed: k, program (0, 0, 0), line 4: reads 8 bytes past the end of x: element 10 of 10"], 2),
    (["k, line 3: offsets into x are computed in 32 bits: cast a factor before the product, as in row.to(tl.int64) * stride",
      "InterpretationFailed: other, program (0, 0, 0), line 9: reads 8 bytes before the start of z: element -8 of 4,294,967,295"], 2),
    # A line that does not compile, and what it would access.
    (["CompilationFailed: k does not compile for sm_90: line 3: no",
      "InterpretationFailed: k, program (0, 0, 0), line 3: reads 8 bytes past the end of x: element 10 of 10"], 2),
    # The same words by both, of which the second is named beside the first.
    (["CompilationFailed: k cannot be launched: no", "CompilationFailed: k cannot be launched: no"], 2),
    # The same words about other lines, or another launch's function.
    (["CompilationFailed: k does not compile for sm_90: line 3: no", "InterpretationFailed: k, program (0, 0, 0), line 9: ValueError: no"], 2),
    (["CompilationFailed: k does not compile for sm_90: line 3: no", "CompilationFailed: other does not compile for sm_90: line 3: no"], 2),
    (["CompilationFailed: k cannot be launched: no", "CompilationFailed: other cannot be launched: no"], 2),
    # Two faults of code with one remedy.
    (["k, line 3: a row is read before it is stored: use a barrier", "k, line 3: two programs store to x: use a barrier"], 2),
])  # fmt: skip
def test_distinct_drops_only_what_another_collector_says_again(messages, left):
    found = faults.distinct(Failure(CASE.id, f"c{at}", said) for at, said in enumerate(messages))
    assert len(found) == left and found[0].collector == "c0"
    assert len(faults.distinct([*found, Failure("another/a/b/c", "c2", messages[0])])) == left + 1
