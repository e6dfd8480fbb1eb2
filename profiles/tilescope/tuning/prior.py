"""A prior for the search: configs likely to be fast, which are compiled first where no near shape has a winner. Pure.

It orders configs and refuses none, so it may be rough. A matrix product's tile is judged by the elements that it loads an
operation, (m + n) / mn, by its last wave of blocks, by accumulators a thread and by stages; other kernels by the bytes that a
thread reads and by warps a block. ``make bench-regret`` measures how much sooner a good config is found. The numbers below were
chosen on the sweeps that it replays; ``_COST_OF_…`` weigh the distance from the best value.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from tilescope.hardware.occupancy import WARP_THREADS
from tilescope.table.run import Device

#: Number of configs that go first. The others follow in the order of ``search.order``.
FIRST = 8
#: The best number of bytes for a thread to read: two loads of the longest size, 16. More is less harmful than fewer, because a
#: loop reads them one after the other, and weighs half.
_BYTES, _COST_OF_MORE_BYTES = 32, 0.5
#: The best number of warps of a block.
_WARPS, _COST_OF_WARPS = 6, 0.7
#: The best number of accumulators a thread, and the largest good one: above it few registers are left.
_ACCUMULATORS, _COST_OF_ACCUMULATORS, _MOST_ACCUMULATORS = 128, 0.15, 160
#: The shortest side of a tile on tensor cores; a smaller parameter is a flag.
_LEAST = 8
#: The best number of stages of a matrix product's pipeline.
_STAGES, _COST_OF_STAGES = 3.5, 0.1


def promising(
    configs: Mapping[str, Mapping[str, int]], blocks: Mapping[str, int], cost: Mapping[str, Any], device: Device
) -> list[str]:
    """The names of the first few configs by ``estimate``; none where grids or cost are not known.

    ``blocks`` is each config's largest grid. ``cost`` is as in ``floor.seconds``; ``flops`` may be missing.
    """
    if not cost.get("bytes_read"):
        return []
    known = {name: config for name, config in configs.items() if blocks.get(name)}
    return sorted(known, key=lambda name: estimate(known[name], blocks[name], cost, device))[:FIRST]


def estimate(config: Mapping[str, int], blocks: int, cost: Mapping[str, Any], device: Device) -> float:
    """The estimated relative time (log2) of a config among those of its sweep."""
    warps = max(1, config.get("num_warps", 4))
    threads = warps * WARP_THREADS
    tile = _tile(config) if _multiplies(cost, device) else None
    if tile is None:
        share = math.log2(max(1.0, float(cost["bytes_read"])) / (blocks * threads * _BYTES))
        return max(-share, _COST_OF_MORE_BYTES * share) + _COST_OF_WARPS * abs(math.log2(warps / _WARPS))
    rows, columns = tile
    accumulators = rows * columns / threads
    found = math.log2((rows + columns) / (rows * columns) * _quantised(blocks, device.multiprocessors))
    found += _COST_OF_ACCUMULATORS * abs(math.log2(accumulators / _ACCUMULATORS)) + (accumulators > _MOST_ACCUMULATORS)
    return found + _COST_OF_STAGES * abs(config.get("num_stages", 3) - _STAGES)


def _quantised(blocks: int, multiprocessors: int) -> float:
    """The time of whole waves of blocks, one a multiprocessor, over the time of the same work without idle SMs."""
    if multiprocessors < 1:
        return 1.0
    return math.ceil(blocks / multiprocessors) * multiprocessors / blocks


def _multiplies(cost: Mapping[str, Any], device: Device) -> bool:
    """Whether operations bound the kernel rather than bytes; True where the operations are not known."""
    if "flops" not in cost:
        return True
    rate = max((c.value for c in device.ceilings if c.name == cost.get("pipe")), default=0.0)
    bandwidth = max((c.value for c in device.ceilings if c.name == "hbm"), default=0.0)
    moved = float(cost.get("bytes_read", 0)) + float(cost.get("bytes_written", 0))
    return bool(rate and bandwidth) and float(cost.get("flops", 0)) / rate > moved / bandwidth


def _tile(config: Mapping[str, int]) -> tuple[int, int] | None:
    """Rows and columns of a block's tile: the parameters that end in M and N, except sizes of groups; None where there are none.

    If only one has such a name, the other is the largest parameter that does not end in K.
    """
    sizes = {name.upper(): value for name, value in config.items() if value >= _LEAST and "GROUP" not in name.upper()}
    found = [next((name for name in sizes if name.endswith(end)), "") for end in ("M", "N")]
    if any(found) and not all(found):
        others = [name for name in sizes if name not in (*found, "NUM_WARPS") and not name.endswith("K")]
        found = [name for name in found if name] + sorted(others, key=lambda name: -sizes[name])[:1]
    return (sizes[found[0]], sizes[found[1]]) if len(found) == 2 and all(found) else None
