"""Computations that need two passes over their input, such as a scale of the whole tensor. Pure.

They need all of the input before they can use any of it, so advice to use a single launch would be wrong.
"""

from __future__ import annotations

from collections.abc import Iterable

from tilescope.table.case_table import CaseValues

#: The share of the algorithm's input from which a launch counts as reading all of it: the rest may be another operand.
_ALL = 0.9
#: The most bytes of a single value, on which every later launch that uses it depends.
_VALUE = 16
#: The largest ratio of partial results to their input.
_PARTIAL = 1 / 256


def two_passes(cases: Iterable[CaseValues]) -> frozenset[tuple[str, str]]:
    """Kernels and passes where every implementation and workload shows the dependence.

    One case without it disproves the need: a loss is also one value of all logits, but no gradient waits for it.
    """
    shown: dict[tuple[str, str], bool] = {}
    for case in cases:
        problem = case.key["kernel"], case.key["pass"]
        needed = case.total("algorithm_bytes_read", "model")
        if needed and needed.value and case.launches("interpreter"):
            shown[problem] = shown.get(problem, True) and _depends(case)
    return frozenset(problem for problem, depends in shown.items() if depends)


def _depends(case: CaseValues) -> bool:
    """Whether one launch reduces the whole input to a value, and a later one reads the whole input again.

    The interpreter's distinct bytes are exact. Instead of one value there may be partial results, if each program of
    the later launch reads all of them, so that they are requested once for each program.
    """
    needed = case.total("algorithm_bytes_read", "model")
    launches = case.launches("interpreter")
    if needed is None or len(launches) < 2:
        return False
    everything = [n for n in launches if _bytes(case, "unique_bytes_read", n) >= _ALL * needed.value]
    for place in everything:
        made, read = _bytes(case, "unique_bytes_written", place), _bytes(case, "unique_bytes_read", place)
        if not 0 < made <= _PARTIAL * read:
            continue
        if any(later > place and (made <= _VALUE or _by_each(case, later, made)) for later in everything):
            return True
    return False


def _by_each(case: CaseValues, launch: int, nbytes: float) -> bool:
    """Whether each program of the launch reads most of these bytes; a mask may leave some out."""
    blocks = case.at("grid_blocks", launch)
    again = _bytes(case, "requested_bytes_read", launch) - _bytes(case, "unique_bytes_read", launch)
    return blocks is not None and blocks.value > 1 and again >= _ALL * (blocks.value - 1) * nbytes


def _bytes(case: CaseValues, metric: str, launch: int) -> float:
    known = case.at(metric, launch, "interpreter")
    return known.value if known else 0.0
