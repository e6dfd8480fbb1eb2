"""A device and a driver have one measured roof in every run. What passes it is above 100 %, with the reason."""

import dataclasses
import json
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import torch
from tilescope.execution import assumed_device, launches, measured_rates
from tilescope.hardware import ceilings, device, roofs
from tilescope.interpreter import interpret
from tilescope.models import advice, claims, roofline, summary
from tilescope.runs import device_roofs, store
from tilescope.table import schema
from tilescope.table.case import Case
from tilescope.table.run import Ceiling, Device, Run

from . import made_up

DRIVER = "580.1"
COPY = Ceiling("hbm", 1e12, "byte/second", "measured", "a copy", DRIVER, "2026-01-01T00:00:00+00:00")
READ = dataclasses.replace(COPY, name="hbm_read", value=1.1e12, note="a read")
TOY = made_up.gpu("toy", sheet_hbm=1.5e12, hbm=1e12, hbm_read=1.1e12, int8=9e13, sheet_int8=2e14, fp32=1e13)
CASE = Case("copy", "triton", "forward", "1-fp32")


def run(*measured: Ceiling, driver: str = DRIVER, **device: Any) -> Run:
    sheet = tuple(roof for roof in TOY.ceilings if roof.origin == "datasheet")
    gpu = dataclasses.replace(TOY, ceilings=(*sheet, *measured), **device)
    return made_up.run(device=gpu, versions={"driver": driver})


def written(folder: Path, *runs: Run) -> Path:
    for number, one in enumerate(runs):
        (folder / str(number)).mkdir(parents=True)
        (folder / str(number) / "run.json").write_text(json.dumps(one.to_json()))
    device_roofs.keep(folder)
    return folder


def measured(one: Run, folder: Path) -> dict[str, Ceiling]:
    device = device_roofs.settled(one, folder).device
    return {roof.name: roof for roof in device.ceilings if roof.origin == "measured"}


def test_runs_of_a_driver_share_the_best_recorded_roofs(tmp_path: Path) -> None:
    faster = dataclasses.replace(COPY, value=1.05e12, date="2026-01-02T00:00:00+00:00")
    folder = written(tmp_path, run(COPY, READ), run(faster))
    for own in ((COPY,), (dataclasses.replace(COPY, value=1.3e12),), ()):
        assert measured(run(*own), folder) == {"hbm": faster, "hbm_read": READ}
    assert measured(run(COPY, name="other"), folder) == {"hbm": COPY}
    other = dataclasses.replace(COPY, driver="590.1")
    assert measured(run(other, driver="590.1"), folder) == {"hbm": other}
    assert measured(run(COPY, measured=False), folder) == {}


def test_datasheet_roofs(tmp_path: Path) -> None:
    product = Ceiling("int8", 9e13, "op/second", "measured", "cuBLAS")
    found = roofs.roof(device_roofs.settled(run(product), tmp_path).device, "int8")
    assert found and (found.value, found.origin) == (2e14, "datasheet")
    # Recordings hold fp64's rate on CUDA cores.
    old = dataclasses.replace(TOY, name="NVIDIA H200", ceilings=(Ceiling("fp64", 34e12, "flop/second", "datasheet"),))
    found = device_roofs.settled(made_up.run(device=old), tmp_path).device.ceiling("fp64", "datasheet")
    assert found and found.value == 67e12
    for ceiling in (ceiling for product in ceilings.PRODUCTS for ceiling in product.ceilings):
        compute = "op/second" if ceiling.name == "int8" else "flop/second"
        assert ceiling.unit == ("byte/second" if ceiling.name in ceilings.MEMORY_LEVELS else compute)


def test_disturbed_reading_roof_is_that_of_copying() -> None:
    def roof(read: float) -> float:
        device = made_up.gpu(hbm=1e12, hbm_read=read)
        rows = schema.frame([*made_up.cost(CASE, 1e9, 1e3), *made_up.values({"gpu_time@ncu": 1e-3}, of=CASE)])
        return float(summary.summarise(rows, device)["floor_fraction"].iloc[0])

    assert (roof(1.25e12), roof(0.9e12)) == (pytest.approx(0.8, rel=1e-3), pytest.approx(1, rel=1e-3))


