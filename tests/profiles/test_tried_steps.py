"""Steps that were measured on an H200 with suggestions tried: what today's model predicts, and what was won."""

import dataclasses
from pathlib import Path

import pytest
from tilescope.collectors.foreign_files import contents
from tilescope.files import bounded_reading, json_shape
from tilescope.models import ledger, next_steps, step_text
from tilescope.runs import device_roofs, store
from tilescope.table.step import Step, Tried

STEPS = {path.name.split("_")[0]: path for path in (Path(__file__).parent / "fixtures" / "tried").glob("*.json.gz")}
#: The kinds of suggestions by the first words of their texts.
KINDS = {"Capture": "graph", "Compile": "compile", "Give": "optimizer", "Let": "dtype", "Move": "stop"}
_SHEET = contents.device("NVIDIA H200", "sm_90")
#: With the roofs that were measured on such GPUs, as a person's run has them.
H200 = dataclasses.replace(
    _SHEET, ceilings=(*_SHEET.ceilings, *device_roofs.shared(_SHEET, "580.159.04", store.recorded_dir()))
)


def suggested(name):
    """The step, and today's suggestions by their kinds, in their order."""
    step = json_shape.fit(bounded_reading.data_of(STEPS[name]), Step, "")
    found = next_steps.suggestions(step, ledger.of(step, H200), H200)
    return step, {one.kind: one for one in found}


def kind(text):
    return "graph" if "CUDA graphs" in text else KINDS[text.split()[0]]


@pytest.mark.parametrize("name", STEPS)
def test_predicted_saving_is_within_a_fifth_of_the_won(name):
    step, found = suggested(name)
    first = kind(step.tried[0].text)
    assert next(iter(found)) == first
    for tried in step.tried:
        if not (one := found.get(kind(tried.text))):
            assert tried.plain - tried.changed < next_steps.WORTH * tried.plain
            continue
        won = min(tried.plain, step.plain) - tried.changed
        assert one.least <= won <= one.most
        assert abs(one.saving / won - 1) < 0.2


@pytest.mark.parametrize(("changed", "difference", "said"), [
    (0.5, 0.0, ": tried, won "), (1.5, 0.0, ": tried, won nothing of the predicted "), (0.5, 1.0, ": tried, changes the results"),
])  # fmt: skip
def test_suggestion_that_was_tried_says_what_it_won(changed, difference, said):
    step, (first, *_) = suggested("resnet")[0], suggested("resnet")[1].values()
    found = ledger.of(step, H200)
    predicted = step_text.advice(dataclasses.replace(step, tried=()), found, H200)
    assert predicted[0] == first.line(found.step)
    tried = Tried(found.step, changed * found.step, difference, 1e-2, text=first.text, predicted=first.saving)
    told = step_text.advice(dataclasses.replace(step, tried=(tried,)), found, H200)
    assert told[0].startswith(first.text + said) and told[1:] == predicted[1:]


def test_step_that_waits_for_the_cpu_wants_no_shorter_kernels():
    step, found = suggested("small")
    # TF32 shortened the kernels of this step, and only the waits became longer.
    step = dataclasses.replace(step, cpu=step.plain)
    found = next_steps.suggestions(step, ledger.of(step, H200), H200)
    assert found[0].kind == "graph" and "dtype" not in {one.kind for one in found}


def test_graph_is_not_suggested_for_waits_that_stops_cause():
    _, found = suggested("item")
    assert "graph" not in found
