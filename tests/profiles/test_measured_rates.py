"""Measured roofs count every byte that moves and every operation, over the time of the call."""

import pytest
import torch
from tilescope.execution import assumed_device, launches, measured_rates
from tilescope.hardware import device
from tilescope.interpreter import interpret

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
    doing: list[str] = []
    with assumed_device.assumed("sm_86"), launches.catch() as caught, monkeypatch.context() as patch:
        patch.setattr(measured_rates, "intervals", lambda run, repetitions: [run(), 1e-3][1:])
        patch.setattr(measured_rates, "PRODUCTS", products)
        patch.setattr(torch.cuda, "mem_get_info", lambda: (4 * MEBIBYTE, 4 * MEBIBYTE))
        patch.setattr(torch.cuda, "_sleep", lambda cycles: None)
        found = {roof.name: roof for roof in measured_rates.measure(doing.append)}
    assert doing[4:] == ["cuBLAS bf16", "cuBLAS int8", "cuBLAS fp8"]
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
