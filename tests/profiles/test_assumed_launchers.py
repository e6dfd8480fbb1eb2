"""Launchers that query the GPU run without one, as on the assumed GPU: compiled, counted and checked."""

from pathlib import Path

import pytest
from tilescope import collectors
from tilescope.table import assumptions
from tilescope.table.case import Case

from .capturing import capture
from .fake_jobs import run

FILE = Path(__file__).parent / "gpu_launchers.py"
CASES = {
    (impl, direction): Case(f"{FILE}:DOUBLED", impl, direction, "5000-fp32", "")
    for impl, direction in [
        ("properties", "forward"), ("properties", "backward"), ("driver", "forward"), ("operator", "forward"),
        ("clock", "forward"),
    ]
}  # fmt: skip
ANSWERED = [key for key in CASES if key[0] != "clock"]
#: In a backward pass, and of an operator.
FEW = [("properties", "backward"), ("operator", "forward")]
#: Not the target of recordings, which launchers of the catalog fall back on.
TARGET, MULTIPROCESSORS = "sm_86", 82


@pytest.fixture(scope="module")
def counted():
    return capture("interpreter", list(CASES.values()), target=TARGET)


@pytest.mark.parametrize("key", ANSWERED)
def test_launcher_has_a_program_for_each_multiprocessor(counted, key):
    answer = counted[CASES[key].id]
    assert "artefact" in answer, answer
    launch = next(each for each in answer["artefact"]["launches"] if each["function"] == "scale_kernel")
    assert launch["grid"] == [MULTIPROCESSORS, 1, 1]
    assert launch["unique_bytes_read"] == 4 * 5000


def test_launcher_answers_are_in_the_artefact(counted):
    assumed = counted[CASES["driver", "forward"].id]["artefact"]["assumed"]
    asked = "triton.runtime.driver.active.utils.get_device_properties()['multiprocessor_count']"
    assert assumed["target"] == TARGET and assumed["answers"][asked] == MULTIPROCESSORS
    (note,) = assumptions.notes({"assumed": {"interpreter": assumed}})
    assert f"multiprocessor_count {MULTIPROCESSORS}" in note
    refused = counted[CASES["clock", "forward"].id]
    assert "get_device_properties().clock_rate has no answer" in refused["message"]


def test_launcher_is_compiled_and_checked_for_the_same_gpu():
    compiled = capture("compiler", [CASES[key] for key in FEW], target=TARGET)
    checked = capture("check", [CASES[key] for key in FEW], check_limit=60)
    for key in FEW:
        assert "artefact" in compiled[CASES[key].id], compiled
        assert compiled[CASES[key].id]["artefact"]["launches"][0]["grid"] == [MULTIPROCESSORS, 1, 1]
        assert "artefact" in checked[CASES[key].id], checked
        assert max(checked[CASES[key].id]["artefact"]["errors"].values()) < 1e-6


def test_answers_of_several_cases_are_joined_in_the_run(kit, catalog, monkeypatch):
    told = iter([
        {"name": "NVIDIA H200", "target": "sm_90", "answers": {"torch.cuda.get_device_name()": "NVIDIA H200"}},
        {"name": "NVIDIA H200", "target": "sm_90", "answers": {"x.warp_size": 32}, "refused": ["x.clock_rate"]},
    ])  # fmt: skip
    monkeypatch.setattr(collectors.load("fakes.quick"), "parse_assumed", lambda artefact: next(told), raising=False)
    loaded, _ = run(catalog, ["good", "fine"])
    kept = loaded.run.settings["assumed"]["fakes.quick"]
    assert kept["answers"] == {"torch.cuda.get_device_name()": "NVIDIA H200", "x.warp_size": 32}
    assert kept["refused"] == ["x.clock_rate"]
    assert loaded.run.notes == (
        "fakes.quick assumed NVIDIA H200 (sm_90) where launchers asked for the GPU: "
        "get_device_name NVIDIA H200, warp_size 32",
    )
