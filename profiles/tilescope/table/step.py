"""One step of a model: every launch of it, in order, with what made it. Times are seconds after the step's first launch began. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

#: Kinds of launches. A collective is a kernel that communicates; a fill sets memory.
KERNEL, COLLECTIVE, COPY, FILL = "kernel", "collective", "copy", "fill"
#: What a trace without marks of steps is a step of (``Step.found``).
WHOLE_TRACE = "the whole trace"
FORWARD, BACKWARD, OPTIMIZER = "forward", "backward", "optimizer"


@dataclass(frozen=True)
class Operator:
    """The operator whose call launched something.

    ``outer`` is the outermost operator around it. ``shapes`` and ``dtypes`` are those of its inputs, empty where the trace has none.
    ``module`` is the path of modules (``Decoder.layers.0.mlp``), for a backward pass that of the forward operator; ``site`` its line of code.
    ``bytes_needed`` and ``flops`` are modelled from the shapes; None where they are not known.
    """

    name: str
    outer: str = ""
    shapes: tuple[tuple[int, ...], ...] = ()
    dtypes: tuple[str, ...] = ()
    module: str = ""
    site: str = ""
    direction: str = ""
    bytes_needed: float | None = None
    flops: float | None = None


@dataclass(frozen=True)
class StepLaunch:
    """A launch, copy or fill.

    ``call`` is when the CPU began the call that made it, None where the trace lacks the call. ``operator`` is an index of ``Step.operators``.
    ``part`` is its share of what the operator needs, by time among the launches of one call. ``moved`` are a copy's bytes. ``counted`` maps metrics to values that CUPTI counted; it is empty for a launch that was not counted.
    """

    name: str
    kind: str
    start: float
    duration: float
    stream: str = ""
    call: float | None = None
    operator: int | None = None
    part: float = 1.0
    grid: tuple[int, ...] = ()
    block: tuple[int, ...] = ()
    moved: float | None = None
    in_graph: bool = False
    counted: Mapping[str, float] = field(default_factory=dict)

    @property
    def end(self) -> float:
        """When it ended."""
        return self.start + self.duration


@dataclass(frozen=True)
class Stop:
    """A call by which the CPU waited for the GPU: its name, when it began and ended, the operator, module and line that made it."""

    name: str
    start: float
    end: float
    operator: str = ""
    module: str = ""
    site: str = ""


@dataclass(frozen=True)
class Tried:
    """A suggestion that was applied: seconds of the step without and with it, and the relative difference of its results.

    ``why`` says why it could not be applied, or not whole; what is then not known is None. ``limit`` is the largest difference that rounding
    explains, ``where`` names the result that differs most. ``number`` and ``text`` are the suggestion's, ``predicted`` the seconds that it was to save,
    0 where that cannot be predicted. ``kernels`` maps names to the GPU's seconds for a step with the change.
    """

    plain: float | None = None
    changed: float | None = None
    difference: float | None = None
    limit: float = 0.0
    why: str = ""
    number: int = 0
    text: str = ""
    predicted: float = 0.0
    where: str = ""
    kernels: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class Step:
    """A step.

    ``window`` is its time on the GPU in the trace, from its first launch to the next step's. ``plain`` is its time without a profiler,
    ``cpu`` the CPU's from one step to the next; None where they are not known. ``next_call`` is when the CPU called the next step's first launch. ``away`` are the times in which the
    CPU was outside PyTorch. ``found`` says what the step is. ``tried`` are suggestions that were applied.
    ``power`` has a step's ``energy`` in joules, the mean ``power`` and the ``power_limit`` in watts, and the ``sm_clock``.
    """

    launches: tuple[StepLaunch, ...]
    operators: tuple[Operator, ...]
    window: float
    found: str = ""
    plain: float | None = None
    cpu: float | None = None
    next_call: float | None = None
    away: tuple[tuple[float, float], ...] = ()
    stops: tuple[Stop, ...] = ()
    tried: tuple[Tried, ...] = ()
    power: Mapping[str, float] = field(default_factory=dict)

    def operator(self, launch: StepLaunch) -> Operator:
        """The operator of a launch; one without a name where the trace lacks it."""
        return self.operators[launch.operator] if launch.operator is not None else _UNKNOWN


_UNKNOWN = Operator("")
