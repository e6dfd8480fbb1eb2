"""The least possible time of a config. Pure.

It is the larger of bytes over the bandwidth of HBM and operations over the rate of the multiprocessors that have a block, at the
highest known rates (datasheet or measured). A last wave that is not full does not count: blocks may differ in length.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from tilescope.table.run import Device


def seconds(cost: Mapping[str, Any], device: Device, kernels: Sequence[Mapping[str, Any]]) -> float:
    """The floor in seconds of one call with this ``cost`` (``flops``, ``bytes_read``, ``bytes_written``, ``pipe``).

    ``kernels`` are its launches; of several, any may do the work, so all multiprocessors count. Reads come from HBM, because
    calls are timed with a cold L2; writes may stay in L2. 0 where a cost or a rate is not known.
    """
    moved = float(cost.get("bytes_read", 0)) + max(0.0, float(cost.get("bytes_written", 0)) - device.l2_bytes)
    bandwidth = max((c.value for c in device.ceilings if c.name in ("hbm", "hbm_read")), default=0.0)
    rate = max((c.value for c in device.ceilings if c.name == cost.get("pipe")), default=0.0)
    floors = [moved / bandwidth if bandwidth else 0.0]
    if rate and device.multiprocessors:
        grid = float(kernels[0].get("grid_blocks") or 0) if len(kernels) == 1 else 0.0
        used = min(1.0, grid / device.multiprocessors) if grid else 1.0
        floors.append(float(cost.get("flops", 0)) / (rate * used))
    return max(0.0, *floors)
