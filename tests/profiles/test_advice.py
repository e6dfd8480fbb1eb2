"""Rules of the advice: each fires on values made for it and not on their counterpart, and its threshold is held from both sides."""

import dataclasses
import math
from typing import Any

import pytest
from tilescope.commands import advise
from tilescope.models import advice, faults
from tilescope.models.advice import Finding
from tilescope.table import schema
from tilescope.table.case import Case

from .made_up import CASE, GPU, MB, OCCUPANCY, cost, values

AT = {"launch": 0, "function": "scale_kernel"}


def find(
    launches: dict[str, Any], case: dict[str, Any] | None = None, of: Case = CASE, **needed: float
) -> list[Finding]:
    """Findings for one launch. Keys are ``metric@source``; the cost is 100 MB and the floor 100 µs, unless said."""
    rows = [*cost(of, **needed), *values(case or {}, None, of), *values(launches, 0, of)]
    return advice.findings(schema.frame(rows), GPU)


def rules(found: list[Finding]) -> set[str]:
    return {finding.rule for finding in found}


def one(found: list[Finding], rule: str) -> Finding:
    (finding,) = [f for f in found if f.rule == rule]
    return finding


SLOW = {"gpu_time@torch_profiler": 400e-6}
STALLS = {"stall_long_scoreboard@ncu": 8.0, "stall_wait@ncu": 1.0, "stall_selected@ncu": 1.0}
MOVED = {"dram_bytes_read@ncu": 150 * MB, "dram_bytes_written@ncu": 50 * MB, "gpu_time@ncu": 400e-6}


FREE = {"bank_conflicts@compiler": 0, "shared_wavefronts@compiler": 50e6}
CONFLICTS = {"gpu_time@ncu": 400e-6, "sm_clock@ncu": 1e9, **SLOW}
IDLE = {"tensor_instructions@compiler": 0, "requested_flops@interpreter": 6.6e9}
NARROW = {"sector_efficiency_read@interpreter": 1.0, "widest_load@compiler": 4, "gpu_time@ncu": 400e-6}
REQUESTED = {"unique_bytes_read@interpreter": 50 * MB, "requested_bytes_read@interpreter": 1e9, "l1_to_l2_bytes@ncu": 50 * MB,
             "l2_to_l1_bytes@ncu": 0.95e9, "gpu_time@ncu": 400e-6, **SLOW}  # fmt: skip
QUEUED = {"widest_load@compiler": 4, "widest_store@compiler": 16, "requested_bytes_read@interpreter": 50 * MB,
          "requested_bytes_written@interpreter": 50 * MB, "stall_lg_throttle@ncu": 3.0, "stall_long_scoreboard@ncu": 6.0,
          "stall_selected@ncu": 1.0}  # fmt: skip
WAVES = {"grid_blocks@compiler": 660, "occupancy_limit_warps@compiler": 4, **SLOW}


def took(microseconds: float) -> dict[str, float]:
    return {"gpu_time@torch_profiler": microseconds * 1e-6}


