"""Types of the JSON documents that commands print for other programs. JSON Schemas are generated from them.

Within a version fields may be added; to remove a field or change its meaning takes a new version. Values are in base SI units. An
unknown value is null, never 0.
"""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import Meta, Struct, field

from tilescope.models.advice.finding import Bound, Evidence
from tilescope.models.advice.finding import meaning as _is
from tilescope.models.code_change import Moved
from tilescope.table.run import Run

Number = float | None
Kernel = Annotated[str, _is("The kernel's name.")]
Impl = Annotated[str, _is("The implementation: triton, eager, compile or a library's.")]
Pass = Annotated[str, _is("forward, backward, or forward+backward.")]
Workload = Annotated[str, _is("The problem size: 8192x4096-bf16.")]
Config = Annotated[str, _is("The case's config: BLOCK=128,num_warps=8; empty for the implementation's own choice.")]
Verdict = Literal["fail", "undecided", "not compared", "pass"]


class Document(Struct, kw_only=True, tag_field="schema"):
    """Fields of every document."""

    tilescope: Annotated[str, _is("The version of Tilescope that wrote the document.")]


class Failed(Struct):
    """A case that gave no result of a collector."""

    case: str
    collector: str
    message: Annotated[str, _is("The reason, for people.")]


class Gpu(Struct):
    """The GPU of a run."""

    name: Annotated[str, _is("The GPU's name as its driver reports it.")]
    target: Annotated[str, _is("Its architecture: sm_90.")]
    measured: Annotated[bool, _is("False where no such GPU took part: the whole run is predicted.")]
    where: Annotated[str, _is("The part that it took: on NVIDIA H200, or predicted for NVIDIA H200.")] = ""


class About(Struct):
    """The identification of a run."""

    id: Annotated[str, _is("The run's id.")]
    title: Annotated[str, _is("Its title, or empty.")]
    started: Annotated[str, _is("ISO 8601, UTC.")]
    complete: Annotated[bool, _is("False where it was cancelled or its process died.")]
    git_revision: Annotated[str, _is("The revision of its source, with + where it had changes; or empty.")]
    notes: Annotated[list[str], _is("Remarks on the run: skipped cases, versions, damage.")]
    failures: list[Failed]
    device: Gpu


class Identified(Struct):
    """The columns that identify a case within a run."""

    kernel: Kernel
    impl: Impl
    direction: Pass = field(name="pass")
    workload: Workload
    config: Config

    @property
    def case(self) -> str:
        return "/".join(filter(None, (self.kernel, self.impl, self.direction, self.workload, self.config)))


class AdvisedCase(Identified):
    """A case with its times and its bound."""

    measured: Annotated[bool, _is("Whether its GPU time is known.")]
    gpu_time: Annotated[Number, _is("Median over repetitions of the sum over launches, in seconds.")]
    gpu_time_low: Annotated[Number, _is("The 5 % quantile, in seconds.")]
    gpu_time_high: Annotated[Number, _is("The 95 % quantile, in seconds.")]
    time_source: Annotated[str, _is("The collector that timed it: torch_profiler or ncu; empty without a time.")]
    interval: Annotated[Number, _is("Interval between events around the call, in seconds.")]
    graph_time: Annotated[Number, _is("CUDA-graph replay of the call, in seconds.")]
    floor: Annotated[Number, _is("Seconds that the algorithm's bytes and operations take at the device's roofs.")]
    floor_fraction: Annotated[Number, _is("floor / gpu_time: the share of the roofline that is reached.")]
    roof: Annotated[str, _is("The roof of floor_fraction.")]
    bound: Annotated[Literal["memory", "compute", "latency", ""], _is("The limit of its speed; empty without a cost.")]
    why: Annotated[str, _is("A sentence for people.")]
    impossible: Annotated[bool, _is("Whether its measurements are impossible: its findings say why.")]
    fault: Annotated[
        str,
        _is(
            "Its fault: does-not-compile, cannot-launch, out-of-bounds, wrong-code, wrong-result, crash, failed; or empty."
        ),
    ]


