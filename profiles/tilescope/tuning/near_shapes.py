"""Winners of near shapes, which are raced first: they are likely to lead, and then drop the others early. Pure."""

from __future__ import annotations

import ast
import math
from collections.abc import Sequence
from typing import TypeGuard

from tilescope.tuning.memory import Problem, Winner


def winners(known: Sequence[Winner], problem: Problem) -> list[str]:
    """Configs that won the same kernel at other shapes on a GPU of the same name, those of the nearest shape first."""
    found = [
        (away, winner.config)
        for winner in known
        if (winner.problem.digest, winner.problem.device) == (problem.digest, problem.device)
        if math.isfinite(away := distance(winner.problem.shape, problem.shape))
    ]
    return list(dict.fromkeys(config for _, config in sorted(found)))


def distance(one: str, other: str) -> float:
    """The Euclidean distance of the logarithms of two shapes' sizes.

    It is infinite where they differ in anything but sizes, such as a dtype, or are not texts of tuples.
    """
    ours, theirs = _values(one), _values(other)
    if ours is None or theirs is None or len(ours) != len(theirs):
        return math.inf
    squares = 0.0
    for mine, their in zip(ours, theirs, strict=True):
        if _is_size(mine) and _is_size(their):
            squares += math.log(mine / their) ** 2
        elif mine != their:
            return math.inf
    return math.sqrt(squares)


def _values(shape: str) -> tuple[object, ...] | None:
    try:
        found = ast.literal_eval(shape)
    except (ValueError, SyntaxError):
        return None
    return found if isinstance(found, tuple) else None


def _is_size(value: object) -> TypeGuard[int | float]:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and value > 0