@pytest.mark.parametrize(("rule", "launch", "silenced"), [
    ("extra-bytes", {"unique_bytes_read@interpreter": 2e8, "unique_bytes_written@interpreter": 5e7},
     {"unique_bytes_read@interpreter": 5e7}),
    # A tenth more bytes is traffic to speak of.
    ("extra-bytes", {"dram_bytes_read@ncu": 56 * MB, "dram_bytes_written@ncu": 56 * MB, "gpu_time@ncu": 130e-6, **took(130)},
     {"dram_bytes_read@ncu": 54 * MB, "dram_bytes_written@ncu": 54 * MB}),
    ("uncoalesced-loads", {**SLOW, "sectors_per_load@ncu": 32, "widest_load@compiler": 4, "gpu_time@ncu": 4e-4},
     {"sectors_per_load@ncu": 4}),
    ("uncoalesced-loads", {"sector_efficiency_read@interpreter": 1 / 1.25, **SLOW}, {"sector_efficiency_read@interpreter": 1 / 1.08}),
    # Beyond 16 sectors a request, where all bytes of the block's sectors are used.
    ("uncoalesced-loads", {**NARROW, "sectors_per_load@ncu": 17, **SLOW}, {"sectors_per_load@ncu": 16}),
    # Loads below 16 bytes, for whose queue warps wait: as many bytes are stored by 16 as are loaded by 4, so 0.8 of 30 %.
    ("narrow-loads", QUEUED, {"widest_load@compiler": 16}),
    ("narrow-loads", QUEUED, {"stall_lg_throttle@ncu": 0.0}),
    # They cost instructions, and no bytes: what the queue costs is not known without counters.
    ("narrow-loads", QUEUED, {f"stall_{name}@ncu": math.nan for name in ("lg_throttle", "long_scoreboard", "selected")}),
    # What else fills the queue: spills, and accesses that are not coalesced, or mostly stores.
    ("narrow-loads", QUEUED, {"spill_bytes_stored@compiler": 48}),
    ("narrow-loads", QUEUED, {"sector_efficiency_read@interpreter": 0.125}),
    ("narrow-loads", QUEUED, {"sector_efficiency_written@interpreter": 0.125}),
    ("narrow-loads", QUEUED, {"requested_bytes_read@interpreter": MB, "widest_store@compiler": 4}),
    ("narrow-loads", QUEUED, {"requested_bytes_read@interpreter": MB, "widest_store@compiler": math.nan}),
    # Not where 85 % of the roof is in use.
    ("narrow-loads", {**QUEUED, **took(100 / 0.84)}, took(100 / 0.86)),
    ("spills", {"spill_bytes_loaded@compiler": 48, "spill_bytes_stored@compiler": 48},
     {"spill_bytes_loaded@compiler": 0, "spill_bytes_stored@compiler": 0}),
    ("spills", {"spill_loads@ncu": 1000, "spill_stores@ncu": 0}, {"spill_loads@ncu": 0}),
    ("register-pressure", OCCUPANCY, {"spill_bytes_loaded@compiler": 8}),
    ("register-pressure", OCCUPANCY, {"tensor_instructions@compiler": 8}),
    ("register-pressure", OCCUPANCY, {"grid_blocks@compiler": 50}),
    # Occupancy up to half hides too little, where less than 80 % of the roof is in use.
    ("register-pressure", {**OCCUPANCY, "theoretical_occupancy@compiler": 0.49, **SLOW}, {"theoretical_occupancy@compiler": 0.52}),
    ("register-pressure", {**OCCUPANCY, **took(100 / 0.78)}, took(100 / 0.82)),
    ("low-occupancy",
     {**OCCUPANCY, "occupancy_limit_registers@compiler": 16, "occupancy_limit_shared_memory@compiler": 4},
     {"theoretical_occupancy@compiler": 1.0}),
    # A grid that keeps 85 % of its waves busy is no trouble: 100 multiprocessors with room for 4 blocks each.
    ("partial-waves", WAVES, {"grid_blocks@compiler": 700}),
    ("serialized-products", {"wgmma_short_of_registers@compiler": 16}, {"wgmma_short_of_registers@compiler": 0}),
    ("serialized-products", {"wgmma_accumulator_used@compiler": 8}, {"wgmma_accumulator_used@compiler": 0}),
    # Conflicts from 5 % of the cycles on: 100 x 400,000 cycles are 40 million. Below 1.05 nothing is worth a word anyhow.
    ("bank-conflicts", {**CONFLICTS, "bank_conflicts@ncu": 2.1e6}, {"bank_conflicts@ncu": 1.8e6}),
    # Without ncu the prediction counts, at 1.5 GHz.
    ("bank-conflicts", {"bank_conflicts@compiler": 3.5e6, **SLOW}, {"bank_conflicts@compiler": 2.5e6}),
    # A count within ncu's noise is none where the code has none.
    ("bank-conflicts", {**CONFLICTS, **FREE, "bank_conflicts@ncu": 12e6}, {"bank_conflicts@ncu": 8e6}),
    # Stalls wherever the roof is not reached.
    ("longest-stall", {**STALLS, **took(125)}, took(116)),
    # At a roof from 85 % on.
    ("at-the-roof", took(100 / 0.86), took(100 / 0.84)),
    ("at-the-rate", {"flops": 2e9, **took(200 / 0.86)}, took(200 / 0.84)),
    # L2 is busy from 60 % on: 400 us x 4 TB/s are 1.6 GB, of which the output takes 50 MB.
    ("repeated-requests", REQUESTED, {"l2_to_l1_bytes@ncu": 0.87e9}),
    ("repeated-requests", {**REQUESTED, "requested_bytes_read@interpreter": 56e6}, {"requested_bytes_read@interpreter": 54e6}),
    # A product in all but name from 64 flop a byte on.
    ("no-tensor-cores", {**IDLE, "flops": 6.6e9, **took(4000)}, {"flops": 6.2e9}),
])  # fmt: skip
def test_rule_fires_and_falls_silent(rule: str, launch: dict[str, Any], silenced: dict[str, Any]) -> None:
    def findings(flops: float = MB, **given: float) -> list[Finding]:
        return find(given, flops=flops)

    before, after = findings(**launch), findings(**{**launch, **silenced})
    assert rule in rules(before)
    assert rule not in rules(after)
    for finding in before:
        assert finding.evidence and finding.remedy and finding.kernel == "scale"
        assert finding.bound is None or finding.bound.ratio >= 1.05


