"""Rules of the advice, one by one: what makes each speak and what silences it, and its threshold from both sides, so that none can
move unseen.
"""

from typing import Any

import pytest
from tilescope.models import advice
from tilescope.models.advice import Finding
from tilescope.table import schema
from tilescope.table.case import Case

from .made_up import GPU, MB, OCCUPANCY, cost, values

FREE = {"bank_conflicts@compiler": 0, "shared_wavefronts@compiler": 50e6}
CONFLICTS = {"gpu_time@ncu": 400e-6, "sm_clock@ncu": 1e9}
IDLE = {"tensor_instructions@compiler": 0, "requested_flops@interpreter": 6.6e9}
NARROW = {"sector_efficiency_read@interpreter": 1.0, "widest_load@compiler": 4, "gpu_time@ncu": 400e-6}
REQUESTED = {"unique_bytes_read@interpreter": 50 * MB, "gpu_time@ncu": 400e-6, "l1_to_l2_bytes@ncu": 50 * MB}


def find(launch: dict[str, float], microseconds: float = 400, flops: float = MB, second: float = 0) -> list[Finding]:
    """Findings about a launch of that time (0: not timed); another one of ``second`` microseconds may come first."""
    rows = [*cost(flops=flops), *values(launch)]
    for number, time in enumerate(filter(None, [microseconds, second])):
        rows += values({"gpu_time@torch_profiler": time * 1e-6}, number)
    return advice.findings(schema.frame(rows), GPU)


def rules(found: list[Finding]) -> set[str]:
    return {finding.rule for finding in found}


#: Rule, values that make it fire, and a change after which it must not.
CASES = [
    ("extra-bytes", {"gpu_time@torch_profiler": 400e-6, "dram_bytes_read@ncu": 150 * MB, "dram_bytes_written@ncu": 50 * MB, "gpu_time@ncu": 400e-6}, {"dram_bytes_read@ncu": 55 * MB}),
    ("extra-bytes", {"unique_bytes_read@interpreter": 2e8, "unique_bytes_written@interpreter": 5e7},
     {"unique_bytes_read@interpreter": 5e7}),
    ("uncoalesced-loads", {"gpu_time@torch_profiler": 400e-6, "sectors_per_load@ncu": 32, "widest_load@compiler": 4, "gpu_time@ncu": 4e-4},
     {"sectors_per_load@ncu": 4}),
    ("uncoalesced-stores", {"sector_efficiency_written@interpreter": 0.5},
     {"sector_efficiency_written@interpreter": 1.0}),
    # What TMA copies passes no thread: the loads that are left are of something small.
    ("narrow-loads", {"widest_load@compiler": 4, "l1_bytes@ncu": 1e8, "l2_to_l1_bytes@ncu": 5e7}, {"l1_bytes@ncu": 2e6}),
    ("narrow-loads", {"widest_load@compiler": 4}, {"tensor_instructions@compiler": 8}),
    ("narrow-loads", {"widest_load@compiler": 4, "tensor_instructions@compiler": 8, "l1_bytes@ncu": 1e8,
                      "l2_to_l1_bytes@ncu": 5e7}, {"l1_bytes@ncu": 2e6}),
    ("spills", {"spill_bytes_loaded@compiler": 48, "spill_bytes_stored@compiler": 48},
     {"spill_bytes_loaded@compiler": 0, "spill_bytes_stored@compiler": 0}),
    ("spills", {"spill_loads@ncu": 1000, "spill_stores@ncu": 0}, {"spill_loads@ncu": 0}),
    ("register-pressure", OCCUPANCY, {"spill_bytes_loaded@compiler": 8}),
    ("register-pressure", OCCUPANCY, {"tensor_instructions@compiler": 8}),
    ("register-pressure", OCCUPANCY, {"grid_blocks@compiler": 50}),
    ("low-occupancy",
     {**OCCUPANCY, "occupancy_limit_registers@compiler": 16, "occupancy_limit_shared_memory@compiler": 4},
     {"theoretical_occupancy@compiler": 1.0}),
    ("partial-waves", {"grid_blocks@compiler": 410, "occupancy_limit_warps@compiler": 4},
     {"grid_blocks@compiler": 9_990}),
    ("serialized-products", {"wgmma_short_of_registers@compiler": 16}, {"wgmma_short_of_registers@compiler": 0}),
    ("serialized-products", {"wgmma_accumulator_used@compiler": 8}, {"wgmma_accumulator_used@compiler": 0}),
]  # fmt: skip


@pytest.mark.parametrize(("rule", "launch", "fixed"), CASES, ids=lambda x: x if isinstance(x, str) else "")
def test_a_rule_fires_and_falls_silent(rule: str, launch: dict[str, Any], fixed: dict[str, Any]) -> None:
    before, after = find(launch, 0), find({**launch, **fixed}, 0)
    assert rule in rules(before)
    assert rule not in rules(after)
    for finding in before:
        assert finding.evidence and finding.remedy and finding.kernel == "scale"
        assert finding.bound is None or finding.bound.ratio >= 1.05


