"""Whose word counts: the same for whoever asks, on every recording."""

from __future__ import annotations

from pathlib import Path

import pandas as pd
import pytest
from tilescope.commands import text_table
from tilescope.models import preference, summary
from tilescope.runs import provenance, store
from tilescope.table import schema
from tilescope.table.case import Case
from tilescope.table.case_table import gather

RECORDED = sorted(store.recorded_dir().iterdir())
CASE = Case("matmul", "triton", "forward", "8x8x8-bf16")


@pytest.mark.parametrize("folder", RECORDED, ids=lambda folder: folder.name)
def test_the_terminal_and_the_app_give_the_same_numbers(folder: Path) -> None:
    """``show`` and a notebook's text print ``results``; the app, reports and a notebook's table ``summary``."""
    loaded = store.open_run(folder)
    printed = text_table.results(loaded.table, loaded.run.device)
    drawn = summary.summarise(loaded.table, loaded.run.device, loaded.run.kernels)
    assert len(printed) == len(drawn) > 0
    pairs = (("registers", "registers"), ("shared_memory", "shared_memory"), ("spills", "spill_bytes"),
             ("occupancy", "theoretical_occupancy"))  # fmt: skip
    for (_, one), (_, other) in zip(printed.iterrows(), drawn.iterrows(), strict=True):
        assert [one[c] for c in schema.CASE_COLUMNS] == [other[c] for c in schema.CASE_COLUMNS]
        for mine, theirs in pairs:
            told = one[mine] if isinstance(one[mine], tuple) else ()
            # Absent, or one of the launches that the terminal prints.
            assert other[theirs] in told or pd.isna(other[theirs]), (folder.name, one, theirs)
        assert one["gpu_time"] == other["gpu_time"] or (pd.isna(one["gpu_time"]) and pd.isna(other["gpu_time"]))


def rows(source: str, registers: int, **more: float) -> list[dict[str, object]]:
    values = {"registers": registers, "shared_memory": 1024, "block_threads": 256, **more}
    return [CASE.row(name, value, source, launch=0, function="k") for name, value in values.items()]


def test_what_ran_counts_and_not_what_the_compiler_was_given() -> None:
    spilled = {"spill_bytes_stored": 8, "spill_bytes_loaded": 8, "theoretical_occupancy": 0.125}
    (case,) = gather(schema.frame(rows("compiler", 159, **spilled) + rows("torch_profiler", 212)))
    found = preference.main_resources(case, "sm_90")
    assert found is not None
    # 212 registers a thread leave room for one block of eight warps; the compiler's spills are another config's.
    assert (found.source, found.registers, found.spill_bytes) == ("torch_profiler", 212, None)
    assert (found.theoretical_occupancy, found.limiter) == (8 / 64, "registers")
    (alike,) = gather(schema.frame(rows("compiler", 212, **spilled) + rows("torch_profiler", 212)))
    same = preference.main_resources(alike, "sm_90")
    assert same is not None
    assert same.spill_bytes == 16


def test_zeros_that_stand_for_absent_are_absent() -> None:
    table = schema.frame(
        [CASE.row("estimated_occupancy", value, "torch_profiler", launch=n) for n, value in enumerate((0.0, 0.5))]
        + [CASE.row("bank_conflicts", 0, "ncu", launch=0)]
    )
    assert schema.without_absent(table)["value"].tolist() == [0.5, 0.0]


def test_a_changed_tree_is_told_from_a_clean_one() -> None:
    assert provenance.changed_since("f6577e5+")
    assert not provenance.changed_since("f6577e5")
    assert not provenance.changed_since("")
