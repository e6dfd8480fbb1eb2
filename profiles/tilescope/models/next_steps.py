"""What to do next about a step: at most five suggestions, each with its predicted saving. Pure: step and ledger -> suggestions.

A saving is of the whole step, and each is predicted as if it were the only change. The step is never shorter than the CPU's time for the
launches that are left.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from functools import cached_property

from tilescope.hardware import roofs
from tilescope.models import chains as chained
from tilescope.models import ledger as ledgers
from tilescope.models import step_problems
from tilescope.models.chains import FAIR, GOOD, Chain, Saves
from tilescope.models.ledger import Entry, Ledger
from tilescope.models.step_tables import pattern
from tilescope.table import units
from tilescope.table.run import Device
from tilescope.table.step import BACKWARD, KERNEL, OPTIMIZER, Operator, Step

#: Most suggestions, the share of the step from which a saving is worth a line, and most chains and operations of one that are named.
MOST, WORTH, _FUSIONS, _NAMED = 5, 0.02, 2, 4
#: The share of a roof that a good matrix product reaches, and the seconds of a short one.
_GOOD_PRODUCT, _PRODUCT_LEAST = 0.75, 5e-6
#: Seconds between the kernels of a CUDA graph, and the most.
_IN_GRAPH, _IN_GRAPH_MOST = 1e-6, 2e-6
#: The most over the least saving up to which the two are not told.
_CLOSE = 1.05
#: The share of floors from which a step is already good.
_ALREADY = 0.75
#: Passes over a parameter's tensors of Adam on lists of tensors, and of the fused one.
_ADAM_PASSES, _FUSED_PASSES = 20, 7
#: Launches that wait for the GPU from which the CPU waits to make another, and by how much a profiler slows the CPU.
_QUEUE, _PROFILED = 1000, 2.0
_PRODUCT = re.compile(r"(aten::)?(addmm|mm|bmm|baddbmm|_scaled_mm|_grouped_mm|linear|matmul)$")
#: Convolutions, kernels of those whose channels come first, which torch.compile may turn, and norms of their results.
_CONVOLUTION, _FIRST = re.compile(r"conv(olution|\d|_)"), re.compile("nchw|implicit_convolve", re.I)
#: cuDNN's kernels that turn channels, of which torch.compile leaves those of the step's ends.
_TURNS = re.compile("nchwToNhwc|nhwcToNchw")
_BATCH_NORM = re.compile(r"(batch|group|instance)_norm")
#: Their share of the kernels' time from which a compiled model's time cannot be predicted.
_CONVOLVED = 0.2
#: Suggestions that end waits, and so tell of seconds of the step.
_OF_WAITS = ("graph", "capture", "stop")
#: Operators that give a value of the GPU to Python.
_READ = re.compile(r"item$|_local_scalar_dense$")
_COPIES = re.compile(r"aten::(contiguous|clone|copy_|reshape|_to_copy|to)$")
#: Elements to which a 16-bit product's inner sizes are aligned.
_ALIGNED = 8
#: The same, where padding costs a copy: that pays for odd sizes alone, whose 2-byte loads cannot be asynchronous.
_ODD = 2


@dataclass(frozen=True)
class Suggestion:
    """One thing to do: ``text`` says what and where; ``least``, ``saving`` and ``most`` are seconds of the step.

    ``place`` is what it changes: a module's path, or the library's kernel; empty for the whole step. ``fewer`` is the number of
    launches that it saves.
    """

    kind: str
    text: str
    least: float
    saving: float
    most: float
    place: str = ""
    fewer: int = 0

    def line(self, step: float) -> str:
        """The suggestion as a line, its saving as a share of a step of so many seconds."""
        least, saving, most = (units.text(seconds, "second", 2) for seconds in (self.least, self.saving, self.most))
        least = least if self.least >= WORTH * step else "nothing"
        between = "" if self.most <= _CLOSE * self.least else f", between {least} and {most}"
        return f"{self.text}: saves about {saving} ({units.text(self.saving / step, 'ratio', 2)} of the step){between}"


@dataclass(frozen=True)
class _Pace:
    """What sets a step's time: kernels, the CPU's calls, and the GPU's waits for these."""

    step: Step
    ledger: Ledger
    device: Device

    @cached_property
    def launches(self) -> list[tuple[Entry, Operator]]:
        return [(entry, self.step.operator(entry.launch)) for entry in self.ledger.entries]

    @cached_property
    def chains(self) -> list[Chain]:
        return chained.of(self.step, self.ledger, self.device)

    @cached_property
    def waits(self) -> float:
        """Seconds of the step in which the GPU waits for a launch."""
        return self.ledger.parts["cpu"] + self.ledger.parts["gaps"]

    @cached_property
    def real(self) -> float:
        """The share of the trace's waits that the step has without a profiler."""
        traced = sum(gap.cpu + gap.launch for gap in self.ledger.gaps)
        return self.waits / traced if traced else 0.0

    @cached_property
    def cpu(self) -> float:
        """The CPU's seconds for a step, without its waits for the GPU; 0 where the trace cannot tell."""
        step, takes = self.step, self.ledger.step
        stopped = sum(stop.end - stop.start for stop in step.stops)
        calls = [(launch.call, launch.start) for launch in step.launches if launch.call is not None]
        if step.cpu is not None:
            # The shortest time is of no typical step: one that waits for the CPU takes what that needs.
            needs = (step.cpu if step.cpu - stopped < self.ledger.busy else takes) - stopped
        elif (
            step.next_call is None
            or not calls
            or max(at - call for call, at in calls) * len(calls) >= _QUEUE * step.window
        ):
            needs = 0.0
        else:
            needs = (step.next_call - min(call for call, _ in calls) - stopped) / _PROFILED
        return min(max(needs, 0.0), takes)

    @property
    def loop(self) -> bool:
        """Whether the step is a loop's, which is not captured whole, and trains."""
        trains = any(operator.direction in (BACKWARD, OPTIMIZER) for operator in self.step.operators)
        return trains and not self.step.found.startswith("calls of")

    def of(self, one: Suggestion) -> Suggestion:
        """The suggestion, from seconds of the kernels to seconds of the step.

        A step takes as long as the longer of its kernels and the CPU's calls. What it takes beyond, waits at stops and launches, and the
        CPU's time shrink with the launches, or stay at least.
        """
        if one.kind in _OF_WAITS:
            # Where the CPU sets the pace, a step may take as little as its shortest.
            shortest = self.step.cpu if self.step.cpu is not None and self.cpu >= self.ledger.busy else self.ledger.step
            return replace(one, least=max(one.least - max(self.ledger.step - shortest, 0.0), 0.0))
        takes, kernels = self.ledger.step, self.ledger.step - self.waits
        beyond = takes - max(kernels, self.cpu)

        def saved(shorter: float, left: float) -> float:
            return takes - max(kernels - shorter, self.cpu * left) - beyond * left

        saving = saved(one.saving, 1 - one.fewer / len(self.ledger.entries))
        return replace(one, least=min(one.least, saved(one.least, 1.0)), saving=saving, most=max(one.most, saving))


