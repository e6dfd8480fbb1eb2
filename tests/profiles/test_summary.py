"""The summary's values, and that its sentence agrees with them."""

import dataclasses

import pandas as pd
import pytest
from tilescope.models import advice, roofline, summary
from tilescope.table import schema, units
from tilescope.table.case import Case
from tilescope.table.run import Ceiling

from . import made_up

CASE = Case("softmax", "triton", "forward", "16384x4096-bf16")
EAGER = Case("softmax", "eager", "forward", "16384x4096-bf16")

#: 1 TB/s, 10 Tflop/s fp32, 100 Tflop/s bf16.
TOY = made_up.gpu("toy", hbm=1e12, sheet_fp32=10e12, bf16=100e12)


def rows(case=CASE, *, time=(), flops=1e8, needed=1e9, **counted):
    """Rows of a case with these flops and bytes: one launch for each time, and ncu's counters on the first."""
    return [
        *made_up.cost(case, needed / 2, needed / 2, flops),
        *(
            case.row("gpu_time", t, "torch_profiler", launch=n, function=f"k{n}", sample=i)
            for i in range(5)
            for n, t in enumerate(time)
        ),
        *(case.row(name, value, "ncu", launch=0, function="k0") for name, value in counted.items()),
    ]


def one(table_rows, **more):
    found = summary.summarise(schema.validate(schema.frame(table_rows)), TOY, **more)
    assert len(found) == 1
    row: pd.Series = found.iloc[0]
    return row


def test_memory_bound_with_nothing_left():
    row = one(rows(time=(1.05e-3,), dram_bytes_read=5.1e8, dram_bytes_written=5.1e8))
    assert row["bound"] == "memory"
    assert row["floor"] == pytest.approx(1e-3)
    assert row["floor_fraction"] == pytest.approx(1 / 1.05)
    assert row["bytes_ratio"] == pytest.approx(1.02)
    assert row["why"] == (
        "Memory-bound: it reaches 97.1 % of the measured copy bandwidth. It moves 1.02× the bytes the algorithm needs. "
        "Only fusing with the operation before or after would make it faster."
    )


def test_what_only_reads_is_held_against_the_read_bandwidth():
    faster = Ceiling("hbm_read", 1.25e12, "byte/second", "measured")
    both = dataclasses.replace(TOY, ceilings=(*TOY.ceilings, faster))
    for written, roof, floor in ((0.0, "hbm_read", 0.8e-3), (2e7, "hbm_read", 0.8e-3), (3e7, "hbm", 1e-3)):
        table = [
            *made_up.cost(CASE, 1e9 - written, written, 1e8),
            CASE.row("gpu_time", 1e-3, "torch_profiler", launch=0, function="k", sample=0),
        ]
        frame = schema.validate(schema.frame(table))
        (row,) = summary.summarise(frame, both).to_dict("records")
        assert (row["memory_roof"], row["floor"]) == (roof, pytest.approx(floor))
        assert row["bandwidth_fraction"] == pytest.approx(floor / 1e-3)
        kind = "read" if roof == "hbm_read" else "copy"
        assert f"{units.text(floor / 1e-3, 'ratio')} of the measured {kind} bandwidth" in row["why"]
        assert summary.summarise(frame, TOY)["memory_roof"].tolist() == ["hbm"]
        (point,) = roofline.points(frame, both).to_dict("records")
        assert point["fraction"] == pytest.approx(floor / 1e-3)


def test_memory_bound_with_waste():
    table = rows(time=(2e-3, 2e-3)) + [
        CASE.row(f"dram_bytes_{way}", 1e9, "ncu", launch=n, function=f"k{n}")
        for n in (0, 1)
        for way in ("read", "written")
    ]
    row = one(table)
    assert row["launches"] == 2
    assert row["gpu_time"] == pytest.approx(4e-3)
    assert "moves 4× the bytes" in row["why"]
    assert "If its 2 launches can be one, it could be up to 4× faster" in row["why"]


