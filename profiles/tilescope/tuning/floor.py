"""The best possible time of a config: what no launch of it can be quicker than. Pure.

Bytes over the bandwidth of HBM, and operations over the rate of the multiprocessors that have a block: a grid of fewer blocks than
there are multiprocessors leaves the others idle. More blocks than that are dealt out in waves, but blocks need not be alike, so
that the last wave's emptiness is no bound, and is not counted. Rates are the highest that are known, of datasheet and measurement.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from tilescope.table.run import Device


def seconds(cost: Mapping[str, Any], device: Device, kernels: Sequence[Mapping[str, Any]]) -> float:
    """The floor of one call with this ``cost`` (``flops``, ``bytes_read``, ``bytes_written``, ``pipe``).

    ``kernels`` are its launches: of several, which does the work is not known, and all multiprocessors count. 0 where a cost or a
    rate is not known. Each call is timed with a cold L2, so what it reads comes from HBM; what it writes may stay in L2.
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