def suggestions(step: Step, ledger: Ledger, device: Device) -> list[Suggestion]:
    """The suggestions, the largest least saving first. Empty for a step that is already good."""
    pace = _Pace(step, ledger, device)
    rules: tuple[Callable[[_Pace], Iterable[Suggestion]], ...] = (
        _graph, _stops, _compile, _fusions, _library, _optimizer, _tf32, _padding, _copies,
    )  # fmt: skip
    worth = [found for rule in rules for one in rule(pace) if (found := pace.of(one)).saving >= WORTH * ledger.step]
    return sorted(worth, key=lambda one: (-max(one.least, WORTH * ledger.step), -one.saving))[:MOST]


def already_good(ledger: Ledger) -> str:
    """What to tell of a step for which nothing is suggested."""
    least = units.text(WORTH, "ratio", 2)
    nothing = f"No change that Tilescope knows would save {least} of this step"
    if not ledger.floored:
        busy = units.text(ledger.busy / ledger.step if ledger.step else 0.0, "ratio", 2)
        return (
            f"{nothing}: the GPU is busy for {busy} of it. Most kernels have no known floor, "
            "as in CUDA graphs and in traces without record_shapes=True."
        )
    share = ledger.parts["floor"] / ledger.step if ledger.step else 0.0
    reached = f"{units.text(share, 'ratio', 2)} of the step is at the roofs"
    if share >= _ALREADY:
        return f"This step is already good: {reached}, and no change that Tilescope knows would save {least} of it."
    return f"{nothing}; {reached}."


