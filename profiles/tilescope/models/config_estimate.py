"""An estimate of a config's time from its compiled code, where no GPU can time it. Pure.

The estimate is a weighted sum of costs: the logarithm (base 2) of a time relative to the sweep's other configs. Kernels that use tensor
cores on a tile of rows and columns have other costs than kernels that stream. ``python -m benchmarks.estimates`` fits the
weights to the recorded sweeps, and says how far the first configs are from the best in families that the weights were not fitted to.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping

from tilescope.hardware.occupancy import WARP_THREADS
from tilescope.table.case import config_values
from tilescope.table.case_table import CaseValues

#: Weights of the costs of ``costs``, by kind.
WEIGHTS = {
    "tile": {"loads": 0.487, "accumulators": 0.118, "idle": 0.314, "stages": 0.106, "occupancy": 0.021, "spills": 0.0},
    "stream": {"bytes": 0.004, "warps": 0.025, "spills": 0.131},
}  # fmt: skip
#: The time of the first config by the estimate, and of the best among the first five, over the best config's time: the mean over
#: recorded sweeps of families that the weights were not fitted to.
FIRST, FIRST_FIVE = 1.07, 1.00
#: The least range of a sweep's estimates (log2) that tells its configs apart.
APART = 0.01

#: The number of warps of a block, of accumulators of a thread, and of stages that costs are measured from.
_WARPS, _ACCUMULATORS, _STAGES = 6, 128, 3.5
#: The bytes that a streaming thread reads in two loads of the longest size.
_BYTES = 32
#: The shortest side of a tile on tensor cores; a smaller parameter is a flag.
_LEAST = 8


def over_best(cases: Iterable[CaseValues], multiprocessors: int) -> dict[str, float]:
    """The estimated relative distance of each config from the best of its sweep, by config; 0.25 for a quarter slower.

    Empty where the estimate cannot tell the configs apart. A config that it does not know is left out.
    """
    known: dict[str, float] = {}
    for case in cases:
        if found := costs(case, multiprocessors):
            kind, values = found
            known[case.key["config"]] = sum(WEIGHTS[kind][name] * value for name, value in values.items())
    if not known or max(known.values()) - min(known.values()) < APART:
        return {}
    return {config: 2 ** (value - min(known.values())) - 1 for config, value in known.items()}


def costs(case: CaseValues, multiprocessors: int) -> tuple[str, dict[str, float]] | None:
    """The kind of the case's main launch, and its costs by name; None where its code, grid or bytes are not known."""
    launches = [_Launch(case, number) for number in case.launches("compiler")]
    known = [launch for launch in launches if launch.blocks and launch.threads and launch.resident]
    if not known or multiprocessors < 1:
        return None
    launch = max(known, key=lambda one: (one.tensor, one.blocks * one.threads))
    numbers = {name: value for name, value in config_values(case.key["config"]).items() if isinstance(value, int)}
    spills = math.log2(1 + launch.spilled / 4)
    if launch.tensor and (tile := _tile(numbers)):
        rows, columns = tile
        waves = launch.blocks / (multiprocessors * launch.resident)
        return "tile", {
            "loads": math.log2((rows + columns) / (rows * columns)),
            "accumulators": abs(math.log2(rows * columns / launch.threads / _ACCUMULATORS)),
            "idle": math.log2(math.ceil(waves) / waves),
            "stages": abs(numbers.get("num_stages", 3) - _STAGES),
            "occupancy": -math.log2(launch.resident * launch.threads),
            "spills": spills,
        }
    read = case.algorithm_bytes()
    if read is None:
        return None
    return "stream", {
        "bytes": max(0.0, math.log2(max(1.0, read[0].value) / (launch.blocks * launch.threads * _BYTES))),
        "warps": abs(math.log2(launch.threads / WARP_THREADS / _WARPS)),
        "spills": spills,
    }


class _Launch:
    """What the compiler says of one launch; 0 for what it does not say."""

    def __init__(self, case: CaseValues, number: int) -> None:
        def of(metric: str) -> float:
            known = case.at(metric, number, "compiler")
            return known.value if known else 0.0

        self.blocks, self.threads, self.spilled = of("grid_blocks"), of("block_threads"), of("spill_bytes_stored")
        self.tensor = of("tensor_instructions") > 0
        #: Blocks that are on a multiprocessor at a time.
        self.resident = min(of(f"occupancy_limit_{name}") for name in ("registers", "shared_memory", "warps", "blocks"))


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
