"""Every kernel compiles for GPUs from sm_80 to sm_120, with the accesses and the memory that its speed rests on."""

from __future__ import annotations

import pytest
from tilescope_kernels import CATALOG

#: Bytes of shared memory a block may use, by target.
LIMITS = {80: 163 * 1024, 90: 227 * 1024, 100: 227 * 1024, 120: 99 * 1024}
NAMES = [spec.name for spec in CATALOG]
TARGETS = {spec.name: {target for target in LIMITS if f"sm_{target}" in spec.targets} for spec in CATALOG}


@pytest.fixture
def launches(batch):
    return batch("batch_compiled.py")


@pytest.mark.parametrize("name", NAMES)
def test_compiles_for_every_target_within_its_shared_memory(launches, name):
    mine = [row for row in launches if row["kernel"] == name]
    assert {row["target"] for row in mine} == TARGETS[name]
    for row in mine:
        assert row["shared"] <= LIMITS[row["target"]], row


@pytest.mark.parametrize("name", NAMES)
def test_large_workloads_move_16_bytes_an_access(launches, name):
    for row in launches:
        if row["kernel"] == name and row["workload"] == "large":
            assert row["wide"], row


def test_matmul_uses_tensor_cores(launches):
    assert all(row["tensor"] for row in launches if row["kernel"] == "matmul")


def _functions(launches, name):
    return {row["function"] for row in launches if row["kernel"] == name and row["workload"] == "large"}


@pytest.mark.parametrize("name", ["softmax", "layer_norm", "add_rms_norm", "rms_norm", "gelu", "swiglu", "geglu"])
def test_backward_launches_are_seen(launches, name):
    assert any("backward" in function for function in _functions(launches, name))


def test_a_gradient_that_came_with_the_loss_is_only_scaled(launches):
    assert _functions(launches, "cross_entropy") == {"cross_entropy_kernel", "scale_rows_kernel"}
