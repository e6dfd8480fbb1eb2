"""The first line about a run is its most important finding."""

from pathlib import Path

import pytest
from tilescope.commands import advise
from tilescope.hardware import device
from tilescope.models.headline import headline
from tilescope.notebook.opened_run import Profile
from tilescope.runs import store
from tilescope.runs.store import LoadedRun
from tilescope.table import schema
from tilescope.table.case import Case
from tilescope.table.run import Failure

from . import made_up

CASE = Case("k", "triton", "forward", "512x512-fp32")
MB = 1 << 20
GOOD = {
    "compiler": {"registers": 32, "block_threads": 128, "grid_blocks": 1 << 16, "occupancy_limit_registers": 16,
                 "occupancy_limit_warps": 16, "theoretical_occupancy": 1.0, "widest_load": 16},
    "interpreter": {"requested_bytes_read": MB, "requested_bytes_written": MB, "sector_efficiency_read": 1.0},
}  # fmt: skip


def predicted(failures=(), **changed):
    values = {source: {**known, **changed.get(source, {})} for source, known in GOOD.items()}
    rows = [
        CASE.row(name, value, source, launch=0, function="k_kernel")
        for source, known in values.items()
        for name, value in known.items()
    ]
    run = made_up.run(device=device.for_target("sm_90"), failures=failures)
    return LoadedRun(run, schema.frame(rows), Path("nowhere"))


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({}, ": no problem found (not timed: no GPU)"),
        (
            {"interpreter": {"sector_efficiency_read": 0.125}},
            "Uncoalesced loads: 12.5 % of each 32-byte sector is used, 8× the traffic (4.50× by this alone, predicted)",
        ),
        (
            {"compiler": {"spill_bytes_stored": 5030, "spill_bytes_loaded": 8910}},
            "Registers spill 13.9 kB a thread to local memory (",
        ),
        ({"compiler": {"grid_blocks": -0.5, "registers": -1}}, ": no problem found (not timed: no GPU)"),
        ({"compiler": {"grid_blocks": 1}}, "1 block leaves 131 of 132 SMs idle (132× by this alone, predicted)"),
        (
            {"compiler": {"grid_blocks": 1}, "interpreter": {"sector_efficiency_read": 0.125}},
            "SMs idle (132× by this alone, predicted); Uncoalesced loads: 12.5 %",
        ),
    ],
)
def test_headline_is_the_first_finding(changed, said):
    run = predicted(**changed)
    assert headline(run).startswith(CASE.id) and said in headline(run)
    assert repr(Profile.of(run)).splitlines()[0] == headline(run)
    assert headline(run, "other") == ""


def test_fault_is_the_headline():
    said = "InterpretationFailed: k_kernel, program (1, 0, 0), line 3: reads 4 bytes past the end of x: element 9 of 8"
    wrong = Failure(CASE.id, "interpreter", said)
    assert "k reads past the end of x in line 3" in headline(predicted([wrong], compiler={"grid_blocks": 1}))


def test_headline_of_a_models_step_is_what_to_do_next():
    (step,) = store.recorded_dir().glob("*/step.json.gz")
    run = store.open_run(step.parent)
    assert headline(run).startswith("Compile the model (torch.compile)") and "saves about" in headline(run)
    assert "no problem found" in headline(run, run.table["kernel"][0])
    document = advise.document(run)
    assert (document.cases, document.findings, document.suggestions[0]) == ([], [], headline(run))