class FoundReason(Identified):
    """A reason why a case is slow, or why its measurements are impossible."""

    rule: Annotated[str, _is("The rule's name: extra-bytes, spills, impossible-roof, distance, …")]
    title: Annotated[str, _is("The reason in a sentence.")]
    remedy: Annotated[str, _is("What to do.")]
    launch: Annotated[int | None, _is("The launch that it is about, counted from 0; null for the whole case.")]
    function: Annotated[str, _is("That launch's kernel function, or empty.")]
    measured: Annotated[bool, _is("Whether its evidence was observed on hardware; otherwise it is predicted.")]
    impossible: Annotated[bool, _is("Whether it says that the case's measurements are impossible.")]
    fault: Annotated[bool, _is("Whether it says that the case is wrong or did not run: then it is the only finding.")]
    explanation: Annotated[str, _is("More about a fault, with the line of code where it is known; or empty.")]
    origin: Annotated[Literal["ours", "nvidia"], _is("The author of the rule.")]
    bound: Annotated[Bound | None, _is("Null where the known values give no bound.")]
    evidence: Annotated[list[Evidence], _is("The most telling value first.")]


class Advice(Document, kw_only=True, tag="advice"):
    """The output of 'tilescope advise RUN --json': cases of a run, and reasons why each is slow.

    Findings are sorted: faults first, then impossible measurements, then by potential speedup. A model's step has suggestions instead.
    """

    version: Literal[1] = 1
    run: About
    cases: list[AdvisedCase]
    findings: list[FoundReason]
    suggestions: Annotated[list[str], _is("What to do next about a model's step, with what it saves.")] = []


class ComparedSide(Struct):
    """A run, or one implementation of it."""

    run: About
    impl: Annotated[str | None, _is("The chosen implementation; null for all, each compared with its own.")]


class ComparedCase(Identified):
    """A case that both sides have. Fields without a prefix are the candidate's."""

    baseline_kernel: Kernel
    baseline_impl: Impl
    baseline_config: Config
    time: Annotated[Number, _is("The candidate's median GPU time, in seconds.")]
    baseline_time: Annotated[Number, _is("The baseline's median GPU time, in seconds.")]
    speedup: Annotated[Number, _is("baseline_time / time: above 1 it is faster. Null without comparable times.")]
    speedup_low: Annotated[Number, _is("Lower end of the speedup's 95 % interval.")]
    speedup_high: Annotated[Number, _is("Upper end; null also where a single repetition leaves it open.")]
    verdict: Annotated[
        Literal["wrong", "slower", "faster", "alike", "baseline wrong", "not timed", "not comparable"],
        _is("On the candidate. A difference counts where the interval excludes 1."),
    ]
    fault: Annotated[str, _is("What is wrong with the candidate, or with the baseline; empty where nothing is.")]
    bytes: Annotated[Number, _is("HBM bytes: counted, or predicted by the interpreter.")]
    baseline_bytes: Number
    registers: Annotated[Number, _is("Registers a thread of the longest launch.")]
    baseline_registers: Number
    shared_memory: Annotated[Number, _is("Bytes of shared memory a block of the longest launch.")]
    baseline_shared_memory: Number
    spill_bytes: Annotated[Number, _is("Bytes of spills in the code, a thread.")]
    baseline_spill_bytes: Number
    theoretical_occupancy: Annotated[Number, _is("Between 0 and 1.")]
    baseline_theoretical_occupancy: Number
    achieved_occupancy: Annotated[Number, _is("Between 0 and 1.")]
    baseline_achieved_occupancy: Number
    source: Annotated[str, _is("The clock of both times: torch_profiler or ncu.")]
    run: Annotated[str, _is("The candidate's run.")]
    baseline_run: Annotated[str, _is("The baseline's run.")]


