"""Transfers between registers and shared memory: the place of each element, its bank conflicts, and layouts without. Pure.

Shared memory has 32 banks of 4 bytes. A request of a warp moves at most 128 bytes in a wavefront, and lanes that ask one bank for
different words take one wavefront each (CUDA C++ Programming Guide, "Shared Memory").
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator, Sequence

import numpy as np
import numpy.typing as npt

from tilescope.runs.listings import Shared, Transfer

Integers = npt.NDArray[np.int64]
BANKS, WORD = 32, 4
_LANES, _WIDEST = 32, 16


def elements(transfer: Transfer) -> Integers:
    """The coordinates of the element in each register of each lane of each warp: an array by warp, lane, register and dimension."""
    dimensions = len(transfer.shape)
    places = np.zeros((1, dimensions), np.int64)
    for bases in (transfer.registers, transfer.lanes, transfer.warps):
        for basis in bases:
            places = np.concatenate([places, places ^ np.array(basis, np.int64)])
    return places.reshape(2 ** len(transfer.warps), 2 ** len(transfer.lanes), 2 ** len(transfer.registers), dimensions)


def offsets(shared: Shared, shape: Sequence[int], bits: int, places: Integers) -> Integers:
    """The offset of each element in shared memory, in elements. ``places`` has the coordinates in its last dimension."""
    order = list(shared.order) or list(range(len(shape)))[::-1]
    along = [places[..., dimension] for dimension in order]
    extents = [shape[dimension] for dimension in order]
    if shared.kind == "tiles" and len(along) > 1:
        # Tiles of 8 rows, as wide as the swizzle, one below the other.
        wide = min(extents[0], 8 * max(shared.swizzle, _WIDEST) // bits)
        vector = _WIDEST * 8 // bits
        phases = max(1, shared.swizzle // _WIDEST)
        row, column = along[1], along[0]
        phase = row // max(1, 128 // max(shared.swizzle, 1)) % phases
        inner = (column % wide // vector ^ phase) * vector + column % vector
        return _strides([inner, row, column // wide, *along[2:]], [wide, extents[1], extents[0] // wide, *extents[2:]])
    if shared.kind == "swizzled" and len(along) > 1:
        phase = along[1] // shared.per_phase % shared.max_phase
        along[0] = (along[0] // shared.vec ^ phase) * shared.vec + along[0] % shared.vec
        along[0] %= extents[0]
    found = _by_bases(shared.bases, shape, places) if shared.kind == "linear" else _strides(along, extents)
    padded = found.copy()
    for interval, padding in shared.paddings:
        padded += found // interval * padding
    return padded


def _strides(along: Sequence[Integers], extents: Sequence[int]) -> Integers:
    return np.asarray(np.ravel_multi_index(tuple(along), tuple(extents), order="F"))


def _by_bases(bases: Sequence[Sequence[int]], shape: Sequence[int], places: Integers) -> Integers:
    """Offsets in a layout that maps bits of the offset to coordinates."""
    held = np.zeros((1, len(shape)), np.int64)
    for basis in bases:
        held = np.concatenate([held, held ^ np.array(basis, np.int64)])
    by_place = np.zeros(math.prod(shape), np.int64)
    by_place[np.ravel_multi_index(tuple(held.T), tuple(shape))] = np.arange(len(held))
    flat: Integers = np.ravel_multi_index(tuple(np.moveaxis(places, -1, 0)), tuple(shape))
    return np.asarray(by_place[flat])


def requests(transfer: Transfer, shared: Shared | None = None) -> tuple[Integers, Integers, Integers]:
    """The first byte in shared memory of each register of each lane of each warp, its phase, and the different words that each phase
    asks of each bank.

    A phase is the part of a request that passes at most 128 bytes. ``shared`` stands in for the transfer's own layout.
    """
    places = elements(transfer)
    layout = shared or transfer.shared or Shared()
    at = offsets(layout, transfer.shape, transfer.bits, places)
    size = max(1, transfer.bits // 8)
    registers = at.shape[2]
    first = at[0, 0] ^ at[0, 0, 0]
    # Registers whose offsets follow each other move together: the bits of a register's number that they depend on.
    most = WORD if transfer.matrices else _WIDEST  # a row of a matrix is spread over the words of four lanes
    # Padding moves rows to addresses that only narrower accesses can reach.
    most = min([most, *((padding & -padding) * size for _, padding in layout.paddings)])
    together = list[int]()
    while size << len(together) < most:
        step = next((n for n in range(registers.bit_length() - 1) if first[1 << n] == 1 << len(together)), None)
        if step is None or not np.array_equal(
            at[:, :, 1 << step] - at[:, :, 0], np.full(at.shape[:2], 1 << len(together))
        ):
            break
        together.append(step)
    numbers = np.arange(registers)
    for step in together:
        numbers &= ~(1 << step)
    lanes = min(_LANES, BANKS * WORD // (size << len(together)))
    parts = np.arange(at.shape[1]) // lanes
    phase = numbers[None, None, :] * at.shape[1] + parts[None, :, None] + np.zeros_like(at)
    phase += np.arange(at.shape[0])[:, None, None] * (registers * at.shape[1])
    words = (at * size // WORD)[..., None] + np.arange(max(1, size // WORD))
    span = int(words.max()) + 1
    asked = np.unique(phase[..., None] * span + words)
    counted = np.bincount(asked // span * BANKS + asked % span % BANKS, minlength=(int(phase.max()) + 1) * BANKS)
    return at * size, phase, counted.reshape(-1, BANKS)


def wavefronts(transfer: Transfer, shared: Shared | None = None) -> tuple[int, int]:
    """The wavefronts that the first warp takes for the transfer, and the least."""
    _, phase, words = requests(dataclasses.replace(transfer, warps=()), shared)
    phases = np.unique(phase)
    return int(words[phases].max(axis=1).sum()), len(phases)


def cure(transfers: Sequence[Transfer]) -> tuple[Shared, int] | None:
    """The simplest layout in which ``transfers``, all of one buffer, take the fewest wavefronts, and these; None where no other is better.

    The transfers keep their registers. Candidates are swizzles, then rows with padding, then both orders of the dimensions.
    """
    first = transfers[0]
    now = sum(wavefronts(one)[0] for one in transfers)
    least = sum(wavefronts(one)[1] for one in transfers)
    best: tuple[Shared, int] | None = None
    for candidate in _candidates(first):
        taken = sum(wavefronts(one, candidate)[0] for one in transfers)
        if taken < (best[1] if best else now):
            best = candidate, taken
        if taken <= least:
            break
    return best


def _candidates(transfer: Transfer) -> Iterator[Shared]:
    shape, size = transfer.shape, max(1, transfer.bits // 8)
    if len(shape) < 2:
        return
    own = tuple(transfer.shared.order) if transfer.shared and transfer.shared.order else tuple(range(len(shape)))[::-1]
    for order in (own, (own[1], own[0], *own[2:])):
        row = shape[order[0]]
        vectors = [1 << n for n in range(5) if size << n <= _WIDEST and 1 << n < row]
        for vec in reversed(vectors):
            for per_phase in (1, 2, 4, 8):
                most = min(row // vec, shape[order[1]])
                for max_phase in (2, 4, 8, 16, 32):
                    if max_phase <= most:
                        yield Shared("swizzled", order, vec, per_phase, max_phase)
        # Less padding would leave rows where accesses of 16 bytes fail.
        yield Shared("swizzled", order, paddings=((row, _WIDEST // size),))