@pytest.mark.parametrize(("microseconds", "told"), [(110, True), (90, False)])
def test_launch_counts_from_a_tenth_of_the_time_on(microseconds: float, told: bool) -> None:
    rows = [
        *cost(),
        *values({"spill_bytes_stored@compiler": 48, **took(microseconds)}),
        *values(took(1000 - microseconds), 1),
    ]
    assert ("spills" in rules(advice.findings(schema.frame(rows), GPU))) == told


def test_advice_wrong_result_is_the_only_finding() -> None:
    checked = {"relative_error@check": 0.8, "tolerance@check": 1e-5}
    found = find(SLOW | MOVED, checked)
    assert len(rules(find(SLOW | MOVED))) > 1 and rules(found) == {faults.WRONG}
    assert found[0].title == "Wrong: the error against the reference, 0.8, is above 1e-05"
    assert [value.text for value in found[0].evidence] == ["80.0 %", "0.001 %"]
    # Nothing is won by it, so nothing is said of that.
    assert advise.text(1, found[0]).splitlines()[0] == f"  1. {found[0].title}"
    row = {"relative_error@check": 1e-6, "tolerance@check": 1e-5, "row_error@check": 1.0, "row_tolerance@check": 1e-4}
    assert find({}, row)[0].title.startswith("Wrong: a row's error")
    assert not find({}, {**row, "row_error@check": 1e-5})


def test_uncoalesced_bound_is_its_part_of_the_traffic() -> None:
    quarter = {"sector_efficiency_read@interpreter": 0.25, "sector_efficiency_written@interpreter": 1.0}
    # Of 50 MB each way, loads touch 200 MB of sectors: 250 become 100.
    finding = one(find(quarter), "uncoalesced-loads")
    assert finding.bound and finding.bound.ratio == pytest.approx(2.5)
    asked = {"requested_bytes_read@interpreter": 50e6, "requested_bytes_written@interpreter": 150e6}
    finding = one(find({**quarter, **asked}), "uncoalesced-loads")
    assert finding.bound and finding.bound.ratio == pytest.approx(350 / 200)
    assert "requested_bytes_read" in {value.metric for value in finding.evidence}
    nothing = {"requested_bytes_read@interpreter": 0, "requested_bytes_written@interpreter": 0}
    assert one(find({**quarter, **nothing}), "uncoalesced-loads").bound.ratio == 4  # type: ignore[union-attr]
    # One number a row, as a sum's: its store is nothing beside the row.
    few = {"sector_efficiency_written@interpreter": 0.125, "requested_bytes_read@interpreter": 262_144,
           "requested_bytes_written@interpreter": 512}  # fmt: skip
    assert "uncoalesced-stores" not in rules(find(few))
    # A scalar for each of 128 programs, which no other order of the threads gathers.
    scalar = {"sector_efficiency_read@interpreter": 1 / 16, "requested_bytes_read@interpreter": 256,
              "requested_bytes_written@interpreter": 0, "grid_blocks@compiler": 128}  # fmt: skip
    assert "uncoalesced-loads" not in rules(find(scalar))
    assert "uncoalesced-loads" in rules(find({**scalar, "grid_blocks@compiler": 4}))
    scale = {"sector_efficiency_written@interpreter": 0.825, "requested_bytes_read@interpreter": 0,
             "requested_bytes_written@interpreter": 132 * 996, "grid_blocks@compiler": 996}  # fmt: skip
    assert "uncoalesced-stores" not in rules(find(scale))
    assert "uncoalesced-stores" in rules(find({**scale, "grid_blocks@compiler": 400}))


