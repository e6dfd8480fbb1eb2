"""Theoretical occupancy: how many blocks of a kernel fit on one multiprocessor, and which resource limits them.

Limits and formula are NVIDIA's (CUDA C++ Programming Guide, "Technical Specifications per Compute Capability", and
``cuda_occupancy.h`` of the CUDA toolkit, which the tests compare with). Pure.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

KIBI = 1024
WARP_THREADS = 32
#: Registers of a multiprocessor, divided among its sub-partitions.
REGISTERS = 65536
SUB_PARTITIONS = 4
#: Registers are allocated to a warp in multiples of this.
REGISTER_STEP = 256
#: Most registers of a thread.
THREAD_REGISTERS = 255
#: Shared memory is allocated to a block in multiples of this many bytes, and bytes of it that the driver reserves.
SHARED_STEP = 128
SHARED_RESERVED = KIBI
#: Most threads of a block.
BLOCK_THREADS = 1024


@dataclass(frozen=True)
class Limits:
    """Resources of one multiprocessor. Shared memory is in bytes; ``block_shared_memory`` is the most that a block can opt into.

    ``barriers`` is the number of hardware barriers that resident blocks share, None where they limit nothing.
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
    """Theoretical occupancy of a kernel.

    ``limits`` maps ``registers``, ``shared_memory``, ``warps``, ``blocks`` and, where they limit, ``barriers`` to the blocks
    that the resource allows on one multiprocessor. ``blocks`` is the least of them, ``limiters`` the resources that allow no
    more, ``ratio`` the resident warps over the most that the multiprocessor can hold.
    """

    limits: dict[str, int]
    blocks: int
    ratio: float
    limiters: tuple[str, ...]


def limits(target: str) -> Limits:
    """The limits of an architecture such as ``sm_90`` (``sm_90a`` is the same). Raises ValueError for an unknown one."""
    key = re.sub(r"[af]$", "", target)
    if key not in LIMITS:
        raise ValueError(f"unknown target {target!r}: use one of {', '.join(LIMITS)}")
    return LIMITS[key]


def blocks(
    target: str, registers: int, shared_memory: int, threads: int, barriers: int = 1, *, configured: int | None = None
) -> Occupancy:
    """Occupancy of a kernel on ``target``.

    ``registers`` are per thread; ``shared_memory`` is in bytes per block, static and dynamic, without the driver's part;
    ``threads`` and ``barriers`` are per block. ``configured`` is the carve-out: the bytes of the multiprocessor's unified cache
    that the driver configured as shared memory, by default the most possible. A block that cannot run has an occupancy of 0.
    Raises ValueError for an unknown target.
    """
    chip = limits(target)
    warps = max(1, _up(threads, WARP_THREADS) // WARP_THREADS)
    pool = chip.shared_memory if configured is None else configured
    allowed = {
        "registers": _by_registers(registers, warps, chip.blocks),
        "shared_memory": pool // _up(max(0, shared_memory) + SHARED_RESERVED, SHARED_STEP),
        "warps": chip.warps // warps,
        "blocks": chip.blocks,
    }
    if chip.barriers is not None:
        # Capped at the block slots, as ncu reports it: an H200 has 64 barriers, and ncu says 32 for one barrier a block.
        allowed["barriers"] = min(chip.barriers // max(barriers, 1), chip.blocks)
    if shared_memory > chip.block_shared_memory:
        allowed["shared_memory"] = 0
    if threads > BLOCK_THREADS:
        allowed["warps"] = 0
    active = min(allowed.values())
    limiters = tuple(name for name, count in allowed.items() if count == active)
    return Occupancy(allowed, active, active * warps / chip.warps, limiters)


def _by_registers(registers: int, warps: int, unlimited: int) -> int:
    """Blocks that the registers allow. A warp's registers are all in one sub-partition, so warps are counted per sub-partition."""
    if registers <= 0:
        return unlimited
    if registers > THREAD_REGISTERS:
        return 0
    a_warp = _up(registers * WARP_THREADS, REGISTER_STEP)
    return REGISTERS // SUB_PARTITIONS // a_warp * SUB_PARTITIONS // warps


def _up(value: int, step: int) -> int:
    return -(-value // step) * step