def _graph(pace: _Pace) -> Iterator[Suggestion]:
    launches = sum(entry.launch.kind == KERNEL and not entry.launch.in_graph for entry in pace.ledger.entries)
    # A graph cannot have the CPU wait: it saves what is left without the stops.
    stops = list(_stops(pace))
    stopped = sum(one.saving for one in stops)
    least, saving = (pace.waits - launches * gap - stopped for gap in (_IN_GRAPH_MOST, _IN_GRAPH))
    if launches > 1 and saving > 0 and not (pace.loop and len(pace.chains) > 1):  # else it is compiled
        yield Suggestion(
            "capture" if pace.loop else "graph",
            f"Capture the step, whose {units.several(launches, 'launch', 'launches')} wait for the CPU, in a CUDA graph "
            f"(torch.compile(mode='reduce-overhead') or torch.cuda.graph{', once its stops are gone' if stops else ''})",
            max(least, 0.0),
            saving,
            pace.waits,
        )


def _stops(pace: _Pace) -> Iterator[Suggestion]:
    by_place: dict[tuple[str, str], list[float]] = {}
    for stop in pace.step.stops:
        # The queue is empty once the call returns: the next launch is late by what the CPU needs to make it.
        near = [gap for gap in pace.ledger.gaps if gap.end > stop.end and gap.start <= stop.end + 1e-5]
        if late := sum(gap.cpu for gap in near if stop.start <= gap.end):
            what = stop.operator.removeprefix("aten::") or stop.name
            by_place.setdefault((what, stop.site or pattern(stop.module)), []).append(late)
    for (what, where), saved in by_place.items():
        saving = min(sum(saved), pace.waits - len(pace.ledger.entries) * _IN_GRAPH, pace.ledger.step - pace.cpu)
        text = f"Move {what}{_at(where)}, where the CPU and then the GPU waits, out of the step ({units.several(len(saved), 'time')})"
        # The later waits may stay, or end too.
        yield Suggestion("stop", text, min(sum(saved) * pace.real, saving), saving, pace.waits)


def _fusions(pace: _Pace) -> Iterator[Suggestion]:
    """Chains of launches between matrix products, those of equal operations together."""
    groups: dict[tuple[str, tuple[str, ...]], list[Chain]] = {}
    for chain in pace.chains:
        if chain.alone:
            groups.setdefault((chain.direction, chain.names), []).append(chain)
    largest = sorted(groups.items(), key=lambda one: -sum(chain.saves.saving for chain in one[1]))[:_FUSIONS]
    for (direction, names), found in largest:
        where = found[0].site or pattern(chained.common([pattern(chain.module) for chain in found]))
        more = f" and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
        text = (
            f"Fuse {', '.join(names[:_NAMED])}{more} into one kernel{f' in {where}' if where else ''}{_pass(direction)}"
        )
        times = f", {len(found)} times" if len(found) > 1 else ""
        yield Suggestion(
            "fuse",
            text + times,
            *chained.total(chain.saves for chain in found),
            fewer=sum(chain.fewer for chain in found),
        )


