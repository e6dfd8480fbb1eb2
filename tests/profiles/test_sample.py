"""Launches of more programs than there is time to interpret: what is said of them is as of some programs, spread evenly."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import triton
import triton.language as tl
from tilescope import Capture
from tilescope.collectors import interpreter
from tilescope.execution import execute
from tilescope.hardware import device
from tilescope.interpreter import interpret
from tilescope.table.case import Case

PROGRAMS = 1 << 20


@triton.jit
def triangle_kernel(x_ptr, out_ptr, every: tl.constexpr):
    offsets = tl.arange(0, 16)
    total = tl.zeros((16,), tl.float32)
    for _ in range(1 + tl.program_id(0) // every):
        total += tl.load(x_ptr + offsets)
    tl.store(out_ptr + offsets, total)


@triton.jit
def chained_kernel(next_ptr, x_ptr):
    # Each program finds where to write in what the one before it wrote.
    number = tl.program_id(0)
    place = tl.load(next_ptr + number)
    tl.store(x_ptr + place, 1.0)
    tl.store(next_ptr + number + 1, place)


@triton.jit
def beyond_kernel(x_ptr):
    tl.store(x_ptr + 64 + tl.program_id(0), 1.0)


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    monkeypatch.setattr(device, "detect", lambda: None)
    monkeypatch.setattr(interpreter, "SAMPLE", 2.0)


def collected(kernel: Any, arguments: tuple[Any, ...], tmp_path) -> tuple[dict[str, float], str]:
    """What the interpreter's collector finds of a launch in far less time than it needs, and its remark."""
    with Capture("sm_90", limit=0) as capture:
        kernel[(PROGRAMS,)](*arguments)
    (reference,) = capture.write(tmp_path)
    spec = execute.load_spec(reference)
    case = Case(reference, "triton", "forward", spec.workloads[0].id)
    artefact = tmp_path / "counted.json.gz"
    interpreter.capture(case, spec, artefact, {"interpreter_limit": 0.5})
    assert interpreter.parse_lines(artefact, case)[0].empty
    found = interpreter.parse(artefact, case).set_index("metric")["value"].to_dict()
    return found, interpreter.remark(artefact)


def test_bytes_are_as_of_a_sample_and_say_so(tmp_path):
    found, said = collected(triangle_kernel, (torch.randn(16), torch.empty(16), PROGRAMS // 4), tmp_path)
    # A quarter of the programs each reads once, twice, three and four times: the spread finds the mean.
    assert found["sampled_bytes_read"] == pytest.approx(2.5 * 64 * PROGRAMS, rel=0.15)
    assert found["sampled_bytes_written"] == 64 * PROGRAMS
    assert set(found) == {"sampled_bytes_read", "sampled_bytes_written", "sampled_flops"}
    assert "of 1,048,576 programs were interpreted" in said


def test_a_program_that_needs_another_s_result_is_not_accused(tmp_path):
    following = torch.full((PROGRAMS + 1,), 1 << 40)
    following[0] = 5
    with pytest.raises(execute.NotApplicable, match="would take longer to interpret"):
        collected(chained_kernel, (following, torch.zeros(16)), tmp_path)


def test_a_program_that_needs_none_is(tmp_path):
    with pytest.raises(interpret.InterpretationFailed, match="the end of x_ptr"):
        collected(beyond_kernel, (torch.zeros(70),), tmp_path)


@pytest.mark.parametrize("count", [1, 4, 6, 97, 1000])
def test_a_sample_is_spread_evenly(count):
    numbers = list(interpret._spread(count))
    assert sorted(numbers) == list(range(count))
    # No gap between the first few is much wider than if they were placed evenly.
    first = sorted(numbers[: max(1, count // 4)])
    gaps = [after - before for before, after in zip(first, [*first[1:], first[0] + count], strict=True)]
    assert max(gaps) <= 3 * count / len(first) + 1
