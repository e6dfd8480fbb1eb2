"""Two steps of a model: compared and gated as steps, with the kernels that made the difference."""

import dataclasses
import json
import shutil

import pytest
from tilescope import cli
from tilescope.models import ledger, step_changes
from tilescope.runs import steps, store
from tilescope.table import units
from tilescope.table.step import FORWARD, KERNEL, Operator, Step, StepLaunch

from . import made_up
from .made_up import gpu

US = 1e-6
OPERATORS = (
    Operator("aten::mm", module="Net.layers.0", direction=FORWARD, site="net.py:7"),
    Operator("aten::mm", module="Net.layers.1", direction=FORWARD, site="net.py:7"),
    Operator("aten::add", module="Net.layers.0", direction=FORWARD),
    Operator("mine::norm", module="Net.norm", direction=FORWARD),
    Operator("aten::layer_norm", module="Net.norm", direction=FORWARD),
    Operator("aten::copy_"),
    Operator("aten::fill_"),
)


def pair(*sides):
    """Steps of launches, which are (function, operator, microseconds), one after another."""
    made = []
    for launches in sides:
        ends = [sum(one[2] for one in launches[: at + 1]) for at in range(len(launches))]
        of = [
            StepLaunch(name, KERNEL, (end - lasts) * US, lasts * US, operator=operator)
            for (name, operator, lasts), end in zip(launches, ends, strict=True)
        ]
        made.append(Step(tuple(of), OPERATORS, ends[-1] * US))
    return step_changes.StepPair(tuple(made), tuple(ledger.of(step, gpu(hbm=1e12)) for step in made))


def told(found):
    return [(one.name, one.module, one.launches, one.change) for one in found.kernels]


def test_renamed_kernel_of_a_place_is_one_change():
    found = pair(
        [("old_mm", 0, 40), ("old_mm", 1, 40), ("add", 2, 10), ("layer_norm", 4, 9)],
        [("new_mm", 0, 25), ("new_mm", 1, 25), ("add", 2, 10), ("my_norm", 3, 3)],
    )
    assert told(found) == [
        # Layers count together, and a module may call another operator.
        ("old_mm → new_mm", "Net.layers.*", (2, 2), "-30.0 µs"),
        ("layer_norm → my_norm", "Net.norm", (1, 1), "-6.00 µs"),
        ("add", "Net.layers.*", (1, 1), "0 s"),
    ]
    assert found.sentence == "the step is 1.57× faster: 99.0 µs → 63.0 µs; its kernels 99.0 µs → 63.0 µs"
    assert [one.name for one in found.moved] == ["old_mm → new_mm", "layer_norm → my_norm"]


def test_kernels_of_no_common_place_came_and_went():
    found = pair([("copy", 5, 5), ("add", 2, 10)], [("fill", 6, 7), ("add", 2, 10)])
    assert [one[0] for one in told(found)] == ["(none) → fill", "copy → (none)", "add"]
    # A function at its place is itself, whatever is new beside it.
    found = pair([("mm", 0, 5)], [("mm", 0, 5), ("split", 0, 3)])
    assert [one[0] for one in told(found)] == ["(none) → split", "mm"]


def test_kernels_of_a_renamed_module_are_the_same():
    before = pair([("mm", 0, 40), ("add", 2, 10)], [("mm", 0, 40)]).steps[0]
    wrapped = tuple(
        dataclasses.replace(one, module=f"Net._orig_mod{one.module[3:]}" if one.module else "") for one in OPERATORS
    )
    after = dataclasses.replace(before, operators=wrapped)
    found = step_changes.StepPair((before, after), tuple(ledger.of(step, gpu(hbm=1e12)) for step in (before, after)))
    assert [(one.name, one.difference) for one in found.kernels] == [("mm", 0), ("add", 0)]
    assert found.sentence == "the step takes 50.0 µs, as long as before"


def test_steps_of_other_settings_are_not_compared(runs, capsys, tmp_path):
    found = dataclasses.replace(pair([("mm", 0, 40)], [("mm", 0, 10)]), obstacles=["measured otherwise"])
    assert found.sentence == "the steps' times cannot be compared: measured otherwise"
    assert not found.moved and not found.speedup > 0
    described = json.loads((folder := shutil.copytree(runs[0], tmp_path / "other")).joinpath("run.json").read_text())
    described["settings"] |= {"cache": 7}
    (folder / "run.json").write_text(json.dumps(described))
    assert cli.main(["compare", runs[0], str(folder)]) == 0
    said = capsys.readouterr().out
    assert "the steps' times cannot be compared: measured with different settings: cache" in said
    assert said.count("cache is") == 1
    with pytest.raises(SystemExit):
        cli.main(["compare", *runs[:2], "--fail-below", "3"])
    assert "no speedup from 0 to 1" in capsys.readouterr().err


