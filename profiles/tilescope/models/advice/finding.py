"""Findings: what is wrong, the values that show it, the potential speedup, and the remedy. Pure."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any

from tilescope.models.impossible import RULES as IMPOSSIBLE
from tilescope.table import units
from tilescope.table.metrics import METRICS
from tilescope.table.sources import MEASURED

#: Whose rule it is.
OURS, NVIDIA = "ours", "nvidia"
#: The rule that says that results are wrong.
WRONG = "wrong-result"
#: The rule that says how far a case is from its roof (``distance``), and those that say that it reaches it.
DISTANCE, AT_ROOF = "distance", ("at-the-roof", "at-the-rate")

#: Roofs can be evidence too. Their provenance is their origin: ``measured`` here, or ``datasheet``.
_ROOF = "roof_"


@dataclass(frozen=True)
class Evidence:
    """One value that a finding rests on. ``metric`` is a name of METRICS, or ``roof_hbm`` for a device's roof.

    ``value`` in ``unit`` (a base unit); ``source`` as in the table, or a roof's origin.
    """

    metric: str
    value: float
    unit: str
    source: str

    @property
    def label(self) -> str:
        """What the value is, in words."""
        if self.metric.startswith(_ROOF):
            return f"{self.metric.removeprefix(_ROOF).replace('_', ' ').replace('hbm', 'HBM')} roof"
        return METRICS[self.metric].label.removesuffix(" of a launch")

    @property
    def text(self) -> str:
        """The value with its unit. A stall is a number of warps, which METRICS calls a ratio; it is no percentage."""
        return units.text(self.value, "" if self.metric.startswith("stall_") else self.unit)

    @property
    def measured(self) -> bool:
        """Whether hardware was observed; else the value is a prediction, a declaration or a datasheet's."""
        return self.source in MEASURED or self.source == "measured"


@dataclass(frozen=True)
class Bound:
    """The potential speedup if this were fixed, as a ratio, and the formula it comes from.

    ``clock`` is the time that would shrink: ``gpu_time`` or ``interval``. Clocks are never mixed. ``timed`` means that
    the remedy was measured: the ratio is then what it wins.
    """

    ratio: float
    formula: str
    clock: str = "gpu_time"
    timed: bool = False

    @property
    def most(self) -> str:
        """What to say before the ratio: ``up to``, or nothing where the cure was timed."""
        return "" if self.timed else "up to "


@dataclass(frozen=True)
class Finding:
    """One rule's answer for one case, or for one launch (``function``) of it.

    ``direction`` is the pass. ``evidence`` stands in the order of weight: the first is what gave it away. ``bound``
    is None where the values at hand bound nothing. ``origin`` is ``ours`` or ``nvidia``.
    """

    rule: str
    title: str
    remedy: str
    kernel: str
    direction: str
    workload: str
    impl: str
    config: str
    evidence: tuple[Evidence, ...]
    bound: Bound | None = None
    launch: int | None = None
    function: str = ""
    origin: str = OURS

    @property
    def case(self) -> tuple[str, ...]:
        """Kernel, implementation, pass, workload and config: whose finding it is within a run."""
        return (self.kernel, self.impl, self.direction, self.workload, self.config)

    @property
    def impossible(self) -> bool:
        """Whether it says that the case's measurements cannot be."""
        return self.rule in IMPOSSIBLE

    @property
    def of_results(self) -> bool:
        """Whether it says that measurements or results are wrong, and so nothing of what could be won."""
        return self.impossible or self.rule == WRONG

    @property
    def measured(self) -> bool:
        """Whether what gave it away was observed on hardware; else the finding is a prediction."""
        return self.origin == NVIDIA or (bool(self.evidence) and self.evidence[0].measured)

    def to_json(self) -> dict[str, Any]:
        """A JSON-ready dictionary, in the table's words (``pass``)."""
        bound = self.bound and dataclasses.asdict(self.bound)
        return {
            "rule": self.rule,
            "title": self.title,
            "remedy": self.remedy,
            "kernel": self.kernel,
            "pass": self.direction,
            "workload": self.workload,
            "impl": self.impl,
            "config": self.config,
            "launch": self.launch,
            "function": self.function,
            "measured": self.measured,
            "impossible": self.impossible,
            "origin": self.origin,
            "bound": bound,
            "evidence": [
                {"metric": e.metric, "value": e.value, "unit": e.unit, "source": e.source} for e in self.evidence
            ],
        }


def rank(finding: Finding) -> tuple[int, float]:
    """Sorts findings: what is impossible, what is wrong, what wins GPU time, most first, that the case is at its roof, what wins in the interval,
    those without a bound, and the distance.

    A kernel at its roof that is called late is first of all at its roof.
    """
    if finding.of_results:
        return 0, float(not finding.impossible)
    if finding.bound:
        return (1 if finding.bound.clock == "gpu_time" else 3), -finding.bound.ratio
    return (2 if finding.rule in AT_ROOF else 5 if finding.rule == DISTANCE else 4), 0.0
