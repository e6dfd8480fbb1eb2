"""Roofs that cases of a run exceed are no roofs: they are raised to the best that was reached, and to no more than can be."""

import dataclasses

import pytest
from tilescope.hardware import ceilings
from tilescope.models import claims, roofline, summary
from tilescope.runs import raised_roofs, recordings, store
from tilescope.table import schema
from tilescope.table.case import Case
from tilescope.table.run import Ceiling, Device, Run

from . import made_up

#: 1 TB/s copied and 1.1 read, of 1.5 on paper; an L2 of 1 MB.
TOY = Device(
    "toy", "sm_90", 10, 1_000_000, 1 << 30, True,
    (
        Ceiling("hbm", 1.5e12, "byte/second", "datasheet"),
        Ceiling("int8", 200e12, "flop/second", "datasheet"),
        Ceiling("hbm", 1e12, "byte/second", "measured", "a copy"),
        Ceiling("hbm_read", 1.1e12, "byte/second", "measured", "a read"),
        Ceiling("int8", 90e12, "flop/second", "measured", "cuBLAS"),
        Ceiling("fp32", 10e12, "flop/second", "measured"),
    ),
)  # fmt: skip
COPY = Case("copy", "triton", "forward", "1-fp32")
PRODUCT = Case("mm", "triton", "forward", "2-int8")
INT8 = {"mm": {"cost": {"2-int8": {"forward": {"pipe": "int8"}}}}}


def case(of, seconds, read, written, flops=1.0):
    return [
        *made_up.cost(of, read, written, flops),
        of.row("gpu_time", seconds, "torch_profiler", launch=0, function="f", sample=0),
    ]


def roofs(*rows, device=TOY):
    return raised(*rows, device=device).device


def raised(*rows, device=TOY):
    return raised_roofs.raised(Run("r", "2026-01-01T00:00:00+00:00", device, INT8, {}, {}), schema.frame(list(rows)))


def test_roof_is_raised_to_the_fastest_case():
    # 120 MB in 100 us: 1.2 TB/s.
    found = roofs(*case(COPY, 100e-6, 60e6, 60e6)).ceiling("hbm", "measured")
    assert found and found.value == pytest.approx(1.2e12)
    assert found.note == "best case of this run: copy triton forward 1-fp32; 1.00 TB/s by a copy"
    # What reads is at least as fast.
    read = roofs(*case(COPY, 100e-6, 60e6, 60e6)).ceiling("hbm_read", "measured")
    assert read and read.value == pytest.approx(1.2e12)
    assert read.note.startswith("no less than a copy")


@pytest.mark.parametrize("rows", [
    case(COPY, 130e-6, 60e6, 60e6),  # slower than the copy
    case(COPY, 1e-6, 0.9e6, 0.9e6),  # fits in L2
    case(COPY, 4e-6, 2.4e6, 2.4e6),  # hardly longer than a launch
    # Whole tensors, of which it may have moved a part.
    [*case(COPY, 100e-6, 60e6, 60e6), COPY.row("tensor_bytes", 120e6, "model")],
    [*case(COPY, 100e-6, 60e6, 60e6), COPY.row("relative_error", 0.1, "check"), COPY.row("tolerance", 0.01, "check")],
])  # fmt: skip
def test_roof_is_kept_for_other_cases(rows):
    assert roofs(*rows).ceiling("hbm", "measured") == TOY.ceiling("hbm", "measured")


def test_roof_of_int8_is_the_best_product():
    found = roofs(*case(PRODUCT, 1e-3, 1e6, 1e6, 130e9)).ceiling("int8", "measured")
    assert found and (found.value, found.unit) == (pytest.approx(130e12), "op/second")
    assert "90.0 TOP/s by cuBLAS" in found.note


@pytest.mark.parametrize(("flops", "roof", "remarks"), [(205e9, 200e12, 0), (250e9, 90e12, 1)])
def test_roof_is_never_above_the_datasheet(flops, roof, remarks):
    run = raised(*case(PRODUCT, 1e-3, 1e6, 1e6, flops))
    found = run.device.ceiling("int8", "measured")
    assert found and found.value == pytest.approx(roof)
    assert len(run.notes) == remarks
    if remarks:
        assert run.notes[0].startswith(
            "impossible: mm triton forward 2-int8: 250 TOP/s is above the datasheet's 200 TOP/s"
        )


def test_roof_of_a_listed_product_has_todays_datasheet():
    """Recordings hold fp64's rate on CUDA cores, 34 Tflop/s, of which cuBLAS measures 184 %."""
    old = dataclasses.replace(TOY, name="NVIDIA H200", ceilings=(
        Ceiling("fp64", 34e12, "flop/second", "datasheet"), Ceiling("fp64", 62e12, "flop/second", "measured")))  # fmt: skip
    found = roofs(device=old)
    sheet, measured = (found.ceiling("fp64", origin) for origin in ("datasheet", "measured"))
    assert sheet and measured and measured.value <= sheet.value == 67e12


def test_datasheet_units_suit_their_pipes():
    for ceiling in (ceiling for product in ceilings.PRODUCTS for ceiling in product.ceilings):
        compute = "op/second" if ceiling.name == "int8" else "flop/second"
        assert ceiling.unit == ("byte/second" if ceiling.name in ceilings.MEMORY_LEVELS else compute)


def test_roof_of_a_predicted_run_is_the_datasheets():
    predicted = dataclasses.replace(TOY, measured=False)
    assert roofs(*case(COPY, 100e-6, 60e6, 60e6), device=predicted).ceiling("hbm", "measured") == TOY.ceiling(
        "hbm", "measured"
    )


@pytest.mark.parametrize("kernel", ["int8_rows", "rms_norm", "softmax"])
def test_recording_passes_no_roof_and_claims_the_same_share(kernel):
    loaded = store.open_run(recordings.of_kernel(kernel)[0].path)
    device = loaded.run.device
    rows = summary.summarise(loaded.table, device, loaded.run.kernels)
    timed = rows[rows["measured"] & (rows["gpu_time"] >= 5e-6)]
    # The L2 keeps a part of so few bytes, which therefore show nothing of HBM, but for those that were counted there.
    few = timed["bytes"] <= 2 * device.l2_bytes
    reached = timed["floor_fraction"] * timed["bytes_ratio"].fillna(1).clip(upper=1)
    assert not (timed["floor_fraction"] > 1.0001).where(~few, reached > 1.02).any()
    for ceiling in device.ceilings:
        sheet = device.ceiling(ceiling.name.removesuffix("_read"), "datasheet")
        assert sheet is None or ceiling.value <= sheet.value, ceiling
    assert not [note for note in loaded.run.notes if note.startswith("impossible")]
    points = roofline.points(loaded.table, device, loaded.run.kernels)
    whole = points[(points["kind"] == "algorithm") & points["launch"].isna()]
    keys = ["kernel", "impl", "pass", "workload", "config"]
    both = rows.merge(whole, on=keys, suffixes=("", "_point"))
    known = both[both["floor_fraction"].notna()]
    assert len(known) and (known["fraction"] - known["floor_fraction"]).abs().max() < 1e-9
    for claim in claims.of_run(loaded):
        row = rows[(rows["kernel"] == claim["kernel"]) & (rows["impl"] == "triton") & (rows["pass"] == claim["pass"])
                   & (rows["workload"] == claim["workload"]) & (rows["config"] == "")].iloc[0]  # fmt: skip
        assert (claim["of_roof"], claim["roof"]) == (pytest.approx(row["floor_fraction"]), row["roof"])