def _compile(pace: _Pace) -> Iterator[Suggestion]:
    """Compiles the model, which fuses and launches less; with CUDA graphs where the CPU is then still late."""
    step, ledger = pace.step, pace.ledger
    chains = [chain for chain in pace.chains if chain.fewer]
    if len(chains) < 2:
        return
    common = chained.common([chain.module for chain in chains])
    # A list of modules is not called.
    place = common if "." in common and any(operator.module == common for operator in step.operators) else ""
    padded = list(_padding(pace, _ODD))
    least, saving, most = chained.total(
        [*(one.saves for one in pace.chains), *(Saves(one.least, one.saving, one.most) for one in padded)]
    )
    fewer, unsure = sum(chain.fewer for chain in chains), ""
    fuses = f"which fuses {len(chains)} chains of small kernels{' and pads products' if padded else ''}"
    convolutions = [entry for entry, operator in pace.launches if _CONVOLUTION.search(operator.name)]
    turned = sum(entry.share for entry in convolutions if _FIRST.search(entry.launch.name))
    if (
        turned + sum(entry.share for entry, of in pace.launches if _BATCH_NORM.search(of.name))
        >= _CONVOLVED * ledger.busy
    ):
        unsure = ", and makes convolutions and their norms faster or slower"
        saving += sum(entry.share for entry in convolutions if _TURNS.search(entry.launch.name))
        # At most, convolutions reach their roofs.
        most += sum(entry.above for entry in convolutions)
    # The code is compiled anew where such a value changes it.
    read = next((stop for stop in step.stops if stop.module and _READ.search(stop.operator)), None)
    if read:
        unsure = (
            f", once {read.operator.removeprefix('aten::')} is gone{_at(read.site or pattern(read.module))}{unsure}"
        )
    least, most = 0.0 if unsure else least, most + pace.waits
    text = f"Compile {place or 'the model'} (torch.compile), {fuses}{unsure}"
    yield Suggestion("edit" if read else "compile", text, least, saving, most, place, fewer)
    left = 1 - fewer / len(ledger.entries)
    if pace.cpu * left > ledger.busy - saving and pace.loop and not read:
        # The optimizer is not part of the model's graphs.
        own = {entry.place for entry, operator in pace.launches if operator.direction == OPTIMIZER}
        ends = pace.waits - pace.real * sum(gap.cpu + gap.launch for gap in ledger.gaps if gap.before in own)
        captured = (len(ledger.entries) - len(own)) * left
        text = f"Compile the model with CUDA graphs (torch.compile(mode='reduce-overhead')), {fuses} and ends waits for the CPU{unsure}"
        slow, quick = (max(ends - captured * gap, 0.0) for gap in (_IN_GRAPH_MOST, _IN_GRAPH))
        yield Suggestion("graph", text, 0.0 if unsure else least + slow, saving + quick, most)


def _library(pace: _Pace) -> Iterator[Suggestion]:
    """Operators that a recorded kernel of the library does faster on this GPU, those of one kernel and pass together."""
    by_problem: dict[step_problems.Solved, list[Entry]] = {}
    for entry, operator in pace.launches:
        # The libraries' own products and attention are compared by tuning, not by a size nearby.
        solved = step_problems.solver(operator) if operator.name.startswith("aten::") and not operator.flops else None
        if solved and entry.launch.kind == KERNEL:
            by_problem.setdefault(solved, []).append(entry)
    groups: dict[tuple[str, str], list[tuple[Saves, step_problems.Evidence]]] = {}
    for solved, entries in by_problem.items():
        time, calls = sum(entry.share for entry in entries), sum(entry.launch.part for entry in entries)
        known = time >= WORTH * pace.ledger.step / MOST and step_problems.evidence(solved, pace.device.name)
        if known and time > known.seconds * calls:
            floors = sum(entry.least for entry in entries)
            saves = Saves(max(time - known.most * calls, 0.0), time - known.seconds * calls, time - floors)
            groups.setdefault((solved.kernel, solved.direction), []).append((saves, known))
    for (kernel, direction), found in groups.items():
        at = f"recorded at {found[0][1].workload} (run {found[0][1].run})"
        saved = chained.total(saves for saves, _ in found)
        yield Suggestion("library", f"Use Tilescope's {kernel}{_pass(direction)}, {at}", *saved, kernel)


def _optimizer(pace: _Pace) -> Iterator[Suggestion]:
    own = [(entry, operator) for entry, operator in pace.launches if operator.direction == OPTIMIZER]
    names = " ".join(operator.outer for _, operator in own)
    if "fused" in names or not ("addcdiv" in names or "lerp" in names):
        return
    time = sum(entry.share for entry, _ in own)
    # The square roots read and write one tensor of each parameter's size.
    roots = sum(chained.needed(operator, entry) for entry, operator in own if operator.name == "aten::_foreach_sqrt")
    hbm = roofs.roof(pace.device, "hbm")
    floor = _FUSED_PASSES * roots / 2 / hbm.value if roots and hbm else time * _FUSED_PASSES / _ADAM_PASSES
    # Elements of 16 bits are more operations for the same bytes.
    half = any(half in own[0][0].launch.name for half in ("BFloat16", "Half"))
    least, saving = (max(time - floor / share, 0.0) for share in (FAIR, FAIR if half else GOOD))
    text = (
        f"Give the optimizer fused=True ({units.several(len(own), 'launch', 'launches')} pass over the parameters about "
        f"{_ADAM_PASSES} times, a fused one {_FUSED_PASSES} times)"
    )
    yield Suggestion("optimizer", text, least, saving, time - floor + pace.waits, fewer=len(own) - 1)


