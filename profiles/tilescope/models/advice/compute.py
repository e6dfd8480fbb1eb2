"""Rules on arithmetic and the shared memory that feeds it. Pure."""

from __future__ import annotations

from collections.abc import Iterator

from tilescope.hardware import roofs
from tilescope.models import bound, function_names
from tilescope.models.advice.finding import IDLE, Bound, Finding
from tilescope.models.advice.subject import LaunchValues, Subject, launches
from tilescope.table import units
from tilescope.table.sources import COUNTERS

#: The tensor pipe of each dtype.
_TENSOR = {"fp32": "tf32", "bf16": "bf16", "fp16": "fp16", "fp8": "fp8", "int8": "int8"}
_COUNTED = tuple(metric for metric in roofs.WORK if metric.startswith("tensor_"))
#: Flop per byte from which work counts as a matrix product.
_INTENSITY = 64
#: The least bytes that a product's programs load over the bytes of its operands.
_AGAIN = 1.5
#: The least ratio of a launch's operations to the largest launch's for it to count as a product too.
_OF_MOST = 0.1
#: The least share of the time that makes a finding.
_SHARE = 0.05
#: A clock of multiprocessors where none was measured, in hertz.
_CLOCK = 1.5e9
#: ncu also counts accesses to shared memory that meet other traffic: up to this share of the wavefronts.
NOISE = 0.2
_TRITONS = (
    "Triton's language lays shared memory out itself: load the operand in the order of its strides and let tl.dot "
    "transpose it (tl.trans), keep a tile's inner dimension at 64 bytes or more, reduce along the dimension "
    "of stride 1 (threads of one warp), or try num_stages and num_warps that choose another layout."
)

#: Reasons why products do not overlap, and remedies, by the compiler's metric.
_SERIALIZED = {
    "wgmma_short_of_registers": (
        "too few registers",
        "Take a smaller tile or more num_warps. An operand in registers needs some for each product under way: load it from "
        "shared memory, or wait for its product before the loop comes round.",
    ),
    "wgmma_accumulator_used": (
        "other instructions use its accumulator",
        "Leave an accumulator alone until its product was waited for: scale or mask it after the loop, or add up in a second "
        "one. A product under a condition, or of a mask that only some steps need, can go into a loop of its own.",
    ),
    "wgmma_serialized_otherwise": (
        "its output says why",
        "Run ptxas -v on the kernel's PTX, which the Source tab has, and read its line on wgmma.",
    ),
}


def no_tensor_cores(subject: Subject) -> Iterator[Finding]:
    """A matrix product on CUDA cores. Bound: roof of the tensor pipe / roof of fp32, over the products' share of the time.

    Operands may be widened and multiplied on another tensor pipe, so no counted tensor pipe may have worked. A case faster than
    CUDA cores does not run on them. The declared cost may be wrong, so counted operations must be those of a product too, and
    programs must read operands again, which no chain of elementwise operations does. The compiler sees Triton's kernels alone, so
    the interpreter must have counted a product in them, not in an operator of PyTorch beside them.
    """
    pipe = _TENSOR.get(subject.case.key["dtype"])
    flops = subject.total("algorithm_flops", "model")
    needed = [subject.total(f"algorithm_bytes_{way}", "model") for way in ("read", "written")]
    worked = [value for name in _COUNTED if (value := subject.total(name, *COUNTERS))]
    counted = subject.total(f"tensor_ops_{pipe}", *COUNTERS) or subject.total("tensor_instructions", "compiler")
    if not (pipe and flops and all(needed) and counted) or any(value.value > 0 for value in (*worked, counted)):
        return
    done = [flops, *filter(None, [subject.total("requested_flops", "interpreter")])]
    least = min(value.value for value in done)
    if counted.source == "compiler":
        own = [
            launch.get("requested_flops", "interpreter") for launch in subject.launches if "compiler" in launch.places
        ]
        least = min(least, sum(value.value for value in own if value))
    if least <= _INTENSITY * sum(value.value for value in needed if value):
        return
    loaded = subject.total("requested_bytes_read", "interpreter")
    if needed[0] and loaded and loaded.value < _AGAIN * needed[0].value:
        return
    tensor, cuda = subject.roof(pipe), subject.roof("fp32")
    if not (tensor and cuda and cuda.value):
        return
    if subject.row["performance"] > cuda.value:
        return
    # The summary's floor is by the pipe in use, so it does not cap this bound.
    rates = tensor.value / cuda.value
    busy = subject.row["bandwidth_fraction"]
    ratio, formula, share = rates, f"{pipe} roof / fp32 roof", _of_products(subject)
    if share < 1:
        ratio = 1 / (1 - share + share / rates)
        formula += f", over the {share * 100:.0f} % of the time that products take"
    if busy > 0 and 1 / busy < ratio:
        ratio, formula = 1 / busy, f"GPU time / time of the bytes needed; {formula} would be {units.times(ratio)}"
    yield subject.finding(
        IDLE,
        f"A matrix product without tensor cores: {pipe} is {units.times(rates)} the fp32 rate here",
        "Write the product as tl.dot on tiles of at least 16 in each dimension, with operands in their narrow dtype "
        "and an fp32 accumulator; for fp32 allow input_precision='tf32' where its error is acceptable.",
        [counted, flops, tensor, cuda],
        Bound(ratio, formula),
    )


