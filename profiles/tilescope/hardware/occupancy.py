"""Theoretical occupancy: how many blocks of a kernel fit on one multiprocessor, and what stops the next one.

The limits and the formula are NVIDIA's (CUDA C++ Programming Guide, "Technical Specifications per Compute Capability",
and the occupancy calculator of the CUDA toolkit, ``cuda_occupancy.h``, which the tests compare with). Pure.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

KIBI = 1024
WARP_THREADS = 32
#: Registers of a multiprocessor, which its four sub-partitions share out.
REGISTERS = 65536
SUB_PARTITIONS = 4
#: Registers are handed to warps in steps of this many.
REGISTER_STEP = 256
#: No thread can have more registers.
THREAD_REGISTERS = 255
#: Shared memory is handed to blocks in steps of this many bytes, after what the driver reserves for itself.
SHARED_STEP = 128
SHARED_RESERVED = KIBI
#: No block can have more threads.
BLOCK_THREADS = 1024


@dataclass(frozen=True)
class Limits:
    """What one multiprocessor has. Shared memory in bytes; ``block_shared_memory`` is the most one block can opt into.

    ``barriers`` is the pool of hardware barriers that resident blocks share, None where the architecture does not
    limit blocks by it.
    """

    target: str
    warps: int
    blocks: int
    shared_memory: int
    block_shared_memory: int
    barriers: int | None


def _limits(target: str, warps: int, blocks: int, shared: int, barriers_per_block: int | None) -> Limits:
    barriers = None if barriers_per_block is None else barriers_per_block * blocks
    return Limits(target, warps, blocks, shared * KIBI, (shared - 1) * KIBI, barriers)


LIMITS: dict[str, Limits] = {
    limits.target: limits
    for limits in (
        _limits("sm_80", 64, 32, 164, None),
        _limits("sm_86", 48, 16, 100, None),
        _limits("sm_87", 48, 16, 164, None),
        _limits("sm_89", 48, 24, 100, None),
        _limits("sm_90", 64, 32, 228, 2),
        _limits("sm_100", 64, 32, 228, 2),
        _limits("sm_103", 64, 32, 228, 2),
        _limits("sm_120", 48, 24, 100, 1),
        _limits("sm_121", 48, 24, 100, 1),
    )
}


@dataclass(frozen=True)
class Occupancy:
    """How many blocks each resource allows on one multiprocessor, and what follows.

    ``limits`` maps ``registers``, ``shared_memory``, ``warps``, ``blocks`` and, where the architecture limits by
    them, ``barriers`` to blocks. ``blocks`` is the least of them, ``limiters`` every name that equals it, ``ratio``
    the resident warps over what the multiprocessor can hold.
    """

    limits: dict[str, int]
    blocks: int
    ratio: float
    limiters: tuple[str, ...]


def limits(target: str) -> Limits:
    """The limits of an architecture such as ``sm_90`` (``sm_90a`` is the same). Raises ValueError, naming the known."""
    key = re.sub(r"[af]$", "", target)
    if key not in LIMITS:
        raise ValueError(f"unknown target {target!r}: use one of {', '.join(LIMITS)}")
    return LIMITS[key]


def blocks(
    target: str, registers: int, shared_memory: int, threads: int, barriers: int = 1, *, configured: int | None = None
) -> Occupancy:
    """Occupancy of a kernel on ``target``.

    ``registers`` per thread; ``shared_memory`` bytes of a block, static and dynamic, without what the driver adds;
    ``threads`` of a block; ``barriers`` it names. ``configured`` is how many bytes of a multiprocessor's unified
    cache were set aside as shared memory at the launch (the carve-out, which the driver chooses); the most there
    can be where it is not known. A block that cannot run at all has an occupancy of 0.
    """
    chip = limits(target)
    warps = max(1, _up(threads, WARP_THREADS) // WARP_THREADS)
    pool = chip.shared_memory if configured is None else configured
    allowed = {
        "registers": _by_registers(registers, warps, chip.blocks),
        "shared_memory": pool // _up(shared_memory + SHARED_RESERVED, SHARED_STEP),
        "warps": chip.warps // warps,
        "blocks": chip.blocks,
    }
    if chip.barriers is not None:
        # Never more than there are block slots, as ncu reports it: an H200 pools 64 barriers and says 32 for one a block.
        allowed["barriers"] = min(chip.barriers // max(barriers, 1), chip.blocks)
    if shared_memory > chip.block_shared_memory:
        allowed["shared_memory"] = 0
    if threads > BLOCK_THREADS:
        allowed["warps"] = 0
    active = min(allowed.values())
    limiters = tuple(name for name, count in allowed.items() if count == active)
    return Occupancy(allowed, active, active * warps / chip.warps, limiters)


def _by_registers(registers: int, warps: int, unlimited: int) -> int:
    """Registers belong to a sub-partition, and a warp lives in one: the warps are counted there, not in the whole."""
    if registers == 0:
        return unlimited
    if registers > THREAD_REGISTERS:
        return 0
    a_warp = _up(registers * WARP_THREADS, REGISTER_STEP)
    return REGISTERS // SUB_PARTITIONS // a_warp * SUB_PARTITIONS // warps


def _up(value: int, step: int) -> int:
    return -(-value // step) * step