class CompiledLaunch(Identified):
    """A launch that both sides compiled."""

    function: str
    file: Annotated[str, _is("The file of its source lines.")]
    worse: Annotated[bool, _is("Whether it got worse: by its time where both sides have one, else by its code.")]
    speedup: Annotated[Number, _is("Of its case: above 1 the candidate is faster. Null without comparable times.")]
    speedup_low: Annotated[Number, _is("Lower end of the speedup's 95 % interval.")]
    speedup_high: Annotated[Number, _is("Upper end of it.")]
    moved: Annotated[list[Moved], _is("The worst first.")]


class StepKernel(Struct):
    """Kernels of one place in two steps of a model. Fields without a prefix are the candidate's."""

    name: Annotated[str, _is("Their readable names; empty where a side has none.")]
    baseline_name: str
    operator: Annotated[str, _is("The operator that launched them, or empty.")]
    module: Annotated[str, _is("The module, with a star for each layer's number.")]
    direction: str = field(name="pass")
    launches: int
    baseline_launches: int
    time: Annotated[Number, _is("Their share of the step, in seconds.")]
    baseline_time: Number


class ComparedStep(Struct):
    """Two steps of a model."""

    time: Annotated[Number, _is("The candidate's time of a step, in seconds.")]
    baseline_time: Number
    kernels: Annotated[list[StepKernel], _is("The largest difference first.")]


class Compared(Struct):
    """A candidate compared with the baseline."""

    candidate: ComparedSide
    sentence: Annotated[str, _is("The comparison in a sentence.")]
    obstacles: Annotated[list[str], _is("Reasons why no times are compared; empty where they are.")]
    doubts: Annotated[list[str], _is("Reasons to doubt small differences: runs of different processes.")]
    changes: Annotated[list[str], _is("Versions and sources that differ.")]
    difference: Annotated[list[str], _is("A unified diff of the kernels' sources, a line each.")]
    cases: Annotated[list[ComparedCase], _is("The slowest candidate first.")]
    code: Annotated[list[CompiledLaunch], _is("The launches that both sides compiled; empty without --code.")]
    step: Annotated[ComparedStep | None, _is("Of two runs of a model's step, which have no cases; else null.")]


class Comparison(Document, kw_only=True, tag="comparison"):
    """The output of 'tilescope compare BASELINE CANDIDATE… --json': each candidate compared with the baseline."""

    version: Literal[2] = 2
    baseline: ComparedSide
    comparisons: list[Compared]


class TriedRelease(Struct):
    """A release that a bisection tried."""

    packages: str
    said: Annotated[str, _is("What it does to the launch that got worst.")]


class Upgrade(Document, kw_only=True, tag="upgrade"):
    """The output of 'tilescope upgrade --json': the launches of a script or of kernels under two sets of packages."""

    version: Literal[1] = 1
    verdict: Annotated[str, _is("What got worse, in a sentence.")]
    baseline: About
    candidate: About
    changes: Annotated[list[str], _is("Versions that differ.")]
    obstacles: Annotated[list[str], _is("Reasons why no times are compared; empty where they are.")]
    broken: Annotated[list[Failed], _is("Failures that only the candidate has.")]
    alone: Annotated[list[str], _is("Cases and functions that one side lacks.")]
    configs: Annotated[list[str], _is("Cases that chose another config.")]
    launches: Annotated[list[CompiledLaunch], _is("The worst first.")]
    bisected: Annotated[list[TriedRelease], _is("In the order they were tried; the last is the first that is worse.")]


class GateLimits(Struct):
    """The largest accepted losses; null leaves a quantity out."""

    slowdown: Annotated[Number, _is("Growth of the time, as a share: 0.03 is 3 %.")] = 0.03
    bytes: Annotated[Number, _is("Growth of HBM bytes, as a share.")] = 0.02
    registers: Annotated[Number, _is("Growth, as a share.")] = 0.1
    shared_memory: Annotated[Number, _is("Growth, as a share.")] = 0.1
    spills: Annotated[Number, _is("Bytes a thread.")] = 0.0
    occupancy: Annotated[Number, _is("Ratio lost: 0.1 is ten percentage points.")] = 0.0


