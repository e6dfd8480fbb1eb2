"""Reasons to stop compiling a config: it exceeds a limit of the hardware, or certainly spills. Pure."""

from __future__ import annotations

from tilescope.hardware import occupancy


def refusal(target: str, *, threads: int, shared_memory: int | None, accumulators: int, held: int = 0) -> str:
    """The reason why a block cannot run well on ``target`` (``sm_90``); empty where there is none.

    ``threads`` are those of a block, ``shared_memory`` its bytes (None where not known yet). ``accumulators`` and values
    ``held`` until a reduction is done are registers a thread, which spill above the limit. Raises ValueError for an unknown
    target.
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
