"""The compiler's values of a config that did not run are left out, with a note."""

import dataclasses

import pandas as pd
import pytest
from tilescope.runs import store
from tilescope.table import launch_configs, schema

from tests.recorded import recorded

from .made_up import CASE, values

COMPILED = {"registers@compiler": 96, "shared_memory@compiler": 4096, "block_threads@compiler": 128}
RAN = {name.replace("compiler", "torch_profiler"): value for name, value in COMPILED.items()}


def launched(*configs: tuple[str, str]) -> pd.DataFrame:
    at = {name: value for name, value in CASE.row("", 0, "").items() if name in launch_configs.COLUMNS}
    return launch_configs.frame(
        {**at, "launch": 0, "function": "f0", "launched": config, "autotuned": "", "source": source}
        for source, config in configs
    )


@pytest.mark.parametrize(("ran", "configs", "left_out"), [
    ({}, (), False),
    ({"shared_memory@torch_profiler": 8192}, (), True),
    ({"block_threads@torch_profiler": 256}, (), True),
    ({"registers@torch_profiler": 128}, (), True),
    ({"registers@torch_profiler": 95}, (), True),  # other code of the same config, though as many are allocated
    ({}, (("compiler", "BLOCK=64"), ("torch_profiler", "BLOCK=64")), False),
    ({}, (("compiler", "BLOCK=64"), ("torch_profiler", "BLOCK=128")), True),
    ({}, (("events", "BLOCK=64"), ("torch_profiler", "BLOCK=128")), False),  # neither was compiled only
])  # fmt: skip
def test_compiled_values_of_another_config_are_left_out(ran, configs, left_out):
    other = dataclasses.replace(CASE, workload="8x8-fp32")
    table = schema.frame(
        [*values(COMPILED), *values({**RAN, **ran}), *values(COMPILED, of=other), *values(RAN, of=other)]
    )
    kept, notes = launch_configs.without_guesses(table, launched(*configs))
    compiled = kept[kept["source"] == "compiler"]
    assert set(compiled["workload"]) == {other.workload} | (set() if left_out else {CASE.workload})
    assert len(kept) == len(table) - 3 * left_out
    said = f"the compiler's values of 1 case are left out, because another config ran: {CASE.id}"
    assert notes == ([said] if left_out else [])


def test_two_launches_of_two_configs_are_no_other_config():
    rows = [row for launch, memory in enumerate((4096, 8192)) for source in ("compiler", "ncu")
            for row in values({f"shared_memory@{source}": memory}, launch)]  # fmt: skip
    table = schema.frame([{**row, "function": "f"} for row in rows])
    kept, notes = launch_configs.without_guesses(table, launched())
    assert len(kept) == len(table) == 4 and notes == []
    assert launch_configs.without_guesses(schema.frame(values(COMPILED)), launched())[1] == []


def test_recording_of_a_guess_says_what_it_leaves_out():
    loaded = store.open_run(store.find(recorded("tma_copy")))
    table = loaded.table[loaded.table["impl"] == "tma"]
    compiled = set(table.loc[table["source"] == "compiler", "workload"])
    assert "1823x784-fp32" not in compiled and "4096x1024-bf16" in compiled
    assert any("because another config ran: tma_copy/tma/forward/1823x784-fp32" in note for note in loaded.run.notes)
