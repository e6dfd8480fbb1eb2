"""The preferred source of a value. ``tests/dashboard/test_same_numbers.py`` checks that every output shows the same one."""

from tilescope.models import preference
from tilescope.table import absent, schema
from tilescope.table.case import Case
from tilescope.table.case_table import gather

CASE = Case("matmul", "triton", "forward", "8x8x8-bf16")


def rows(source, registers, **more):
    values = {"registers": registers, "shared_memory": 1024, "block_threads": 256, **more}
    return [CASE.row(name, value, source, launch=0, function="k") for name, value in values.items()]


SPILLED = {"spill_bytes_stored": 8, "spill_bytes_loaded": 8, "theoretical_occupancy": 0.125}


def main(*tables):
    (case,) = gather(schema.frame([row for table in tables for row in table]))
    found = preference.main_resources(case, "sm_90")
    assert found is not None
    return found


def test_resources_of_traced_code_replace_compiled_ones():
    found = main(rows("compiler", 159, **SPILLED), rows("torch_profiler", 212))
    # 212 registers a thread leave room for one block of eight warps; the compiler's spills are another config's.
    assert (found.source, found.registers, found.spill_bytes) == ("torch_profiler", 212, None)
    assert (found.theoretical_occupancy, found.limiter) == (8 / 64, "registers")
    assert main(rows("compiler", 212, **SPILLED), rows("torch_profiler", 212)).spill_bytes == 16


def test_main_launch_has_its_spills_and_limits():
    filled = CASE.row("gpu_time", 1e-6, "torch_profiler", launch=0, function="Memset")
    traced = [{**row, "launch": 1} for row in rows("torch_profiler", 212)]
    assert main(rows("compiler", 212, **SPILLED), [filled, *traced]).spill_bytes == 16
    found = main(rows("torch_profiler", 32, shared_memory=100 * 1024))
    assert (found.blocks, found.limiter, found.theoretical_occupancy) == (2, "shared memory", 16 / 64)


def test_zeros_that_stand_for_absent_are_absent():
    table = schema.frame(
        [CASE.row("estimated_occupancy", value, "torch_profiler", launch=n) for n, value in enumerate((0.0, 0.5))]
        + [CASE.row("bank_conflicts", 0, "ncu", launch=0), CASE.row("waves", 0, "ncu", launch=0)]
    )
    assert absent.without(table)["value"].tolist() == [0.5, 0.0]


def test_hit_rate_is_absent_without_requests_and_zero_for_misses():
    looked_up, hits = (0, 4096, 4096), (0, 0, 0.5)
    rows = [CASE.row("l1_bytes", value, "ncu", launch=n) for n, value in enumerate(looked_up)]
    rows += [CASE.row("l1_hit_rate", value, "ncu", launch=n) for n, value in enumerate(hits)]
    left = absent.without(schema.frame(rows))
    assert left.loc[left["metric"] == "l1_hit_rate", "launch"].tolist() == [1, 2]
    assert len(left) == 5