def test_chain_within_l2_is_marked_as_counted_cold():
    chain = [
        *rows(time=(0.6e-6, 0.6e-6), flops=1e5, needed=1e6),
        *(
            CASE.row(f"dram_bytes_{way}", 0.45e6, "ncu", launch=n, function=f"k{n}")
            for n in (0, 1)
            for way in ("read", "written")
        ),
    ]
    row = one(chain)
    assert row["bytes_cold"]
    assert "each launch counted with cold caches" in row["why"]
    assert "faster" not in row["why"]
    found = advice.findings(schema.frame(chain), TOY)
    assert "extra-bytes" not in {finding.rule for finding in found}
    # Counted as a whole, with what one launch leaves to the next, it says what a call moves.
    whole = [CASE.row(f"dram_bytes_{way}", 0.5e6, "ncu") for way in ("read", "written")]
    counted = one(chain + whole)
    assert (counted["bytes_cold"], counted["bytes_ratio"]) == (False, pytest.approx(1.0))


def test_summary_says_what_binds():
    row = one(rows(time=(1.25e-3,)))
    assert (row["bound"], row["bytes_source"]) == ("memory", "")
    assert "80.0 % of the measured copy bandwidth; no counters" in row["why"]
    row = one(rows(time=(1.25e-2,), flops=1e12))
    assert (row["bound"], row["pipe"]) == ("compute", "bf16")
    assert row["performance"] == pytest.approx(80e12)
    assert row["why"] == "Compute-bound: 80.0 Tflop/s is 80.0 % of the measured bf16 rate."
    row = one(rows(time=(2e-6, 2e-6), needed=1e4, flops=1e3))
    assert row["bound"] == "latency"
    assert row["why"].startswith("Launch-bound: 2 launches of 2.00 µs where the work needs 10.0 ns")
    row = one([*rows(), *(CASE.row("graph_time", 2e-3, "events", sample=n) for n in range(3))])
    assert not row["measured"]
    assert row["graph_time"] == 2e-3
    assert row["why"].startswith("Timed by events only: 2.00 ms a call, where the floor is 1.00 ms (50.0 %)")
    table = [*rows(time=(1e-3,)), CASE.row("relative_error", 0.5, "events"), CASE.row("tolerance", 1e-2, "events")]
    assert one(table)["why"].startswith("Wrong: the error against the reference, 0.5, is above 0.01.")
    table = rows(time=(1e-4, 9e-4)) + [
        CASE.row("registers", n, "torch_profiler", launch=i, function=f"k{i}") for i, n in enumerate((255, 32))
    ]
    assert one(table)["registers"] == 32


def test_latency_bound_case_names_limiter_and_stall():
    limits = {"registers": 1, "shared_memory": 3, "warps": 8, "blocks": 32}
    row = one(
        rows(
            time=(4e-3,),
            theoretical_occupancy=0.125,
            stall_long_scoreboard=0.85,
            stall_wait=0.1,
            stall_selected=20.0,
            **{f"occupancy_limit_{name}": value for name, value in limits.items()},
        )
    )
    assert (row["bound"], row["limiter"], row["blocks"]) == ("latency", "registers", 1)
    assert row["why"] == (
        "Latency-bound: neither memory (25.0 %) nor fp32 arithmetic (0.25 %) is busy; 12.5 % occupancy: 1 block an "
        "SM, limited by registers; warps wait longest on data from L2 or HBM."
    )


def test_prediction_says_that_it_is_one():
    table = [
        *rows(),
        *(
            CASE.row(name, value, "compiler", launch=0, function="k0")
            for name, value in {
                "registers": 64, "theoretical_occupancy": 0.5, "occupancy_limit_registers": 4,
                "occupancy_limit_shared_memory": 4, "occupancy_limit_warps": 8, "spill_bytes_stored": 8,
                "spill_bytes_loaded": 8,
            }.items()
        ),
        CASE.row("unique_bytes_read", 5e8, "interpreter", launch=0, function="k0"),
        CASE.row("unique_bytes_written", 5e8, "interpreter", launch=0, function="k0"),
    ]  # fmt: skip
    row = one(table)
    assert not row["measured"]
    assert pd.isna(row["gpu_time"])
    assert (row["bound"], row["registers"], row["limiter"]) == ("memory", 64, "registers, shared memory")
    assert row["why"] == (
        "Predicted, not measured: memory-bound, at least 1.00 ms at the measured HBM bandwidth of toy; its launches touch "
        "1× the bytes the algorithm needs; 50.0 % occupancy: 4 blocks an SM, limited by registers and shared memory; "
        "it spills 16 B a thread."
    )