def test_uncoalesced_names_the_line_that_wastes_most() -> None:
    placed = {"sector_efficiency_read@interpreter": 0.25, "wasteful_line_read@interpreter": 9}
    assert one(find(placed), "uncoalesced-loads").title.startswith("Uncoalesced loads, worst at line 9: 25.0 %")
    # Whole blocks use their sectors, warps do not: the line that the blocks waste most at may be another one.
    warps = {
        **placed,
        "sector_efficiency_read@interpreter": 0.99,
        "sectors_per_load@ncu": 32,
        "widest_load@compiler": 4,
    }
    assert one(find(warps), "uncoalesced-loads").title.startswith("Uncoalesced loads: 12.5 %")


def test_narrow_loads_win_their_part_of_the_queue() -> None:
    finding = one(find({**QUEUED, **SLOW}), "narrow-loads")
    assert finding.title == "Loads of 4 of 16 bytes a thread fill the queue of global loads and stores"
    # Four fifths of the requests are loads.
    assert finding.bound and finding.bound.ratio == pytest.approx(1 / (1 - 0.8 * 0.3))
    # Half of 8-byte loads' instructions can be saved at most.
    full = {"widest_load@compiler": 8, "stall_lg_throttle@ncu": 993.0, "requested_bytes_written@interpreter": 0}
    assert one(find({**QUEUED, **full, **SLOW}), "narrow-loads").bound.ratio == 2  # type: ignore[union-attr]


def test_nothing_is_found_where_nothing_was_counted() -> None:
    assert advice.findings(schema.frame([]), GPU) == find({}) == []


def test_a_product_without_tensor_cores() -> None:
    case = Case("mm", "triton", "forward", "1000x1000x1000-bf16")
    flops = 100 * MB * 100
    none = {"tensor_instructions@compiler": 0, "requested_flops@interpreter": flops}
    finding = one(find(none, of=case, flops=flops), "no-tensor-cores")
    assert finding.bound and finding.bound.ratio == pytest.approx(10)
    assert not finding.measured
    silent: list[tuple[dict[str, float], dict[str, float]]] = [
        ({**none, "tensor_instructions@compiler": 4}, {"flops": flops}),
        (none, {"flops": MB}),
        (none, {"flops": 0, "read": 0, "written": 0}),
        # Another kernel's cost, and a polynomial of each element, which reads it once.
        ({**none, "requested_flops@interpreter": MB}, {"flops": flops}),
        ({**none, "requested_bytes_read@interpreter": 50 * MB}, {"flops": flops}),
        # PyTorch may make the product beside the kernel.
        ({"tensor_instructions@compiler": 0}, {"flops": flops}),
    ]
    for launch, needed in silent:
        assert "no-tensor-cores" not in rules(find(launch, of=case, **needed))
    assert "no-tensor-cores" in rules(
        find({**none, "requested_bytes_read@interpreter": 200 * MB}, of=case, flops=flops)
    )
    beside = [case.row(metric, value, source, launch=number, function=function)
              for metric, value, source, number, function in (
                  ("tensor_instructions", 0, "compiler", 0, "norm_kernel"), ("requested_flops", MB, "interpreter", 0, "norm_kernel"),
                  ("requested_flops", flops, "interpreter", 1, "aten.mm"))]  # fmt: skip
    assert "no-tensor-cores" not in rules(advice.findings(schema.frame([*cost(case, flops=flops), *beside]), GPU))
    counted = find({"tensor_ops_bf16@ncu": 0}, of=case, flops=flops)
    assert one(counted, "no-tensor-cores").measured


def test_idle_tensor_cores_are_not_also_at_the_fp32_roof() -> None:
    case, flops = Case("mm", "triton", "forward", "1000x1000x1000-bf16"), 10**10
    time = {"gpu_time@torch_profiler": 1.01e-3}
    idle = {**time, "tensor_instructions@compiler": 0, "requested_flops@interpreter": flops}
    assert [f.rule for f in find(idle, of=case, flops=flops)] == ["no-tensor-cores"]
    other = dataclasses.replace(case, workload="1000x1000x1000-fp64")
    assert [f.rule for f in find(time, of=other, flops=10**9)] == ["distance"]


