"""Measured roofs: the kernel that reads must read what it says, and one failing roof costs only itself."""

import os
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from tilescope.hardware import device

PROFILES = Path(device.__file__).parents[1]

#: Run where Triton interprets: (programs, chunks, steps, stride) and which chunks each program must then have summed.
INTERPRETED = """
import torch
from tilescope.execution import measured_rates as measure
CHUNK = 16
for programs, chunks, steps, stride, expected in (
    (2, 8, 4, 2, [[0, 2, 4, 6], [1, 3, 5, 7]]),
    (3, 4, 6, 1, [[0, 1, 2, 3, 0, 1], [1, 2, 3, 0, 1, 2], [2, 3, 0, 1, 2, 3]]),
    (2, 2, 3, 0, [[0, 1, 0], [2, 3, 2]]),
):
    total = chunks * (1 if stride else programs)
    source = torch.arange(total * CHUNK, dtype=torch.int32)
    sums = torch.empty(programs, dtype=torch.int32)
    measure._read[(programs,)](source, sums, chunks, steps, CHUNK, stride, "")
    by_chunk = source.view(total, CHUNK).sum(1)
    assert sums.tolist() == [int(by_chunk[e].sum()) for e in expected], (stride, sums, expected)
print("read what was expected")
"""


def test_the_reading_kernel_reads_every_chunk_it_counts() -> None:
    environment = {**os.environ, "TRITON_INTERPRET": "1", "PYTHONPATH": str(PROFILES)}
    done = subprocess.run(
        [sys.executable, "-c", INTERPRETED], env=environment, capture_output=True, text=True, check=False
    )
    assert done.stdout == "read what was expected\n", done.stderr


def test_a_roof_that_fails_is_absent(monkeypatch: pytest.MonkeyPatch) -> None:
    import torch
    from tilescope.execution import measured_rates
    from tilescope.table.run import Ceiling

    def broken(seconds: measured_rates.Time) -> Ceiling:
        raise RuntimeError("no fp8 here")

    good = Ceiling("hbm", 1e12, "byte/second", "measured")
    monkeypatch.setattr(measured_rates, "_roofs", lambda: iter([("fp8", broken), ("copy", lambda seconds: good)]))
    monkeypatch.setattr(measured_rates, "_load", lambda: None)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)
    told: list[str] = []
    assert measured_rates.measure(told.append) == [good]
    assert told == ["fp8", "copy"]


def test_all_is_compiled_and_loaded_before_anything_is_timed(monkeypatch: pytest.MonkeyPatch) -> None:
    import torch
    import triton
    from tilescope.execution import measured_rates

    happened: list[tuple[str, bool, bool]] = []
    read = threading.Event()

    def roof(name: str) -> Callable[..., None]:
        def made(*of: Any) -> None:
            pipe, timed = (*of[:-1], ""), of[-1] is measured_rates._seconds
            happened.append((name + pipe[0], timed, threading.current_thread() is threading.main_thread()))
            if "read" in name:
                assert read.is_set(), "Triton would be read twice"
                raise RuntimeError("not here")

        return made

    for name in ("_hbm_copy", "_hbm_read", "_l2_read", "_l1_read", "_product"):
        monkeypatch.setattr(measured_rates, name, roof(name))
    monkeypatch.setattr(measured_rates, "triton_key", read.set)
    monkeypatch.setattr(triton.runtime.driver, "_active", SimpleNamespace(get_current_device=lambda: 0))
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)
    measured_rates.measure()
    loaded, timed = happened[:11], happened[11:]
    assert [name for name, *_ in timed] == [
        "_hbm_copy", "_hbm_read", "_l2_read", "_l1_read", *(f"_product{pipe}" for pipe in measured_rates._PRODUCTS),
    ]  # fmt: skip
    assert sorted(name for name, *_ in loaded) == sorted(name for name, *_ in timed)
    assert all(at_once and here for _, at_once, here in timed)
    assert {name for name, _, here in loaded if not here} == {"_hbm_read", "_l2_read", "_l1_read"}


def test_every_pipe_has_a_product() -> None:
    from tilescope.execution import measured_rates

    names = [doing for doing, _ in measured_rates._roofs()]
    assert [name.removeprefix("cuBLAS ") for name in names[4:]] == [
        "bf16", "fp16", "tf32", "fp32", "fp64", "fp8", "int8",
    ]  # fmt: skip


@pytest.mark.gpu
@pytest.mark.skipif(device.unavailable() is not None, reason=str(device.unavailable()))
def test_measured_roofs_stay_below_the_datasheet() -> None:
    import torch
    from tilescope.execution import measured_rates

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
