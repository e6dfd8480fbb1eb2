"""What a launch's resources let a multiprocessor hold."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tilescope_dashboard.components import html_text
from tilescope_dashboard.data.units import write

#: The view in a run that knows no launch's resources.
NOTHING = html_text.heading(
    "Occupancy",
    "No launch of this kernel has its registers known in this run: the compiler collector finds them, without a GPU too.",
)
_READING = "Hollow marks are theory, filled ones were measured; each curve changes one resource and keeps the others."


def headline(launch: Mapping[str, Any], target: str) -> str:
    """The launch, a row of ``frames.occupancies``, on the architecture ``target``."""
    case = f"{launch['impl']}, {launch['workload']}, {launch['pass']}"
    blocks = f"{launch['active_blocks']:.0f} block{' fits' if launch['active_blocks'] == 1 else 's fit'}"
    return html_text.heading(
        f"{write(launch['occupancy'], 'ratio')} occupancy, limited by {launch['limiter']}",
        f"{launch['function'] or launch['impl']} ({case}) on {target}: {blocks} on one multiprocessor, of "
        f"{launch['block_threads']:.0f} threads each. {_READING}",
    )
