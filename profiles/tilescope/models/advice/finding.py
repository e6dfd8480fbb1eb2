"""Findings: what is wrong, the values that show it, the potential speedup, and the remedy. Pure."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from msgspec import Meta

from tilescope.models import faults
from tilescope.models.impossible import RULES as IMPOSSIBLE
from tilescope.table import units
from tilescope.table.metrics import METRICS
from tilescope.table.sources import MEASURED

#: Origins of a rule.
OURS, NVIDIA = "ours", "nvidia"
#: The rule on code that probably does not do what is meant.
WARNING = "warning"
#: The rule on the distance from the roof, and the rules on being at it.
DISTANCE, AT_ROOF = "distance", ("at-the-roof", "at-the-rate")
#: The rule on idle tensor cores.
IDLE = "no-tensor-cores"

#: The least potential speedup of a finding, unless its remedy was timed.
WORTH = 1.05

#: The start of a roof's name as evidence. The source of a roof is its origin, ``measured`` or ``datasheet``.
_ROOF = "roof_"


def meaning(text: str) -> Meta:
    """A description in the JSON Schema of ``documents``."""
    return Meta(description=text)


@dataclass(frozen=True)
class Evidence:
    """One value that supports a finding."""

    metric: Annotated[str, meaning("A metric, or roof_hbm and the like for a device's roof.")]
    value: Annotated[float, meaning("In unit.")]
    unit: Annotated[str, meaning("A base unit: second, byte, ratio, count, …")]
    source: Annotated[str, meaning("Its origin: a collector, model, or a roof's origin.")]

    @property
    def label(self) -> str:
        if self.metric.startswith(_ROOF):
            return f"{self.metric.removeprefix(_ROOF).replace('_', ' ').replace('hbm', 'HBM')} roof"
        return METRICS[self.metric].label.removesuffix(" of a launch")

    @property
    def text(self) -> str:
        """The value with its unit. A stall is a number of warps, not a percentage, although METRICS has it as a ratio."""
        return units.text(self.value, "" if self.metric.startswith("stall_") else self.unit)

    @property
    def measured(self) -> bool:
        """Whether the value was measured on hardware, not predicted, declared or from a datasheet."""
        return self.source in MEASURED or self.source == "measured"


@dataclass(frozen=True)
class Bound:
    """The speedup that a remedy can give. Clocks are never mixed.

    A ratio that is neither timed nor most is an estimate of what this remedy wins by itself: code that is better in other ways too may
    win more.
    """

    ratio: Annotated[
        float, meaning("The speedup: measured where timed, an upper bound where most, otherwise an estimate.")
    ]
    formula: Annotated[str, meaning("The origin of the ratio.")]
    clock: Annotated[Literal["gpu_time", "interval"], meaning("The time that would shrink.")] = "gpu_time"
    timed: Annotated[bool, meaning("Whether the remedy itself was timed.")] = False
    most: Annotated[bool, meaning("Whether no implementation can win more.")] = False

    @property
    def text(self) -> str:
        """``up to 14×``, ``1.35× by this alone``, or ``1.04×`` where the remedy was timed."""
        ratio = units.times(self.ratio)
        return f"up to {ratio}" if self.most else ratio if self.timed else f"{ratio} by this alone"


@dataclass(frozen=True)
class Finding:
    """One rule's result for one case, or for one launch (``function``) of it.

    ``direction`` is the pass. ``evidence`` is in the order of weight; its first value triggered the rule. ``bound`` is None where
    the values give none. ``origin`` is ``ours`` or ``nvidia``. ``explanation`` says more about a fault, and where it is.
    """

    rule: str
    title: str
    remedy: str
    kernel: str
    impl: str
    direction: str
    workload: str
    config: str
    evidence: tuple[Evidence, ...]
    bound: Bound | None = None
    launch: int | None = None
    function: str = ""
    origin: str = OURS
    explanation: str = ""

    @property
    def problem(self) -> tuple[str, ...]:
        """Kernel, implementation, pass and workload."""
        return (self.kernel, self.impl, self.direction, self.workload)

    @property
    def case(self) -> tuple[str, ...]:
        """These and the config, which identify the case within a run."""
        return (*self.problem, self.config)

    @property
    def impossible(self) -> bool:
        return self.rule in IMPOSSIBLE

    @property
    def fault(self) -> bool:
        return self.rule in faults.LABELS

    @property
    def warning(self) -> bool:
        return self.rule == WARNING

    @property
    def of_results(self) -> bool:
        """Whether it says that the case or its measurements are wrong, and so nothing of what could be won."""
        return self.impossible or self.fault

    @property
    def measured(self) -> bool:
        """Whether its first evidence was measured on hardware; otherwise the finding is a prediction."""
        return self.origin == NVIDIA or (bool(self.evidence) and self.evidence[0].measured)

    def to_json(self) -> dict[str, Any]:
        """A JSON-ready dictionary, with the table's key ``pass`` for the direction."""
        fields = dataclasses.asdict(self)
        derived = {"pass": fields.pop("direction"), "measured": self.measured, "impossible": self.impossible}
        return {**fields, **derived, "fault": self.fault, "evidence": list(fields["evidence"])}


def rank(finding: Finding) -> tuple[int, float]:
    """The key to sort findings: faults, impossible measurements, warnings, bounds (the largest first, of GPU time or of the interval),
    being at the roof, those without a bound, and the distance from the roof.
    """
    if finding.of_results:
        return 0, float(finding.impossible)
    if finding.warning:
        return 0, 2.0
    if finding.bound:
        return 1, -finding.bound.ratio
    return (2 if finding.rule in AT_ROOF else 4 if finding.rule == DISTANCE else 3), 0.0
