"""The benchmarks' problems can be launched, their entries exist, and foreign kernels are judged."""

import importlib
import json
import sys

import pytest
import tilescope
import torch
from tilescope_kernels import catalog

from benchmarks import chunk_states, foreign, foreign_kernels, sizes, tuning_problems

from . import foreign_launches


@pytest.mark.parametrize("name", ["softmax", "layer_norm", "attention", "conv2d", "states"])
def test_tuning_configs_differ_and_have_a_grid(name):
    problem = tuning_problems.every()[name]("sm_90")
    assert len(problem.configs) >= 18
    assert len({str(sorted(values.items())) for values in problem.configs.values()}) == len(problem.configs)
    for values in problem.configs.values():
        told = {name: value for name, value in values.items() if name != "num_warps"}
        assert all(size > 0 for size in problem.grid(told))


def test_chunk_states_kernel_computes_its_reference():
    extents = {"batch": 1, "steps": 128, "heads": 2, "channels": 32, "state": 32, "chunk": 64}
    blocks = {"BLOCK_P": 32, "BLOCK_N": 32, "BLOCK_T": 32}
    with tilescope.capture("sm_90") as captured:
        given = chunk_states.arguments(**extents, device="cuda")
        chunk_states.chunk_states_kernel[chunk_states.grid_of(**extents)(blocks)](**given, **blocks)
    assert captured.notes == []
    error = given["s_ptr"] - chunk_states.reference(**given)
    assert error.norm() < 5e-3 * chunk_states.reference(**given).norm()


@pytest.mark.parametrize("name", sizes.SIZES)
def test_sizes_and_peers_are_the_kernels(name):
    spec = catalog.find(name)
    assert spec is not None
    peers, workloads = sizes.SIZES[name]
    assert set(peers.split()) <= set(spec.implementations)
    recorded = {workload.id for workload in spec.workloads}
    assert {spec.workload(workload).id for workload in workloads.split()} - recorded


@pytest.mark.skipif(sys.platform != "linux", reason="entries are forked")
def test_foreign_entries_are_captured_and_judged(monkeypatch, tmp_path):
    def gathered():
        return torch.randn(50, 64), torch.tensor([3, 1, 3])

    references = {"right": lambda table, where: table[where], "wrong": lambda table, where: table[where] + 1}
    entries = [
        foreign_kernels.Entry("ours", name, gathered, foreign_launches.gather, reference)
        for name, reference in references.items()
    ]
    monkeypatch.setattr(foreign_kernels, "every", lambda: iter(entries))
    lines: list[str] = []
    assert foreign.main(["--target", "sm_90", "--out", str(tmp_path / "found.json")], lines.append) == 1
    rows = [[cell.strip() for cell in line.strip("|").split("|")][:-1] for line in lines if line.startswith("| ours")]
    assert rows[0] == ["ours right", "1 launches, 1 kernels", "1 of 1", "1 of 1", "0.0e+00", ""]
    assert rows[1][4].endswith("not within 1e-05")
    assert [one["captured"] for one in json.loads((tmp_path / "found.json").read_text())] == [1, 1]


@pytest.mark.parametrize("module", foreign_kernels.LIBRARIES.values())
def test_foreign_entries_load_without_their_library(module):
    entries = importlib.import_module(f"benchmarks.foreign_kernels.{module}").ENTRIES
    assert len({entry.name for entry in entries}) == len(entries) >= 5