@pytest.mark.parametrize(("conflicts", "stall", "order"), [
    # Of 40 million cycles: 60 % and a stall of 70 % that they cause.
    (24e6, "short_scoreboard", ["bank-conflicts", "longest-stall"]),
    (24e6, "mio_throttle", ["bank-conflicts", "longest-stall"]),
    # Conflicts of 10 % cause little of it, and none of a stall on HBM.
    (4e6, "short_scoreboard", ["longest-stall", "bank-conflicts"]),
    (24e6, "long_scoreboard", ["longest-stall", "bank-conflicts"]),
])  # fmt: skip
def test_bank_conflicts_rank_before_the_stall_they_cause(conflicts: float, stall: str, order: list[str]) -> None:
    stalls = {f"stall_{stall}@ncu": 7.0, "stall_wait@ncu": 2.0, "stall_selected@ncu": 1.0}
    found = find({"gpu_time@ncu": 400e-6, "sm_clock@ncu": 1e9, "bank_conflicts@ncu": conflicts, **SLOW, **stalls})
    assert [f.rule for f in found] == [*order, "distance"]


@pytest.mark.parametrize(("padding", "layout"), [
    (0, "gl.SwizzledSharedLayout(4, 1, 8, [1, 0]): no conflict is left"),
    (2, "rows with 2 elements of padding (gl.PaddedSharedLayout): no conflict is left"),
])  # fmt: skip
def test_bank_conflicts_name_line_layout_and_its_bound(padding: int, layout: str) -> None:
    cure = {"vec": 4, "per_phase": 1, "max_phase": 8, "padding": padding, "order": 21}
    known = {"bank_conflicts": 20e6, "shared_wavefronts": 30e6, "conflict_line": 26, "conflicts_left": 0}
    known |= {f"cure_{name}": value for name, value in cure.items()}
    found = one(find({f"{name}@compiler": value for name, value in known.items()}, 0), "bank-conflicts")
    assert found.title.endswith("% of the cycles, most of them at line 26") and layout in found.remedy
    assert found.bound and found.bound.ratio > 1.5 and not found.measured


def test_late_cpu_ranks_by_its_ratio_in_its_own_clock():
    found = find({**SLOW, **MOVED}, {"interval@events": 8e-3, "graph_time@events": 5e-4})
    late = one(found, "late-cpu")
    assert late.bound and (late.bound.clock, late.bound.text) == ("interval", "16×")
    assert [f.rule for f in found] == ["late-cpu", "extra-bytes", "distance"]
    found = find({**SLOW, **MOVED}, {"interval@events": 5.28e-4})
    assert [f.rule for f in found] == ["extra-bytes", "late-cpu", "distance"]
    assert found[1].bound and found[1].bound.text == "1.32× by this alone"
    found = find({"gpu_time@torch_profiler": 105e-6}, {"interval@events": 1.3e-3, "graph_time@events": 1.05e-4})
    assert [f.rule for f in found] == ["late-cpu", "at-the-roof"]
    assert "late-cpu" not in rules(find({**SLOW, **MOVED}, {"interval@events": 4.1e-4}))


def test_no_bound_passes_the_floor() -> None:
    # 8x the bytes at 4x the floor's time: the floor is the lower of the two.
    found = find({**SLOW, **MOVED, "dram_bytes_read@ncu": 750 * MB})
    bound = one(found, "extra-bytes").bound
    assert bound and bound.ratio == pytest.approx(4)
    assert "floor" in bound.formula and "8×" in bound.formula


def test_a_bound_over_one_of_two_launches_follows_amdahl() -> None:
    rows = cost(flops=1)
    for launch, (seconds, used) in enumerate(((300e-6, 1), (100e-6, 0.25))):
        share = {f"sector_efficiency_{way}@interpreter": used for way in ("read", "written")}
        share |= {f"requested_bytes_{way}@interpreter": MB for way in ("read", "written")}
        rows += values({"gpu_time@torch_profiler": seconds, **share}, launch, stem="kernel_")
    finding, _, distance = advice.findings(schema.frame(rows), GPU)
    assert distance.rule == advice.DISTANCE
    assert (finding.rule, finding.launch, finding.function) == ("uncoalesced-loads", 1, "kernel_1")
    assert finding.bound and finding.bound.ratio == pytest.approx(1 / (0.75 + 0.25 / 4))
    assert not finding.measured


def test_launches_of_two_collectors_match_by_name() -> None:
    rows = [CASE.row("gpu_time", 1e-6, "ncu", launch=0, function="fill")]
    rows += [CASE.row("gpu_time", 100e-6, "ncu", launch=1, function="scale_kernel")]
    rows += [CASE.row("sectors_per_load", 16, "ncu", launch=1, function="scale_kernel")]
    rows += [CASE.row("widest_load", 4, "compiler", launch=0, function="scale_kernel")]
    found = advice.findings(schema.frame(rows), GPU)
    assert one(found, "uncoalesced-loads").launch == 1


