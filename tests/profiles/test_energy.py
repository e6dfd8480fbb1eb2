"""Energy by NVML's counter: of a step, and of a kernel's call."""

import json
import sys
import types

import pandas as pd
import pytest
from tilescope.collectors import energy, load
from tilescope.collectors import energy as collector
from tilescope.hardware import device
from tilescope.models import summary, text_table
from tilescope.table import schema
from tilescope.table.case import Case

CASE = Case("softmax", "triton", "forward", "8x8-fp32")


@pytest.fixture
def counter(monkeypatch, cuda, clock):
    """A GPU of 400 W whose counter moves every 20 ms of the clock."""
    began = clock.now

    def joules(handle):
        return int((clock.now - began) / 0.02) * 0.02 * 400 * 1e3

    nvml = types.SimpleNamespace(
        nvmlInit=lambda: None, nvmlShutdown=lambda: None, NVMLError=RuntimeError, nvmlDeviceGetCount=lambda: 1, NVML_CLOCK_SM=1,
        nvmlDeviceGetHandleByIndex=lambda index: index, nvmlDeviceGetTotalEnergyConsumption=joules,
        nvmlDeviceGetEnforcedPowerLimit=lambda handle: 700e3, nvmlDeviceGetClockInfo=lambda handle, kind: 1980,
    )  # fmt: skip
    monkeypatch.setitem(sys.modules, "pynvml", nvml)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    cuda({"synchronize": lambda: None})
    return clock


def test_energy_is_counted_from_move_to_move(counter):
    times = 0

    def call():
        nonlocal times
        times += 1
        counter.now += 3e-3

    found = energy.of(call)
    assert counter.now > energy.LONG and times > 100
    # A time takes 3 ms at 400 W.
    assert found["energy"] == pytest.approx(1.2, rel=0.02)
    assert found["power"] == pytest.approx(400, rel=0.02)
    assert (found["power_limit"], found["sm_clock"]) == (700, 1.98e9)


def test_energy_rows_stand_beside_the_time(tmp_path):
    assert load("energy") is collector
    artefact = tmp_path / "a.json"
    artefact.write_text(json.dumps({"energy": 2.5e-3, "power": 500.0, "power_limit": 700.0, "sm_clock": 1.98e9}))
    timed = schema.frame([CASE.row("gpu_time", 5e-6, "torch_profiler", launch=0)])
    rows = summary.summarise(pd.concat([timed, collector.parse(artefact, CASE)]), device.for_target("sm_90"))
    headings, ((*_, time, joules),), _ = text_table.cells(rows, columns=("gpu_time", "energy"))
    assert headings[-2:] == ["GPU time", "energy"]
    assert (time, joules) == ("5.00 µs", "2.50 mJ (500 W of 700 W, 1.98 GHz)")