def rows(read: float, written_bytes: float, time: float, flops: float = 1.0, **counted: float) -> pd.DataFrame:
    values = {"gpu_time@torch_profiler": time, **{f"{name}@ncu": value for name, value in counted.items()}}
    return schema.frame([*made_up.cost(CASE, read, written_bytes, flops), *made_up.values(values, of=CASE)])


@pytest.mark.parametrize(("table", "reason"), [
    # 1.2 TB/s where a copy has 1.
    (rows(80e6, 40e6, 100e-6), "part of its results may have stayed in L2 and it reads more than it writes, which is faster than a copy"),
    (rows(60e6, 60e6, 100e-6, dram_bytes_read=60e6, dram_bytes_written=59e6), "part of its results stayed in L2"),
    (rows(60e6, 60e6, 100e-6, dram_bytes_read=60e6, dram_bytes_written=60e6), "the program that measured the roof is not the fastest"),
    (rows(60e6, 60e6, 121e-6), ""),
    (rows(60e6, 60e6, 500e-6, flops=6e9), "cuBLAS, which measured it, is not the fastest here"),
])  # fmt: skip
def test_share_above_100_percent_has_its_reason(table: pd.DataFrame, reason: str) -> None:
    (row,) = summary.summarise(table, TOY).to_dict("records")
    assert (f"({reason})" in row["why"]) == bool(reason) == (row["floor_fraction"] > 1)
    titles = [finding.title for finding in advice.findings(table, TOY)]
    assert not reason or any(title.startswith("At the ") and f"({reason})" in title for title in titles)


def test_kept_roofs_are_those_of_the_recordings() -> None:
    recorded = store.recorded_dir()
    best = device_roofs.best(recorded)
    assert best
    for name, drivers in best.items():
        for driver, expected in drivers.items():
            kept = device_roofs.shared(Device(name, "", 0, 0, 0, True), driver, recorded)
            assert kept == expected, "run: tilescope recordings claims --keep"
            assert all(roof.driver == driver and roof.date and roof.note for roof in kept)


def test_recordings_have_one_roof_and_pass_it_with_a_reason(recordings: list[store.LoadedRun]) -> None:
    assert len({loaded.run.device.ceilings for loaded in recordings}) == 1
    for loaded in recordings:
        device = loaded.run.device
        table = loaded.table[loaded.table["config"] == ""]
        rows = summary.summarise(table, device, loaded.run.kernels)
        above = rows[rows["floor_fraction"] >= 1.005]
        assert above["why"].str.contains(r"\((?:part of its|it reads|the program|cuBLAS)").all()
        # The datasheet's rates are limits.
        assert (rows["least_time"] < rows["gpu_time"]).where(rows["floor_fraction"].notna(), True).all()
        assert not [note for note in loaded.run.notes if note.startswith("impossible")]


def test_claims_and_roofline_have_the_summarys_share(recording: store.LoadedRun) -> None:
    device, kernels = recording.run.device, recording.run.kernels
    rows = summary.summarise(recording.table, device, kernels)
    points = roofline.points(recording.table, device, kernels)
    whole = points[(points["kind"] == "algorithm") & points["launch"].isna()]
    keys = ["kernel", "impl", "pass", "workload", "config"]
    both = rows.merge(whole, on=keys, suffixes=("", "_point"))
    known = both[both["floor_fraction"].notna()]
    assert len(known) and (known["fraction"] - known["floor_fraction"]).abs().max() < 1e-9
    for claim in claims.of_run(recording):
        row = rows[(rows["kernel"] == claim["kernel"]) & (rows["impl"] == "triton") & (rows["pass"] == claim["pass"])
                   & (rows["workload"] == claim["workload"]) & (rows["config"] == "")].iloc[0]  # fmt: skip
        assert (claim["of_roof"], claim["roof"]) == (pytest.approx(row["floor_fraction"]), row["roof"])


