"""Computations that need all of their input before they can use any of it, as a scale of the whole tensor does. Pure.

No kernel can then do with one pass over the input: the minimum is two, and advice to use a single launch is wrong.
"""

from __future__ import annotations

from collections.abc import Iterable

from tilescope.table.case_table import CaseValues

#: A launch that reads this share of the algorithm's input reads all of it: the rest may be an operand of its own.
_ALL = 0.9
#: At most these bytes are a single value: every launch after it that uses it depends on all that was read for it.
_VALUE = 16
#: Partial results are at most this share of what they are made of.
_PARTIAL = 1 / 256


def two_passes(cases: Iterable[CaseValues]) -> frozenset[tuple[str, str]]:
    """Kernels and passes where every case shows the dependence, whatever its implementation and workload.

    One case without it disproves the need: a loss is one value of all logits too, but no gradient waits for it.
    """
    shown: dict[tuple[str, str], bool] = {}
    for case in cases:
        problem = case.key["kernel"], case.key["pass"]
        needed = case.total("algorithm_bytes_read", "model")
        if needed and needed.value and case.launches("interpreter"):
            shown[problem] = shown.get(problem, True) and _depends(case)
    return frozenset(problem for problem, depends in shown.items() if depends)


def _depends(case: CaseValues) -> bool:
    """Whether a launch makes one value of all the input, and a later launch reads all of the input again.

    The interpreter's distinct bytes are exact. Instead of one value there may be partial results, if each program of
    the later launch reads all of these: it then requests them as many times as there are programs.
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
    """Whether each program of the launch reads these bytes: a good part of them, as a mask may leave some out."""
    blocks = case.at("grid_blocks", launch)
    again = _bytes(case, "requested_bytes_read", launch) - _bytes(case, "unique_bytes_read", launch)
    return blocks is not None and blocks.value > 1 and again >= _ALL * (blocks.value - 1) * nbytes


def _bytes(case: CaseValues, metric: str, launch: int) -> float:
    known = case.at(metric, launch, "interpreter")
    return known.value if known else 0.0
