"""Steps that were measured on an H200 with suggestions tried: what today's model predicts, and what was won."""

from pathlib import Path

import pytest
from tilescope.collectors.foreign_files import contents
from tilescope.files import bounded_reading, json_shape
from tilescope.models import ledger, next_steps
from tilescope.table.step import Step

STEPS = {path.name.split("_")[0]: path for path in (Path(__file__).parent / "fixtures" / "tried").glob("*.json.gz")}
#: The kinds of suggestions by the first words of their texts.
KINDS = {"Capture": "graph", "Compile": "compile", "Give": "optimizer", "Let": "dtype", "Move": "stop"}
H200 = contents.device("NVIDIA H200", "sm_90")


def suggested(name):
    """The step, and today's suggestions by their kinds, in their order."""
    step = json_shape.fit(bounded_reading.data_of(STEPS[name]), Step, "")
    found = next_steps.suggestions(step, ledger.of(step, H200), H200)
    return step, {one.kind: one for one in found}


@pytest.mark.parametrize("name", STEPS)
def test_predicted_saving_is_within_a_fifth_of_the_won(name):
    step, found = suggested(name)
    first = KINDS[step.tried[0].text.split()[0]]
    assert next(iter(found)) == first
    for tried in step.tried:
        one = found[KINDS[tried.text.split()[0]]]
        won = min(tried.plain, step.plain) - tried.changed
        assert won <= one.bound
        assert not one.sure or abs(one.saving / won - 1) < 0.2


def test_step_that_waits_for_the_cpu_has_unsure_shorter_kernels():
    _, found = suggested("small")
    # TF32 shortened the kernels of this step, and only the waits became longer.
    assert [one.kind for one in found.values() if one.sure] == ["graph"] and "dtype" in found


def test_graph_is_not_suggested_for_waits_that_stops_cause():
    _, found = suggested("item")
    assert "graph" not in found