def _of_products(subject: Subject) -> float:
    """The share of GPU time of launches that may be products: those with the most fp32 operations counted.

    Where these were not counted it is that of cuBLAS's kernels, and 1 where there are none.
    """
    case, source = subject.case, subject.case.counted_by
    done = {
        launch: value for launch, value in case.values.get(("flops_fp32", source), {}).items() if launch is not None
    }
    times = {launch: known.value for launch in done if (known := case.launch_time(launch, source))}
    if not done or len(times) < len(done) or not sum(times.values()) > 0:
        named = [launch for launch in launches(case) if function_names.library(launch.function) == "cuBLAS"]
        return sum(launch.share or 0.0 for launch in named) or 1.0
    products = [launch for launch, value in done.items() if value >= _OF_MOST * max(done.values())]
    return sum(times[launch] for launch in products) / sum(times.values())


def at_the_rate(subject: Subject) -> Iterator[Finding]:
    """Saturated arithmetic. It has no bound, because counters do not show the gain of a cheaper formula.

    A product on CUDA cores yields nothing: tensor cores would lift that roof.
    """
    use, pipe = subject.row["performance_fraction"], subject.row["pipe"]
    roof = subject.roof(pipe)
    if not (subject.measured and roof and subject.row["bound"] == "compute" and use >= bound.AT_ROOF):
        return
    if any(no_tensor_cores(subject)):
        return
    yield subject.finding(
        "at-the-rate",
        f"At the {pipe} roof: {units.text(use, 'ratio')} of the {roofs.of_roof(subject.row, subject.device).name}"
        f"{bound.above_rate(subject.row)}",
        "Only fewer or cheaper operations help: a narrower dtype for the operands of tl.dot, or work left out (skip "
        "tiles that a mask empties).",
        [subject.of_row("gpu_time", subject.row["time_source"]), subject.total("algorithm_flops", "model"), roof],
    )


def serialized_products(subject: Subject) -> Iterator[Finding]:
    """Products on tensor cores that ptxas serializes, so that they do not overlap. It has no bound, as no counter shows the cost.

    ptxas reports one reason a function.
    """
    for launch in subject.launches:
        for metric, (reason, remedy) in _SERIALIZED.items():
            counted = launch.get(metric, "compiler")
            if not counted or not counted.value:
                continue
            yield subject.finding(
                "serialized-products",
                f"ptxas lets no two wgmma overlap: {reason}",
                remedy,
                [counted, launch.get("registers", "compiler"), launch.get("block_threads", "compiler")],
                launch=launch,
            )


def bank_conflicts(subject: Subject) -> Iterator[Finding]:
    """Bank conflicts in shared memory, counted by ncu or predicted by the compiler. Bound: cycles / (cycles - conflicts).

    Where another layout has fewer conflicts, the bound is that layout's.
    """
    for launch in subject.launches:
        share = conflicts(subject, launch)
        if not share:
            continue
        values = [launch.get("bank_conflicts", *COUNTERS, "compiler")]
        values += [launch.get(name, *COUNTERS) for name in ("gpu_time", "sm_clock", "stall_short_scoreboard")]
        line, left = (launch.get(name, "compiler") for name in ("conflict_line", "conflicts_left"))
        predicted = launch.get("bank_conflicts", "compiler")
        cured = share * (1 - left.value / predicted.value) if left and predicted and predicted.value else share
        place = f", most of them at line {line.value:.0f}" if line else ""
        yield subject.finding(
            "bank-conflicts",
            f"Shared-memory bank conflicts take up to {share * 100:.0f} % of the cycles{place}",
            _layout(launch) or _TRITONS,
            [*values, line, left],
            subject.bound(1 / (1 - cured), "cycles / cycles without conflicts", launch),
            launch=launch,
        )


def _layout(launch: LaunchValues) -> str:
    names = ("conflicts_left", *(f"cure_{name}" for name in ("vec", "per_phase", "max_phase", "padding", "order")))
    found = [known.value for name in names if (known := launch.get(name, "compiler"))]
    if len(found) < len(names):
        return ""
    left, vec, per_phase, max_phase, padding, order = map(round, found)
    swizzle = f"gl.SwizzledSharedLayout({vec}, {per_phase}, {max_phase}, {[int(digit) - 1 for digit in str(order)]})"
    layout = f"rows with {units.several(padding, 'element')} of padding (gl.PaddedSharedLayout)" if padding else swizzle
    return (
        f"Lay the tile out as {layout}: {f'{left:,} conflicts are left' if left else 'no conflict is left'}. {_TRITONS}"
    )


def conflicts(subject: Subject, launch: LaunchValues) -> float:
    """The share of a launch's cycles that bank conflicts take, with one cycle for each conflict; 0 where it makes no finding.

    The conflicts are counted, else those that the compiler collector predicts. They are of all multiprocessors, which work in parallel.
    Without a time, a launch takes as long as its bytes, its operations or its wavefronts.
    """
    counted, predicted = launch.get("bank_conflicts", *COUNTERS), launch.get("bank_conflicts", "compiler")
    wavefronts = launch.get("shared_wavefronts", "compiler")
    found = counted or predicted
    free = predicted is not None and not predicted.value and wavefronts is not None
    if not found or (free and wavefronts and found.value <= NOISE * wavefronts.value):
        return 0.0
    time, clock = launch.get("gpu_time"), launch.get("sm_clock")
    cycles = (time.value if time else bound.or_zero(subject.row["least_time"])) * (clock.value if clock else _CLOCK)
    if not time and wavefronts:
        cycles = max(cycles, wavefronts.value / subject.device.multiprocessors)
    share = found.value / subject.device.multiprocessors / cycles if cycles else 0.0
    return share if _SHARE <= share < 1 else 0.0
