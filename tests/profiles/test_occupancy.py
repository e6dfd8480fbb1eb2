"""Theoretical occupancy against recorded launches."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tilescope.hardware import occupancy

TARGETS = sorted(occupancy.LIMITS)


def test_occupancy_of_the_recorded_kernels():
    """ncu on an H200: 32 registers, 32 bytes, 256 threads, a carve-out of 32 KiB."""
    found = occupancy.blocks("sm_90", 32, 32, 256, configured=32768)
    assert found.limits == {"registers": 8, "shared_memory": 28, "warps": 8, "blocks": 32, "barriers": 32}
    assert (found.blocks, found.ratio, found.limiters) == (8, 1.0, ("registers", "warps"))
    found = occupancy.blocks("sm_90a", 193, 147456, 256, configured=233472)
    assert found.limits == {"registers": 1, "shared_memory": 1, "warps": 8, "blocks": 32, "barriers": 32}
    assert (found.ratio, found.limiters) == (0.125, ("registers", "shared_memory"))
    # 96 registers: 5 warps in each of 4 sub-partitions. Over the whole multiprocessor 21 would seem to fit.
    assert occupancy.blocks("sm_80", 96, 0, 32).limits["registers"] == 20
    assert occupancy.blocks("sm_90", 32, 227 * 1024, 128).blocks == 1
    assert occupancy.blocks("sm_90", 32, 227 * 1024 + 1, 128).limiters == ("shared_memory",)
    assert occupancy.blocks("sm_90", 256, 0, 128).ratio == 0
    assert occupancy.blocks("sm_90", 32, 0, 1056).ratio == 0
    with pytest.raises(ValueError, match="unknown target 'sm_42': use one of sm_80"):
        occupancy.limits("sm_42")


@given(
    st.sampled_from(TARGETS),
    st.integers(-300, 255),
    st.integers(-2000, 230_000),
    st.integers(-64, 1024),
    st.integers(0, 16),
)
def test_more_of_anything_never_raises_occupancy(target, registers, shared, threads, barriers):
    # A run that another hand wrote may hold negative figures.
    found = occupancy.blocks(target, registers, shared, threads, barriers)
    assert 0 <= found.ratio <= 1
    assert found.limiters
    assert found.blocks == min(found.limits.values())
    for more in (
        occupancy.blocks(target, registers + 1, shared, threads, barriers),
        occupancy.blocks(target, registers, shared + 1, threads, barriers),
        occupancy.blocks(target, registers, shared, threads, barriers + 1),
        occupancy.blocks(target, registers, shared, threads + 32, barriers),
    ):
        assert more.blocks <= found.blocks
