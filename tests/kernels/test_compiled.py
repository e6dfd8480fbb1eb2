"""Every kernel compiles for GPUs from sm_80 to sm_120, with the accesses and the memory that its speed rests on."""

import pytest
from tilescope_kernels import CATALOG

from .releases import GLUON

#: Bytes of shared memory a block may use, by target.
LIMITS = {80: 163 * 1024, 90: 227 * 1024, 100: 227 * 1024, 120: 99 * 1024}
TARGETS = {spec.name: {target for target in LIMITS if f"sm_{target}" in spec.targets} for spec in CATALOG}


def of(*names):
    """A test of each of those kernels."""
    return pytest.mark.parametrize("name", names)


@pytest.fixture
def launches(batch, request):
    """The launches of the kernels that this run asks for."""
    mine = [item for item in request.session.items if item.path == request.path]
    return batch("batch_compiled.py", *dict.fromkeys(item.callspec.params["name"] for item in mine))


@of(*TARGETS)
def test_compiles_for_every_target_within_its_shared_memory(launches, name):
    mine = [row for row in launches if row["kernel"] == name]
    # sm_100 differs from sm_90 in products.
    assert {row["target"] for row in mine} >= TARGETS[name] - {100}
    assert any(row["target"] == 100 for row in mine) == (100 in TARGETS[name] and any(row["tensor"] for row in mine))
    for row in mine:
        assert row["shared"] <= LIMITS[row["target"]], row


# Of depthwise convolutions those with 4 bytes an access are quicker: more strips of outputs have their registers.
@of(*(name for name in TARGETS if name != "depthwise_conv2d"))
def test_large_workloads_move_16_bytes_an_access(launches, name):
    for row in launches:
        if row["kernel"] == name and row["workload"] == "large":
            assert row["wide"], row


@of("matmul")
def test_matmul_uses_tensor_cores(launches, name):
    mine = [row for row in launches if row["kernel"] == name]
    assert mine and all(row["tensor"] for row in mine if "matmul" in row["function"])


def _functions(launches, name):
    """What a large workload launches on Hopper."""
    mine = (row for row in launches if row["kernel"] == name and row["target"] == 90)
    return {row["function"] for row in mine if row["workload"] == "large"}


ATTENTION = {"attention_hopper_kernel", "attention_backward_hopper_kernel", "attention_backward_sums_kernel"}
HOPPERS = {
    "attention": ATTENTION, "causal_attention": ATTENTION, "matmul": {"matmul_hopper_kernel"},
    "fp8_matmul_blocks": {"fp8_matmul_blocks_hopper_kernel"}, "w8a16_matmul": {"w8a16_matmul_hopper_kernel"},
}  # fmt: skip


@GLUON
@of(*HOPPERS)
def test_hoppers_kernels_are_launched_on_hopper_alone(launches, name):
    assert HOPPERS[name] <= _functions(launches, name)
    others = [row for row in launches if row["kernel"] == name and row["target"] != 90]
    assert {row["target"] for row in others} == TARGETS[name] - {90}
    assert not any("hopper" in row["function"] for row in others)


@of("softmax", "layer_norm", "add_rms_norm", "rms_norm", "gelu", "swiglu", "geglu")
def test_backward_launches_are_seen(launches, name):
    assert any("backward" in function for function in _functions(launches, name))


@GLUON
@of("cross_entropy")
def test_a_gradient_that_came_with_the_loss_is_only_scaled(launches, name):
    # The first of the loss alone, the others of it with its gradient.
    expected = {"cross_entropy_kernel", "reduce_losses_kernel", "cross_entropy_resident_kernel", "scale_rows_kernel"}
    assert _functions(launches, name) == expected
