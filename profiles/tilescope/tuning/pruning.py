"""Why a config is not worth compiling to the end. Pure; nothing is dropped without its reason."""

from __future__ import annotations

from tilescope.hardware import occupancy


def refusal(target: str, *, threads: int, shared_memory: int | None, accumulators: int, held: int = 0) -> str:
    """Why a block of these needs cannot run well on ``target``; empty where nothing speaks against it.

    ``threads`` of a block, ``shared_memory`` in bytes (None where it is not known yet), ``accumulators`` and what is ``held``
    until a reduction is done in registers a thread. The first two are limits of the hardware: such a config cannot be launched.
    The others are certain too: what does not fit into a thread's registers spills. Raises ValueError for an unknown target.
    """
    chip = occupancy.limits(target)
    if threads > occupancy.BLOCK_THREADS:
        return f"{threads} threads a block, {target} has {occupancy.BLOCK_THREADS}: cannot be launched"
    if shared_memory is not None and shared_memory > chip.block_shared_memory:
        return f"{shared_memory} bytes of shared memory a block, {target} has {chip.block_shared_memory}: cannot be launched"
    if accumulators > occupancy.THREAD_REGISTERS:
        return f"{accumulators} registers a thread for accumulators, {occupancy.THREAD_REGISTERS} exist: spills"
    if held > occupancy.THREAD_REGISTERS:
        return (
            f"{held} registers a thread for what is reduced and used again, {occupancy.THREAD_REGISTERS} exist: spills"
        )
    return ""