@pytest.mark.parametrize(("rule", "spoken", "silent"), [
    # Occupancy up to half hides too little, where less than 80 % of the roof is in use.
    ("register-pressure", {"launch": {**OCCUPANCY, "theoretical_occupancy@compiler": 0.49}},
     {"launch": {**OCCUPANCY, "theoretical_occupancy@compiler": 0.52}}),
    ("register-pressure", {"launch": OCCUPANCY, "microseconds": 100 / 0.78},
     {"launch": OCCUPANCY, "microseconds": 100 / 0.82}),
    # A grid that keeps 85 % of its waves busy is no trouble: 100 multiprocessors with room for 4 blocks each.
    ("partial-waves", {"launch": {"grid_blocks@compiler": 660, "occupancy_limit_warps@compiler": 4}},
     {"launch": {"grid_blocks@compiler": 700, "occupancy_limit_warps@compiler": 4}}),
    # Conflicts from 5 % of the cycles on: 100 x 400,000 cycles are 40 million. Below 1.05 nothing is worth a word anyhow.
    ("bank-conflicts", {"launch": {**CONFLICTS, "bank_conflicts@ncu": 2.1e6}},
     {"launch": {**CONFLICTS, "bank_conflicts@ncu": 1.8e6}}),
    # Without ncu the prediction counts, at 1.5 GHz.
    ("bank-conflicts", {"launch": {"bank_conflicts@compiler": 3.5e6, "gpu_time@torch_profiler": 400e-6}},
     {"launch": {"bank_conflicts@compiler": 2.5e6, "gpu_time@torch_profiler": 400e-6}}),
    # A count within ncu's noise is none where the code has none.
    ("bank-conflicts", {"launch": {**CONFLICTS, **FREE, "bank_conflicts@ncu": 12e6}},
     {"launch": {**CONFLICTS, **FREE, "bank_conflicts@ncu": 8e6}}),
    # Launches from a tenth of the time on.
    ("narrow-loads", {"launch": {"widest_load@compiler": 1}, "microseconds": 110, "second": 890},
     {"launch": {"widest_load@compiler": 1}, "microseconds": 90, "second": 910}),
    # Loads below 16 bytes; and not where 85 % of the roof is in use.
    ("narrow-loads", {"launch": {"widest_load@compiler": 8}}, {"launch": {"widest_load@compiler": 16}}),
    ("narrow-loads", {"launch": {"widest_load@compiler": 4}, "microseconds": 100 / 0.84},
     {"launch": {"widest_load@compiler": 4}, "microseconds": 100 / 0.86}),
    # At a roof from 85 % on.
    ("at-the-roof", {"launch": {}, "microseconds": 100 / 0.86}, {"launch": {}, "microseconds": 100 / 0.84}),
    ("at-the-rate", {"launch": {}, "microseconds": 200 / 0.86, "flops": 2e9},
     {"launch": {}, "microseconds": 200 / 0.84, "flops": 2e9}),
    # L2 is busy from 60 % on: 400 us x 4 TB/s are 1.6 GB, of which the output takes 50 MB.
    ("repeated-requests", {"launch": {**REQUESTED, "requested_bytes_read@interpreter": 1e9, "l2_to_l1_bytes@ncu": 0.95e9}},
     {"launch": {**REQUESTED, "requested_bytes_read@interpreter": 1e9, "l2_to_l1_bytes@ncu": 0.87e9}}),
    ("repeated-requests", {"launch": {**REQUESTED, "requested_bytes_read@interpreter": 56e6, "l2_to_l1_bytes@ncu": 0.95e9}},
     {"launch": {**REQUESTED, "requested_bytes_read@interpreter": 54e6, "l2_to_l1_bytes@ncu": 0.95e9}}),
    # Sectors from a tenth more on.
    ("uncoalesced-loads", {"launch": {"sector_efficiency_read@interpreter": 1 / 1.25}},
     {"launch": {"sector_efficiency_read@interpreter": 1 / 1.08}}),
    # Beyond 16 sectors a request, where all bytes of the block's sectors are used.
    ("uncoalesced-loads", {"launch": {**NARROW, "sectors_per_load@ncu": 17}}, {"launch": {**NARROW, "sectors_per_load@ncu": 16}}),
    # A product in all but name from 64 flop a byte on.
    ("no-tensor-cores", {"launch": IDLE, "microseconds": 4000, "flops": 6.6e9}, {"launch": IDLE, "microseconds": 4000, "flops": 6.2e9}),
])  # fmt: skip
def test_a_threshold_holds_from_both_sides(rule: str, spoken: dict[str, Any], silent: dict[str, Any]) -> None:
    assert rule in rules(find(**spoken))
    assert rule not in rules(find(**silent))


@pytest.mark.parametrize(("ratio", "told"), [(1.012, True), (1.008, False)])
def test_a_config_is_quicker_from_one_percent_on(ratio: float, told: bool) -> None:
    rows = [
        Case("norm", "triton", "forward", "8x8-fp32", config).row(
            "gpu_time", seconds * (1 + 1e-4 * (sample % 3)), "torch_profiler", launch=0, function="f", sample=sample
        )
        for config, seconds in (("", 1e-4 * ratio), ("num_warps=8", 1e-4))
        for sample in range(30)
    ]
    assert ("quicker-config" in rules(advice.findings(schema.frame(rows), GPU))) == told
