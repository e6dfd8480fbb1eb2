"""From where on a rule speaks: each threshold from both sides, so that none can move unseen."""

from __future__ import annotations

from typing import Any

import pytest
from tilescope.models import advice
from tilescope.table import schema
from tilescope.table.case import Case
from tilescope.table.run import Ceiling, Device

CASE = Case("scale", "triton", "forward", "1000x1000-fp32")
#: 1 TB/s, 10 Tflop/s, 100 multiprocessors: 100 MB take 100 us, and so do 1 Gflop.
GPU = Device(
    "Made-up GPU", "sm_90", 100, 10_000_000, 10_000_000_000, True,
    (
        Ceiling("hbm", 1e12, "byte/second", "measured"),
        Ceiling("l2", 4e12, "byte/second", "measured"),
        Ceiling("fp32", 1e13, "flop/second", "measured"),
        Ceiling("tf32", 1e14, "flop/second", "measured"),
    ),
)  # fmt: skip
MB = 1e6
OCCUPANCY = {
    "theoretical_occupancy@compiler": 0.25, "grid_blocks@compiler": 10_000, "block_threads@compiler": 128,
    "registers@compiler": 128, "shared_memory@compiler": 0, "occupancy_limit_registers@compiler": 4,
    "occupancy_limit_shared_memory@compiler": 200, "occupancy_limit_warps@compiler": 16,
}  # fmt: skip
CONFLICTS = {"gpu_time@ncu": 400e-6, "sm_clock@ncu": 1e9}
REQUESTED = {"unique_bytes_read@interpreter": 50 * MB, "gpu_time@ncu": 400e-6, "l1_to_l2_bytes@ncu": 50 * MB}


def rules(values: dict[str, float], microseconds: float = 400, flops: float = MB, second: float = 0) -> set[str]:
    """The rules that speak of a launch of that time; another one of ``second`` microseconds may come first."""
    rows: list[dict[str, Any]] = [
        CASE.row("algorithm_bytes_read", 50 * MB, "model"),
        CASE.row("algorithm_bytes_written", 50 * MB, "model"),
        CASE.row("algorithm_flops", flops, "model"),
    ]
    times = [microseconds, second] if second else [microseconds]
    for number, time in enumerate(times):
        at = {"launch": number, "function": f"f{number}"}
        rows.append(CASE.row("gpu_time", time * 1e-6, "torch_profiler", sample=0, **at))
    for key, value in values.items():
        metric, source = key.split("@")
        rows.append(CASE.row(metric, value, source, launch=0, function="f0"))
    return {finding.rule for finding in advice.findings(schema.frame(rows), GPU)}


