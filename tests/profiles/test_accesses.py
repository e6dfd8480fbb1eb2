"""The bytes of an access, against sets of bytes."""

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tilescope.interpreter.accesses import SECTOR, Footprint, OutOfBounds, runs

BASE = 4096


def expected(addresses, size):
    return {byte for address in addresses.ravel().tolist() for byte in range(address, address + size)}


def covered(found):
    ranges = list(zip(found.starts.tolist(), found.ends.tolist(), strict=True))
    assert all(a[1] < b[0] for a, b in itertools.pairwise(ranges))
    return {byte for start, end in ranges for byte in range(start, end)}


@st.composite
def blocks(draw):
    """Tiles with any strides (rows, columns, broadcast, overlapping), and addresses without any order."""
    size = draw(st.sampled_from([1, 2, 4, 8]))
    if draw(st.booleans()):
        places = np.array(draw(st.lists(st.integers(0, 300), min_size=1, max_size=100)))
    else:
        extents = draw(st.lists(st.integers(1, 9), min_size=1, max_size=3))
        places = np.zeros(extents, dtype=np.int64)
        for axis, extent in enumerate(extents):
            shape = [-1 if other == axis else 1 for other in range(len(extents))]
            places = places + draw(st.integers(0, 40)) * np.arange(extent).reshape(shape)
    return (BASE + draw(st.integers(0, 9)) * size + places * size).astype(np.uint64), size


@given(blocks())
def test_runs_cover_the_bytes(block):
    addresses, size = block
    found = runs(addresses, size)
    bytes_touched = expected(addresses, size)
    assert covered(found) == bytes_touched
    assert found.bytes == len(bytes_touched)
    assert found.sectors == len({byte // SECTOR for byte in bytes_touched})


@given(st.lists(blocks(), max_size=5))
def test_footprint_is_the_union_of_accesses(several):
    footprint = Footprint([(BASE, 20_000)])
    for addresses, size in several:
        footprint.add(runs(addresses, size))
    assert footprint.bytes == len(set().union(*(expected(addresses, size) for addresses, size in several)))


def test_footprint_of_many_short_runs_is_marked():
    places = np.cumsum(np.arange(1000) % 7 + 2)
    footprint = Footprint([(BASE, 10_000)])
    footprint.add(runs((BASE + places).astype(np.uint64), 1))
    footprint.add(runs(np.array([], dtype=np.uint64), 4))
    assert footprint.bytes == 1000


def test_footprint_of_one_access_spans_tensors():
    footprint = Footprint([(BASE, 64), (BASE + 512, 64)])
    footprint.add(runs(np.array([BASE, BASE + 512], dtype=np.uint64), 8))
    assert footprint.bytes == 16


@pytest.mark.parametrize(("address", "near", "message"), [
    (BASE + 60, BASE, "4 bytes past the end of y"),
    (BASE + 72, BASE, "8 bytes after the end of y"),
    (BASE + 64, BASE, "what follows the end of y"),
    (BASE - 16, BASE, "16 bytes before the start of y"),
    (BASE + 500, BASE + 512, "12 bytes before the start of y"),
    (BASE + 600, BASE + 512, "24 bytes after the end of y"),
])  # fmt: skip
def test_footprint_refuses_bytes_of_no_tensor(address, near, message):
    footprint = Footprint([(BASE, 64), (BASE + 512, 64)])
    with pytest.raises(OutOfBounds) as raised:
        footprint.add(runs(np.array([address], dtype=np.uint64), 8))
    assert (raised.value.near, raised.value.beside("y")) == (near, message)
    assert message.replace("of y", "of a tensor") == str(raised.value)