def test_step_times_with_a_profiler_are_compared_with_each_other():
    found = pair([("mm", 0, 50)], [("mm", 0, 40)])
    known = dataclasses.replace(found.steps[0], plain=20 * US)
    assert step_changes.StepPair((known, found.steps[1]), found.ledgers).seconds == pytest.approx((50 * US, 40 * US))
    both = known, dataclasses.replace(found.steps[1], plain=10 * US)
    assert step_changes.StepPair(both, found.ledgers).seconds == pytest.approx((20 * US, 10 * US))


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """The recorded step, one whose largest kernel has another name and takes a quarter of its time, and one that waits more."""
    (recorded,) = (run.path for run in store.list_runs([store.recorded_dir()]) if run.of_step)
    step, made = steps.read(recorded), []
    largest = max(step.launches, key=lambda one: one.duration)
    changes = (lambda one: one, lambda one: (
        dataclasses.replace(one, name="new_kernel", duration=one.duration / 4) if one.name == largest.name else one
    ), lambda one: one)  # fmt: skip
    for number, change in enumerate(changes):
        folder = shutil.copytree(recorded, tmp_path_factory.mktemp("runs") / f"2026113{number}-000000-aaaa")
        launches = tuple(map(change, step.launches))
        saved = sum(one.duration for one in step.launches) - sum(one.duration for one in launches)
        later = 0.1 * step.plain if number == 2 else -saved
        steps.write(
            folder, dataclasses.replace(step, launches=launches, plain=step.plain + later, window=step.window + later)
        )
        made_up.redescribe(folder, id=folder.name)
        made.append(str(folder))
    return made


def test_compare_of_steps_tells_step_and_renamed_kernel(runs, capsys):
    assert cli.main(["compare", runs[0], runs[1]]) == 0
    text = " ".join(capsys.readouterr().out.split())
    assert "faster: 40.6 ms → " in text and "→ new_kernel" in text
    assert "cases" not in text and "void " not in text
    assert cli.main(["compare", runs[1], runs[0], "--fail-below", "0.98"]) == 1
    assert cli.main(["compare", runs[0], runs[0], "--fail-below", "1"]) == 0
    capsys.readouterr()
    cli.main(["compare", runs[0], runs[1], "--json"])
    (found,) = json.loads(capsys.readouterr().out)["comparisons"]
    assert found["cases"] == [] and found["step"]["kernels"][0]["name"] == "new_kernel"
    assert found["step"]["time"] < found["step"]["baseline_time"]


def test_step_recorded_alone_is_as_long_as_one_among_several(runs, capsys, tmp_path):
    recorded = steps.read(store.open_run(runs[0]).folder)
    end = max(one.end for one in recorded.launches)
    among = dataclasses.replace(recorded, plain=None, window=1.2 * end)
    alone = dataclasses.replace(among, window=end, next_call=None)
    folders = [shutil.copytree(runs[0], tmp_path / name) for name in ("among", "alone")]
    for folder, step in zip(folders, (among, alone), strict=True):
        steps.write(folder, step)
    for pair in (folders, folders[::-1]):
        assert cli.main(["compare", *map(str, pair)]) == 0
        assert f"the step takes {units.text(end, 'second')}, as long as before\n" in capsys.readouterr().out


def test_gate_of_steps_checks_kernels_time_and_names_them(runs, capsys):
    assert cli.main(["gate", runs[1], runs[0]]) == 1
    text = capsys.readouterr().out
    assert "1 of 2 checks fail" in text and " new_kernel → cuBLAS cutlass" in text and "void " not in text
    assert cli.main(["gate", runs[0], runs[1]]) == 0
    # More waiting: one step shows no noise of the CPU's.
    assert cli.main(["gate", runs[0], runs[2]]) == 0
    assert cli.main(["gate", runs[0], runs[2], "--strict"]) == 1
    assert "1 checks pass, 1 undecided" in capsys.readouterr().out


def test_gate_names_kernels_of_a_step_readably(runs, capsys):
    cli.main(["gate", runs[0], runs[1], "--impl", "recorded"])
    text = capsys.readouterr().out
    assert "PyTorch" in text and "native::" not in text and "void" not in text