@pytest.mark.parametrize(("rule", "spoken", "silent"), [
    # Occupancy up to half hides too little, where less than 80 % of the roof is in use.
    ("register-pressure", {"values": {**OCCUPANCY, "theoretical_occupancy@compiler": 0.49}},
     {"values": {**OCCUPANCY, "theoretical_occupancy@compiler": 0.52}}),
    ("register-pressure", {"values": OCCUPANCY, "microseconds": 100 / 0.78},
     {"values": OCCUPANCY, "microseconds": 100 / 0.82}),
    # A grid that keeps 85 % of its waves busy is no trouble: 100 multiprocessors with room for 4 blocks each.
    ("partial-waves", {"values": {"grid_blocks@compiler": 660, "occupancy_limit_warps@compiler": 4}},
     {"values": {"grid_blocks@compiler": 700, "occupancy_limit_warps@compiler": 4}}),
    # Conflicts from 5 % of the cycles on: 100 x 400,000 cycles are 40 million. Below 1.05 nothing is worth a word anyhow.
    ("bank-conflicts", {"values": {**CONFLICTS, "bank_conflicts@ncu": 2.1e6}},
     {"values": {**CONFLICTS, "bank_conflicts@ncu": 1.8e6}}),
    # Launches from a tenth of the time on.
    ("narrow-loads", {"values": {"widest_load@compiler": 1}, "microseconds": 110, "second": 890},
     {"values": {"widest_load@compiler": 1}, "microseconds": 90, "second": 910}),
    # Loads below 16 bytes; and not where 85 % of the roof is in use.
    ("narrow-loads", {"values": {"widest_load@compiler": 8}}, {"values": {"widest_load@compiler": 16}}),
    ("narrow-loads", {"values": {"widest_load@compiler": 4}, "microseconds": 100 / 0.84},
     {"values": {"widest_load@compiler": 4}, "microseconds": 100 / 0.86}),
    # At a roof from 85 % on.
    ("at-the-roof", {"values": {}, "microseconds": 100 / 0.86}, {"values": {}, "microseconds": 100 / 0.84}),
    ("at-the-rate", {"values": {}, "microseconds": 200 / 0.86, "flops": 2e9},
     {"values": {}, "microseconds": 200 / 0.84, "flops": 2e9}),
    # L2 is busy from 60 % on: 400 us x 4 TB/s are 1.6 GB, of which the output takes 50 MB.
    ("repeated-requests", {"values": {**REQUESTED, "requested_bytes_read@interpreter": 1e9, "l2_to_l1_bytes@ncu": 0.95e9}},
     {"values": {**REQUESTED, "requested_bytes_read@interpreter": 1e9, "l2_to_l1_bytes@ncu": 0.87e9}}),
    ("repeated-requests", {"values": {**REQUESTED, "requested_bytes_read@interpreter": 56e6, "l2_to_l1_bytes@ncu": 0.95e9}},
     {"values": {**REQUESTED, "requested_bytes_read@interpreter": 54e6, "l2_to_l1_bytes@ncu": 0.95e9}}),
    # A stall from a quarter of a warp's cycles on.
    ("longest-stall", {"values": {"stall_long_scoreboard@ncu": 2.6, "stall_selected@ncu": 7.4, "gpu_time@ncu": 4e-4}},
     {"values": {"stall_long_scoreboard@ncu": 2.4, "stall_selected@ncu": 7.6, "gpu_time@ncu": 4e-4}}),
    # Sectors from a tenth more on.
    ("uncoalesced-loads", {"values": {"sector_efficiency_read@interpreter": 1 / 1.25}},
     {"values": {"sector_efficiency_read@interpreter": 1 / 1.08}}),
    # A product in all but name from 64 flop a byte on.
    ("no-tensor-cores", {"values": {"tensor_instructions@compiler": 0}, "microseconds": 4000, "flops": 6.6e9},
     {"values": {"tensor_instructions@compiler": 0}, "microseconds": 4000, "flops": 6.2e9}),
])  # fmt: skip
def test_a_threshold_holds_from_both_sides(rule: str, spoken: dict[str, Any], silent: dict[str, Any]) -> None:
    assert rule in rules(**spoken)
    assert rule not in rules(**silent)


@pytest.mark.parametrize(("microseconds", "told"), [(4.9, True), (5.1, False)])
def test_a_launch_is_short_below_five_microseconds(microseconds: float, told: bool) -> None:
    rows = [CASE.row(f"algorithm_bytes_{way}", 1000, "model") for way in ("read", "written")]
    rows += [CASE.row("gpu_time", microseconds * 1e-6, "torch_profiler", sample=0, launch=0, function="f")]
    assert ("launch-bound" in {finding.rule for finding in advice.findings(schema.frame(rows), GPU)}) == told


@pytest.mark.parametrize(("ratio", "told"), [(1.012, True), (1.008, False)])
def test_a_config_is_quicker_from_one_percent_on(ratio: float, told: bool) -> None:
    rows = [
        Case("norm", "triton", "forward", "8x8-fp32", config).row(
            "gpu_time", seconds * (1 + 1e-4 * (sample % 3)), "torch_profiler", launch=0, function="f", sample=sample
        )
        for config, seconds in (("", 1e-4 * ratio), ("num_warps=8", 1e-4))
        for sample in range(30)
    ]
    assert ("quicker-config" in {f.rule for f in advice.findings(schema.frame(rows), GPU)}) == told
