"""A sweep's config is compared with the reference before it is timed."""

import gzip
import json
from types import SimpleNamespace
from typing import Any

import pytest
from tilescope.collectors import check, torch_profiler
from tilescope.table.case import Case

CASE = Case("softmax", "triton", "forward", "8x8-fp32", "BLOCK=8")


SPEC: Any = SimpleNamespace(tolerance={"fp32": 1e-5})


@pytest.fixture
def errors(monkeypatch):
    """The error and the worst row's, of each output, that the GPU's result is said to have."""
    found = {}
    monkeypatch.setattr(check, "errors_on_gpu", lambda case, spec, expected: found)
    return found


@pytest.mark.parametrize(("wrong", "said"), [
    ({"output 0": (0.5, 0.5), "output 1": (0.0, 0.0)}, r"wrong, so not timed: .*0\.5, is above 1e-05"),
    ({"output": (5e-6, 0.5)}, "the worst row's error"),
])  # fmt: skip
def test_wrong_config_is_not_timed(errors, tmp_path, wrong, said):
    errors.update(wrong)
    with pytest.raises(check.CheckFailed, match=said):
        torch_profiler.capture(CASE, SPEC, tmp_path / "trace", {"check_first": True})
    assert not list(tmp_path.iterdir())


def test_right_config_keeps_its_error(errors, tmp_path):
    errors["output 0"] = (1e-7, 2e-7)
    checked = check.require(CASE, SPEC)
    trace = tmp_path / "a.trace.json.gz"
    trace.write_bytes(gzip.compress(json.dumps({"traceEvents": [], "checked": checked}).encode()))
    found = torch_profiler.parse(trace, CASE)
    assert dict(zip(found["metric"], found["value"], strict=True)) == {
        "relative_error": 1e-7, "tolerance": 1e-5, "row_error": 2e-7, "row_tolerance": 1e-4,
    }  # fmt: skip
    assert set(found["source"]) == {"check"}
