"""Layouts of shared memory: bank conflicts of a transfer, counted from the layouts alone, and the layout that removes them."""

import dataclasses
import itertools
from pathlib import Path

import pytest
from tilescope.collectors import layouts, shared_layouts
from tilescope.runs.listings import Shared, Transfer

from tests.kernels.releases import NEWEST

ROWS, COLUMNS = (1, 0), (0, 1)


def transfer(shared, *, along=1, bits=32, vector=1, shape=(64, 32), matrices=False):
    """A warp's lanes lie ``along`` a dimension, each with ``vector`` elements of it; four warps and the registers have the rest."""
    across = 1 - along
    bases = [tuple((1 << n) * (axis == along) for axis in (0, 1)) for n in range(shape[along].bit_length() - 1)]
    others = [tuple((1 << n) * (axis == across) for axis in (0, 1)) for n in range(shape[across].bit_length() - 1)]
    held = vector.bit_length() - 1
    lanes = [*bases[held : held + 5], *others[2:]][:5]
    rest = [one for one in bases + others if one not in lanes and one not in bases[:held]]
    warps, registers = others[:2], [one for one in rest if one not in others[:2]]
    return Transfer(
        "local_load", 3, shape, bits, (*bases[:held], *registers), tuple(lanes), tuple(warps), shared, matrices=matrices
    )


@pytest.mark.parametrize(("moved", "ways"), [
    (transfer(Shared("swizzled", ROWS)), 1),
    (transfer(Shared("swizzled", ROWS), along=0), 32),
    (transfer(Shared("swizzled", COLUMNS), along=0), 1),
    (transfer(Shared("swizzled", ROWS, 1, 1, 32), along=0), 1),
    (transfer(Shared("swizzled", ROWS, 4, 1, 8), along=0), 4),
    (transfer(Shared("swizzled", ROWS, paddings=((32, 1),)), along=0), 1),
    (transfer(Shared("swizzled", ROWS, paddings=((32, 2),)), along=0), 2),
    (transfer(Shared("swizzled", ROWS), along=0, bits=16), 16),
    (transfer(Shared("swizzled", ROWS), vector=4), 1),
    (transfer(Shared("tiles", swizzle=128), along=1, bits=16, vector=8, shape=(64, 64)), 1),
    (transfer(Shared("linear", bases=tuple((0, 1 << n) for n in range(5)) + tuple((1 << n, 0) for n in range(6))), along=0), 32),
])  # fmt: skip
def test_wavefronts_follow_the_banks(moved, ways):
    taken, least = shared_layouts.wavefronts(moved)
    assert taken == ways * least


@pytest.mark.skipif(NEWEST, reason="Triton 3.9 counts conflicts only in a module")
def test_counts_are_tritons():
    """Triton's own count, for swizzles whose arguments it takes: excess wavefronts of a request."""
    from triton._C.libtriton import gluon_ir, ir, nvidia
    from triton.experimental.gluon import language as gl

    context = ir.context()
    ir.load_dialects(context)
    nvidia.load_dialects(context)
    builder = gluon_ir.GluonOpBuilder(context)
    for (vec, phase, phases), along, bits in itertools.product(
        ((1, 1, 1), (1, 1, 8), (4, 1, 8), (2, 2, 4), (8, 4, 4)), (0, 1), (16, 32)
    ):
        moved = transfer(Shared("swizzled", ROWS, vec, phase, phases), along=along, bits=bits)
        bases = [[list(one) for one in part] for part in (moved.registers, moved.lanes, moved.warps)]
        registers = gl.DistributedLinearLayout(*bases, [], list(moved.shape))._to_ir(builder)
        shared = gl.SwizzledSharedLayout(vec, phase, phases, list(ROWS))._to_ir(builder)
        counted = builder.get_shared_bank_conflicts(registers, shared, list(moved.shape), bits)
        taken, least = shared_layouts.wavefronts(moved)
        assert taken == (counted + 1) * least, (vec, phase, phases, along, bits)


def test_cure_is_the_simplest_layout_without_conflicts():
    stored, loaded = (transfer(Shared("swizzled", ROWS), along=along) for along in (1, 0))
    layout, taken = shared_layouts.cure([stored, loaded])
    assert (layout.text, taken) == ("SwizzledSharedLayout(1, 1, 32, [1, 0])", 32)
    assert shared_layouts.cure([transfer(layout, along=along) for along in (1, 0)]) is None


def test_elements_of_lanes_and_registers_cover_the_tile():
    places = shared_layouts.elements(transfer(None, vector=4)).reshape(-1, 2)
    assert sorted(map(tuple, places.tolist())) == list(itertools.product(range(64), range(32)))


TEXTS = Path(__file__).parent / "fixtures" / "texts"
TTGIR = (TEXTS / "exchange.ttgir").read_text()


def test_transfers_come_with_lines_buffers_and_kinds():
    found = layouts.transfers(TTGIR, "", "a.py")
    assert [(one.operation, one.line, one.buffer) for one in found] == [
        ("local_store", 4, 0), ("local_load", 5, 0), ("local_alloc", 6, 1), ("local_alloc", 7, 2), ("convert_layout", 8, 3),
    ]  # fmt: skip
    assert {(one.shape, one.bits) for one in found} == {((64, 32), 32)}
    assert [one.shared.text if one.shared else "" for one in found] == [
        *["SwizzledSharedLayout(1, 1, 1, [1, 0])"] * 2, "NVMMASharedLayout, swizzle of 128 bytes",
        "PaddedSharedLayout with 4 elements after each 32", "",
    ]  # fmt: skip
    assert [shared_layouts.wavefronts(one) for one in found[:2]] == [(16, 16), (512, 16)]


def test_cure_leaves_no_conflict_of_its_buffer():
    """The other line's conflicts stay, and a launch without conflicts has no cure."""
    found = layouts.transfers(TTGIR, "", "a.py")
    cured = layouts.cured(found, 5, 100.0, {5: 90.0, 99: 10.0})
    assert dict(zip(layouts.CURE, (10.0, 1, 1, 32, 0, 21), strict=True)) == cured
    assert layouts.cured(found, 4, 100.0, {4: 100.0}) == layouts.cured(found, 7, 1.0, {7: 1.0}) == {}


@pytest.mark.parametrize("damage", [
    {"shape": (0, 32)}, {"shape": (64,)}, {"bits": 3}, {"lanes": ((0, 99),)}, {"registers": ((1, 0),) * 30},
    {"shared": Shared("swizzled", (2, 0))}, {"shared": Shared("linear", bases=((64, 0),))},
])  # fmt: skip
def test_damaged_transfers_are_refused(damage):
    with pytest.raises(ValueError, match="not those of its tile"):
        dataclasses.replace(transfer(Shared("swizzled", ROWS)), **damage)
    with pytest.raises(ValueError, match="no elements"):
        Shared(vec=0)