@pytest.mark.parametrize(
    ("impl", "function", "told"),
    [
        ("triton", "scale_kernel", True),
        ("compile", "triton_poi_fused_mul_0", True),
        ("eager", "void at::native::vectorized_elementwise_kernel<4>", False),
        ("cublas", "nvjet_tst_128x256", False),
    ],
)
def test_a_library_s_own_kernels_are_left_alone(impl: str, function: str, told: bool) -> None:
    case = dataclasses.replace(CASE, impl=impl)
    at = {"launch": 0, "function": function}
    rows = [case.row(key.split("@")[0], value, "ncu", **at) for key, value in {**STALLS, **MOVED}.items()]
    rows += [case.row("spill_loads", 1000, "ncu", **at), *cost(case, flops=50 * MB)]
    found = rules(advice.findings(schema.frame(rows), GPU))
    # What the whole case moves is told of any implementation.
    assert found == {"extra-bytes", "distance"} | ({"longest-stall", "spills"} if told else set())


def test_register_remedy_names_a_count_that_fits() -> None:
    finding = one(find(OCCUPANCY), "register-pressure")
    assert "With 96 registers a thread instead of 128 an SM holds 5 blocks instead of 4" in finding.remedy
    assert finding.bound and finding.bound.ratio == pytest.approx(5 / 4)
    occupancy = OCCUPANCY["theoretical_occupancy@compiler"]
    assert finding.title == f"Registers hold occupancy at {100 * occupancy:.0f} %"
    held = {
        **OCCUPANCY,
        "occupancy_limit_registers@compiler": 9,
        "occupancy_limit_blocks@compiler": 2,
        "occupancy_limit_shared_memory@compiler": 2,
    }
    assert (
        one(find(held), "low-occupancy").title
        == f"Shared memory and block slots hold occupancy at {100 * occupancy:.0f} %"
    )
    rows = [*values(OCCUPANCY), *cost(read=1000, written=1000, flops=1000)]
    other = dataclasses.replace(GPU, target="sm_999")
    assert "register-pressure" in rules(advice.findings(schema.frame(rows), other))


def sweep(**times: tuple[float, float]) -> list[Finding]:
    """Findings of twenty repetitions each of configs, ``_`` the default: about a median of µs, so many µs up and down."""
    rows = [
        Case("scale", "triton", "forward", "1000x1000-fp32", "" if name == "_" else f"num_warps={name[1:]}").row(
            "gpu_time", (middle + apart * (sample % 5 - 2) / 2) * 1e-6, "torch_profiler", sample=sample, **AT
        )
        for name, (middle, apart) in times.items()
        for sample in range(20)
    ]
    return advice.findings(schema.frame(rows), GPU)


def test_quicker_config_is_named_with_both_times() -> None:
    (finding,) = sweep(_=(400, 4), w8=(390, 4), w4=(380, 2), w2=(500, 4))
    assert (finding.rule, finding.config, finding.measured) == ("quicker-config", "", True)
    assert finding.title == (
        "A config of the sweep takes 380.0 µs (378.0 µs to 382.0 µs), the default 400.0 µs (396.0 µs to 404.0 µs)"
    )
    assert finding.remedy.startswith("Pass config={'num_warps': 4} at 1000x1000-fp32, or make it the default")
    assert finding.bound and finding.bound.timed
    assert finding.bound.ratio == pytest.approx(400 / 380)
    # Less than what a mere bound must promise, as it was tried.
    assert [f.bound.ratio for f in sweep(_=(404.8, 0.2), w8=(400, 0.2)) if f.bound] == [pytest.approx(1.012)]


@pytest.mark.parametrize(
    "times",
    [
        {"_": (400, 60), "w8": (392, 60)},  # within the spread of both
        {"_": (403.2, 0.2), "w8": (400, 0.2)},  # beyond it, and no more than the same code timed twice differs by
        {"_": (400, 4), "w8": (420, 4)},
        {"w8": (400, 4), "w4": (300, 4)},  # no default to beat
        {"_": (400, 4)},
    ],
    ids=["noise", "no news", "slower", "no default", "no sweep"],
)
def test_sweep_without_a_clear_winner_is_silent(times: dict[str, tuple[float, float]]) -> None:
    assert sweep(**times) == []