def _tf32(pace: _Pace) -> Iterator[Suggestion]:
    if (rate := roofs.roof(pace.device, "tf32")) is None:
        return
    saves = list[Saves]()
    calls = [
        (entry, operator)
        for entry, operator in pace.launches
        if operator.flops and operator.dtypes and entry.launch.kind == KERNEL
    ]
    # A call that multiplies as TF32 also transposes and adds.
    quick = {
        entry.launch.operator
        for entry, operator in calls
        if entry.launch.counted.get("tensor_ops_tf32") or ledgers.pipe(operator.dtypes, entry.launch.name) == "tf32"
    }
    for entry, operator in calls:
        if ledgers.pipe(operator.dtypes, "") == "fp32" and entry.launch.operator not in quick:
            seconds = (operator.flops or 0.0) * entry.launch.part / rate.value
            moved = (operator.bytes_needed or 0.0) * entry.launch.part
            usual, fastest = chained.rates(pace.device, moved)
            # A short product does not become shorter by a faster pipe.
            fair = max(seconds / FAIR, moved / usual / FAIR, _PRODUCT_LEAST)
            good = max(seconds / _GOOD_PRODUCT, moved / usual, _PRODUCT_LEAST)
            quickest = max(seconds, moved / fastest)
            saves.append(Saves(*(max(entry.share - takes, 0.0) for takes in (fair, good, quickest))))
    if saves:
        products = units.several(len(saves), "fp32 product")
        text = f"Let {products} use TF32, not the CUDA cores (torch.set_float32_matmul_precision('high'))"
        yield Suggestion("dtype", text, *chained.total(saves))


def _padding(pace: _Pace, aligned: int = _ALIGNED) -> Iterator[Suggestion]:
    """16-bit products whose inner sizes are no multiple of ``aligned``, against the rate of the step's other products."""
    even, odd = list[float](), list[tuple[Entry, Operator, float]]()
    for entry, operator in pace.launches:
        if (
            operator.flops
            and _PRODUCT.search(operator.name)
            and ledgers.pipe(operator.dtypes, "") in ("bf16", "fp16")
            and entry.share
        ):
            work = operator.flops * entry.launch.part
            if any(shape[-1] % aligned or shape[-2] % aligned for shape in operator.shapes if len(shape) > 1):
                odd.append((entry, operator, work))
            else:
                even.append(work / entry.share)
    rate = roofs.roof(pace.device, "bf16")
    if not odd or rate is None:
        return
    usual = sorted(even)[len(even) // 2] if even else rate.value * FAIR
    slow = min(usual, rate.value * FAIR)
    by_shape: dict[tuple[tuple[int, ...], ...], list[Saves]] = {}
    for entry, operator, work in odd:
        most = entry.share - entry.least
        saves = Saves(max(entry.share - work / slow, 0.0), min(entry.share - work / usual, most), most)
        by_shape.setdefault(operator.shapes, []).append(saves)
    for shapes, found in by_shape.items():
        sizes = " by ".join("×".join(map(str, shape)) for shape in shapes if len(shape) > 1)
        text = f"Pad the product {sizes} to multiples of {_ALIGNED} ({units.several(len(found), 'time')})"
        if (saved := chained.total(found)).saving > 0:
            yield Suggestion("padding", text, *saved)


def _copies(pace: _Pace) -> Iterator[Suggestion]:
    groups: dict[tuple[str, str], list[float]] = {}
    for entry, operator in pace.launches:
        dtypes = {dtype for dtype, shape in zip(operator.dtypes, operator.shapes, strict=False) if shape}
        copies = entry.launch.kind == KERNEL and operator.name == "aten::copy_" and _COPIES.search(operator.outer)
        # A change of the dtype is more than a copy; the optimizer's copies are the caller's own.
        if copies and len(dtypes) == 1:
            place = chained.operation(operator.outer), operator.site or pattern(operator.module)
            groups.setdefault(place, []).append(entry.share)
    for (what, where), times in groups.items():
        text = f"Avoid {what}{_at(where)}, which only copies ({units.several(len(times), 'time')}): read the other layout, or write it at once"
        # What reads the other layout may become as much slower.
        yield Suggestion("copy", text, 0.0, sum(times), sum(times))


def _at(where: str) -> str:
    return f" at {where}" if where else ""


def _pass(direction: str) -> str:
    return " (backward)" if direction == BACKWARD else ""