MEBIBYTE = 1 << 20
CHUNK = 16


@pytest.mark.parametrize(("programs", "chunks", "steps", "stride", "expected"), [
    (2, 8, 4, 2, [[0, 2, 4, 6], [1, 3, 5, 7]]),
    (3, 4, 6, 1, [[0, 1, 2, 3, 0, 1], [1, 2, 3, 0, 1, 2], [2, 3, 0, 1, 2, 3]]),
    (2, 2, 3, 0, [[0, 1, 0], [2, 3, 2]]),
])  # fmt: skip
def test_read_chunks_reads_every_chunk_it_counts(programs, chunks, steps, stride, expected):
    total = chunks * (1 if stride else programs)
    source, sums = torch.arange(total * CHUNK, dtype=torch.int32), torch.empty(programs, dtype=torch.int32)
    with launches.catch(interpret.run):
        measured_rates.read_chunks[(programs,)](source, sums, chunks, steps, CHUNK, stride, "")
    by_chunk = source.view(total, CHUNK).sum(1)
    assert sums.tolist() == [int(by_chunk[read].sum()) for read in expected]


@pytest.mark.skipif(torch.cuda.is_available(), reason="a GPU is here, which would be measured")
def test_measure_counts_every_byte_and_operation(monkeypatch):
    """Every call takes a millisecond. One product is refused."""
    sizes: list[int] = []

    def product(size):
        sizes.append(size)
        return lambda: None

    def refused(size):
        raise RuntimeError("no fp8 here")

    products = {"bf16": (product, "highest"), "int8": (product, "highest"), "fp8": (refused, "highest")}
    with assumed_device.assumed("sm_86"), launches.catch() as caught, monkeypatch.context() as patch:
        patch.setattr(measured_rates, "intervals", lambda run, repetitions: [run(), 1e-3][1:])
        patch.setattr(measured_rates, "PRODUCTS", products)
        patch.setattr(torch.cuda, "mem_get_info", lambda: (4 * MEBIBYTE, 4 * MEBIBYTE))
        patch.setattr(torch.cuda, "_sleep", lambda cycles: None)
        found = {roof.name: roof for roof in measured_rates.measure()}
    assert list(found) == ["hbm", "hbm_read", "l2", "l1", "bf16", "int8"]
    assert found["hbm"].value == pytest.approx(2 * MEBIBYTE / 1e-3)
    assert "1,048,576 bytes, read + written" in found["hbm"].note
    assert found["hbm_read"].value == pytest.approx(MEBIBYTE / 1e-3)
    read = {(given["source"].nbytes, given["steps"], launch.grid[0]): launch for launch in caught
            for given in [launch.arguments]}  # fmt: skip
    for roof, (_, steps, programs) in zip(("hbm_read", "l2", "l1"), read, strict=True):
        assert found[roof].value == pytest.approx(steps * programs * 4096 * 4 / 1e-3)
    # All sizes take equally long here: the largest has the highest rate.
    assert found["bf16"].value == found["int8"].value == pytest.approx(2 * max(sizes) ** 3 / 1e-3)
    assert (found["bf16"].unit, found["int8"].unit) == ("flop/second", "op/second")


@pytest.mark.gpu
@pytest.mark.skipif(device.unavailable() is not None, reason=str(device.unavailable()))
def test_measured_roofs_stay_below_the_datasheet():
    found = {ceiling.name: ceiling.value for ceiling in measured_rates.measure()}
    seen = device.detect()
    assert seen is not None
    assert {"hbm", "hbm_read", "l2", "bf16", "fp32"} <= set(found)
    assert found["hbm"] < found["l2"]
    for name, value in found.items():
        sheet = seen.ceiling(name, "datasheet")
        if sheet and name != "fp64":  # the datasheet's fp64 is the CUDA cores'; cuBLAS uses tensor cores
            assert 0.3 * sheet.value < value < 1.02 * sheet.value, name
    assert torch.get_float32_matmul_precision() == "highest"