@pytest.mark.parametrize(("time", "interval", "late"), [
    (1e-3, 1.25e-3, False), (1e-3, 1.35e-3, True),  # from 1.3 times the GPU's time on
    (2e-6, 8e-6, False),  # events around a kernel of 2 us read a few microseconds more: that is the events, not the CPU
    (10e-6, 19e-6, False), (10e-6, 21e-6, True),  # and from 10 us on
])  # fmt: skip
def test_late_cpu(time, interval, late):
    clocks = [CASE.row("interval", interval, "events", sample=n) for n in range(3)]
    row = one([*rows(time=(time,), needed=1e4), *clocks])
    assert row["cpu_bound"] == late
    assert ("Launch overhead: the call takes" in row["why"]) == late


@pytest.mark.parametrize(("moved", "said"), [
    (1.12, "Reading each byte once would by itself make it 1.12× faster"), (1.08, "Only fusing with"),
    (0.88, "reaches 90.9 % of the measured copy bandwidth. It moves 12 % less than its inputs and outputs: that part was still in L2"), (0.93, "7.0 % less"), (0.93, "Only fusing with"),
])  # fmt: skip
def test_a_tenth_more_or_less_bytes_are_worth_a_word(moved, said):
    # Of 8 MB L2 keeps one at most, and that of the output.
    counted = {"dram_bytes_read": 4e6, "dram_bytes_written": 8e6 * moved - 4e6}
    assert said in one(rows(time=(8.8e-6,), needed=8e6, flops=1e5, **counted))["why"]


def test_speedups_are_against_the_same_source():
    table = [*rows(time=(1e-3,)), *rows(EAGER, time=(1.5e-3, 1.5e-3))]
    found = summary.summarise(schema.frame(table), TOY).set_index("impl")
    assert found.loc["triton", "speedup_eager"] == pytest.approx(3.0)
    assert pd.isna(found.loc["eager", "speedup_eager"])
    assert found["speedup_compile"].isna().all()


def test_the_quickest_library_is_named_and_none_is_made_up():
    def peer(impl, *time):
        return rows(dataclasses.replace(CASE, impl=impl), time=time)

    table = [
        *rows(time=(1e-3,)), *rows(EAGER, time=(3e-3,)), *peer("liger", 1.5e-3), *peer("cce", 1.2e-3), *peer("fa2"),
    ]  # fmt: skip
    found = summary.summarise(schema.frame(table), TOY).set_index("impl")
    ratios = {impl: (row["library"], pytest.approx(row["speedup_library"])) for impl, row in found.iterrows()}
    assert ratios == {"triton": ("cce", 1.2), "eager": ("cce", 0.4), "liger": ("cce", 0.8), "cce": ("liger", 1.25),
                      "fa2": ("", pytest.approx(float("nan"), nan_ok=True))}  # fmt: skip
    alone = summary.summarise(schema.frame([*rows(time=(1e-3,)), *rows(EAGER, time=(3e-3,))]), TOY)
    assert set(alone["library"]) == {""} and alone["speedup_library"].isna().all()


def test_no_cost_no_verdict():
    row = one([r for r in rows(time=(1e-3,)) if r["source"] != "model"])
    assert row["bound"] == ""
    assert row["why"] == "Takes 1.00 ms of GPU time; no cost is declared to compare it with."
    row = one([CASE.row("registers", 32, "compiler", launch=0, function="k")])
    assert (row["why"], row["registers"]) == ("", 32)


def test_empty_table():
    found = summary.summarise(schema.frame([]), TOY)
    assert found.empty
    assert list(found.columns) == list(summary.COLUMNS)
