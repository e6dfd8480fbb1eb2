"""Sizes that no recording has, and the table of what was measured at them."""

import json
from typing import Any

import pytest
from tilescope.notebook.opened_run import Profile
from tilescope.runs.store import open_run, recorded_dir
from tilescope_kernels import catalog

from benchmarks import sizes


@pytest.mark.parametrize("name", sizes.SIZES)
def test_every_size_and_peer_is_one_of_the_kernels(name):
    spec = catalog.find(name)
    assert spec is not None
    peers, workloads = sizes.SIZES[name]
    assert set(peers.split()) <= set(spec.implementations)
    recorded = {workload.id for workload in spec.workloads}
    assert {spec.workload(workload).id for workload in workloads.split()} - recorded


def test_rows_name_the_quickest_peer(monkeypatch):
    (fp8,) = (
        path.parent
        for path in recorded_dir().glob("*/run.json")
        if json.loads(path.read_text())["title"] == "FP8 products"
    )
    asked: dict[str, Any] = {}

    def profile(name, **settings):
        asked.update(settings, name=name)
        return Profile.of(open_run(fp8))

    monkeypatch.setattr(sizes.tilescope, "profile_kernels", profile)
    rows = sizes.measured("fp8_matmul", "somewhere")
    assert asked["name"] == "fp8_matmul" and asked["implementations"] == ["triton", "cublas"]
    assert rows and all(
        row["over_" + row["peer"]] == min(v for k, v in row.items() if k.startswith("over_") and v > 0) for row in rows
    )
    assert len(sizes.table(rows).splitlines()) == len(rows) + 2


def test_the_table_begins_with_the_worst_and_names_the_library():
    row = {
        "kernel": "k", "workload": "8-bf16", "floor": 1e-6, "of_roof": 0.5, "roof": "copy bandwidth",
        "library": "cudnn",
    }  # fmt: skip
    slow = {**row, "pass": "backward", "peer": "library", "over_library": 0.5, "low_library": 0.4, "high_library": 0.6}
    fast = {**row, "pass": "forward", "peer": "compile", "over_compile": 2.0, "low_compile": 1.9, "high_compile": 2.1}
    *_, first, second = sizes.table([fast, slow]).splitlines()
    assert first == "| k, backward | 8-bf16 | 2.0 | cudnn | 0.50 (0.40 to 0.60) | 50% copy bandwidth |"
    assert second.startswith("| k | 8-bf16 | 2.0 | compile | 2.00 (1.90 to 2.10) |")