class GateCheck(Identified, kw_only=True):
    """A check of one quantity of one case."""

    what: Annotated[
        str,
        _is("The quantity; case: whether the candidate has the case at all; result: whether its result is right."),
        Meta(extra_json_schema={"enum": [
            "case", "result", "gpu_time", "graph_time", "interval", "bytes", "registers", "shared_memory", "spill_bytes",
            "theoretical_occupancy",
        ]}),
    ]  # fmt: skip
    verdict: Annotated[Verdict, _is("undecided: the limit is within the noise. not compared: a side lacks the value.")]
    said: Annotated[str, _is("The check in a sentence.")]
    baseline: Annotated[Number, _is("The baseline's value in a base unit, of the launch that lost most.")] = None
    candidate: Annotated[Number, _is("The candidate's value.")] = None
    change: Annotated[Number, _is("Growth as a share; spills in bytes a thread, occupancy as ratio lost.")] = None
    low: Annotated[Number, _is("Lower end of the 95 % interval of a time's change.")] = None
    high: Annotated[Number, _is("Its upper end; null also where a single repetition leaves it open.")] = None
    limit: Annotated[Number, _is("The largest accepted change.")] = None
    source: Annotated[str, _is("The source of both values.")] = ""
    function: Annotated[str, _is("The launch's kernel function, where launches were compared one by one.")] = ""


class Gate(Document, kw_only=True, tag="gate"):
    """The output of 'tilescope gate BASELINE CANDIDATE --json': every check of every case of the baseline."""

    version: Literal[2] = 2
    baseline: About
    candidate: About
    verdict: Annotated[Verdict, _is("The worst of the checks. Only fail fails it, or with --strict all but pass.")]
    limits: GateLimits
    notes: Annotated[list[str], _is("Reasons why no times are compared, and other changes.")]
    checks: list[GateCheck]


class TableRow(Struct, kw_only=True):
    """A value of the tidy table."""

    run_id: str
    kernel: Kernel
    impl: Impl
    direction: Pass = field(name="pass")
    workload: Workload
    config: Config
    dtype: Annotated[str, _is("The workload's dtype.")]
    launch: Annotated[int | None, _is("Position among the launches that the source saw; null for the whole case.")]
    function: Annotated[str, _is("That launch's kernel function.")]
    sample: Annotated[int | None, _is("The repetition; null where a value is not repeated.")]
    metric: Annotated[str, _is("The metric's name: gpu_time, dram_bytes_read, …")]
    value: Annotated[float, _is("In unit.")]
    unit: Annotated[str, _is("A base unit.")]
    source: Annotated[str, _is("The collector that it is from, or model.")]


class ShownRun(Document, kw_only=True, tag="run"):
    """The output of 'tilescope show RUN --json': a run and its whole table, a row a value."""

    version: Literal[1] = 1
    headline: Annotated[str, _is("The most important finding, in a line; empty for a run without any value.")] = ""
    run: Annotated[Run, _is("As run.json has it, with the device's roofs as far as the run's cases reached.")]
    folder: Annotated[str, _is("The run's folder.")]
    table: list[TableRow]


class ListedRun(Struct):
    """A run in the list."""

    id: Annotated[str, _is("The run's id.")]
    path: Annotated[str, _is("Its folder.")]
    title: str
    started: str
    device: str
    measured: bool
    kernels: list[str]
    sources: list[str]
    cases: int
    failures: int
    complete: bool
    recorded: Annotated[bool, _is("Whether it comes with Tilescope.")]
    error: Annotated[str, _is("Empty, or why it cannot be opened.")]


class Runs(Document, kw_only=True, tag="runs"):
    """The output of 'tilescope show --json': every run, newest first."""

    version: Literal[1] = 1
    runs: list[ListedRun]


#: The documents' types by their names.
TYPES = {str(kind.__struct_config__.tag): kind for kind in Document.__subclasses__()}
