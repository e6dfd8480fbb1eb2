"""Compares an implementation's outputs and gradients with the reference in fp64.

On a GPU it runs in the workload's dtype. Without one it runs in Triton's interpreter in fp32, where rounding to bf16 hides no
mistake. Memory that the implementation allocates is filled with NaN, which shows elements that it does not write. The error of the
worst row is reported beside that of the whole result, which one wrong row in a million hardly changes.
"""

from __future__ import annotations

import contextlib
import importlib.metadata
import json
import math
import shutil
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import pandas as pd

from tilescope.collectors import interpreter
from tilescope.execution.not_applicable import NotApplicable, without_gpu
from tilescope.files import bounded_reading
from tilescope.table import assumptions, kernel_faults, schema
from tilescope.table.case import Case

if TYPE_CHECKING:
    import torch

SUFFIX = ".json"
#: Default limit in seconds of work for interpreting a case.
LIMIT = 5.0
#: Tolerance of a row over that of the whole result. Normally distributed errors reach four times the typical one somewhere in 16,000
#: rows of a single number. A row that is a difference of nearly equal numbers, as dQ of a query that sees few keys, reaches eight.
#: A completely wrong row has an error of about 1.
ROW_FACTOR = 10.0

#: The latest results of a reference on this GPU. They serve the implementations of a workload that follow one another.
_references: dict[tuple[Any, ...], dict[str, torch.Tensor]] = {}

parse_assumed, failure = assumptions.parse, kernel_faults.failure


class Errors(NamedTuple):
    """Relative errors of a result: of the whole, and of the worst row."""

    whole: float
    row: float


class CheckFailed(Exception):
    """Results that are wrong, or cannot be compared with the reference's: another shape, or NaN. The message is one line."""


def unavailable() -> str | None:
    """Why nothing can be checked here, or None."""
    return None if shutil.which("nvidia-smi") else interpreter.unavailable()


def capture(case: Case, spec: Any, out: Path, settings: Mapping[str, Any]) -> None:
    """Runs the implementation and the reference on the same inputs and writes the errors.

    Raises NotApplicable where there is no reference and, without a GPU, where interpreting would take longer than
    ``settings["check_limit"]`` seconds of work (5), torch.compile would have to generate code, or PyTorch has no CPU operator for
    it. Raises CheckFailed where shapes differ, or a result is NaN and the reference's is not.
    """
    import torch  # noqa: PLC0415 (worker-side only)

    on_gpu = torch.cuda.is_available()
    if absent := getattr(spec.reference, "absent", ""):
        raise NotApplicable(absent)
    assumed: dict[str, Any] = {}
    odd: dict[str, int] = {}
    faults: list[dict[str, Any]] = []
    with contextlib.nullcontext() if on_gpu else without_gpu(case):
        try:
            if on_gpu:
                errors = errors_on_gpu(case, spec, _references, odd)
            else:
                errors = _interpreted(case, spec, settings, assumed, odd, faults)
        except CheckFailed as error:
            if not on_gpu:
                faults = _with_origins(case, spec, settings)
            said = (one for wrong in (True, False) for one in kernel_faults.of_launches(faults, wrong=wrong))
            raise CheckFailed("; ".join((str(error), *said))) from None
        if not on_gpu and (odd or settings.get("not_finite")):
            faults = _with_origins(case, spec, settings)
    dtype = case.dtype if on_gpu or case.dtype == "fp64" else "fp32"
    result = {
        "source": "check" if on_gpu else "interpreter",
        "dtype": dtype,
        "errors": {name: whole for name, (whole, _) in errors.items()},
        "row_errors": {name: row for name, (_, row) in errors.items()},
        "tolerance": spec.tolerance.get(dtype, spec.tolerance.get(case.dtype)),
        "torch": importlib.metadata.version("torch"),
        "triton": importlib.metadata.version("triton"),
        "not_finite": odd,
        "launches": faults,
    }
    out.write_text(json.dumps({**result, "assumed": assumed} if assumed else result))


def require(case: Case, spec: Any, known: dict[Any, Any] | None = None) -> dict[str, float]:
    """Checks the case on this GPU before it is timed. Returns errors and tolerances by metric.

    ``known``, an empty dictionary at first, keeps the reference's results for other configs of a sweep. Raises CheckFailed where
    an error is above its tolerance, shapes differ, or a result is NaN and the reference's is not.
    """
    errors = errors_on_gpu(case, spec, {} if known is None else known).values()
    found = _metrics([whole for whole, _ in errors], [row for _, row in errors], spec.tolerance.get(case.dtype))
    for error, accepted in (("relative_error", "tolerance"), ("row_error", "row_tolerance")):
        if accepted in found and not found[error] <= found[accepted]:
            what = "error" if error == "relative_error" else "worst row's error"
            raise CheckFailed(
                f"wrong, so not timed: the {what} against the reference, {found[error]:.2g}, is above {found[accepted]:.2g}"
            )
    return found


@bounded_reading.parser
def parse(artefact: Path, case: Case) -> pd.DataFrame:
    """Rows of the largest relative error of outputs and gradients, that of their rows, and both tolerances.

    Older artefacts have no row errors.
    """
    data = bounded_reading.data_of(artefact)
    by_row = data["row_errors"].values() if "row_errors" in data else None
    found = _metrics(data["errors"].values(), by_row, data["tolerance"])
    return schema.frame([case.row(name, value, data["source"]) for name, value in found.items()])


def warnings(artefact: Path) -> list[str]:
    """A line for each result that is not finite where the reference is not either, and for each doubtful line of code."""
    data = bounded_reading.data_of(artefact)
    counted = [
        f"{name} is NaN or infinite in {count:,} elements, as the reference's is, which counts as no error"
        for name, count in data.get("not_finite", {}).items()
    ]
    return [*counted, *kernel_faults.of_launches(data.get("launches", ()), wrong=False)]


def _metrics(errors: Collection[float], by_row: Collection[float] | None, tolerance: float | None) -> dict[str, float]:
    """The largest errors and their tolerances, by metric."""
    found = {"relative_error": max(errors, default=0.0)}
    if tolerance is not None:
        found["tolerance"] = tolerance
    if by_row is not None:
        found["row_error"] = max(by_row, default=0.0)
        if tolerance is not None:
            found["row_tolerance"] = ROW_FACTOR * tolerance
    return found


def errors_on_gpu(
    case: Case, spec: Any, known: dict[Any, dict[str, torch.Tensor]], odd: dict[str, int] | None = None
) -> dict[str, Errors]:
    """The errors by result. ``known`` keeps the reference's results. Adds to ``odd`` the numbers of NaN and infinities."""
    import torch  # noqa: PLC0415

    from tilescope.execution import execute, launches  # noqa: PLC0415

    inputs = execute.draw_inputs(spec, case, "cuda")
    if case.impl == "compile":
        results = _results(execute.implementation(spec, case), inputs, case, spec)
    else:
        with _poison(), launches.ThroughCustomOps():  # type: ignore[no-untyped-call]
            results = _results(execute.implementation(spec, case), inputs, case, spec)
    torch.cuda.synchronize()
    del inputs
    key = _reference(case, results)
    if key not in known:
        known.clear()
        # Drawn again, since an implementation may overwrite its inputs.
        known[key] = _expected(results, execute.draw_inputs(spec, case, "cuda"), case, spec)
    if odd is not None:
        odd.update(_not_finite(results))
    return _errors(results, known[key], case)


def expect(case: Case, spec: Any, known: dict[Any, dict[str, torch.Tensor]]) -> None:
    """Adds the reference's results of a forward pass to ``known``, before any config has run."""
    from tilescope_kernels.spec import FORWARD  # noqa: PLC0415 (imports torch)

    from tilescope.execution import execute  # noqa: PLC0415

    if case.direction == FORWARD and not getattr(spec.reference, "absent", ""):
        found = known[_reference(case, {})] = _expected({}, execute.draw_inputs(spec, case, "cuda"), case, spec)
        _errors(found, found, case)  # loads what compares


def _reference(case: Case, results: Mapping[str, torch.Tensor]) -> tuple[Any, ...]:
    """What the reference's results depend on: gradients also on the dtypes of the outputs, to which theirs are rounded."""
    from tilescope_kernels.spec import FORWARD  # noqa: PLC0415 (imports torch)

    outputs = [] if case.direction == FORWARD else [r.dtype for name, r in results.items() if name.startswith("output")]
    return case.kernel, case.direction, case.workload, tuple(outputs)


def _not_finite(results: Mapping[str, torch.Tensor]) -> dict[str, int]:
    """The number of NaN and infinities in each result that has any."""
    counts = {name: int((~result.double().isfinite()).sum()) for name, result in results.items()}
    return {name: count for name, count in counts.items() if count}


def _with_origins(case: Case, spec: Any, settings: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The faults of the launches, with the origin of the first NaN or infinity that each stores."""
    faults: list[dict[str, Any]] = []
    # The check has said already what is wrong.
    with contextlib.suppress(CheckFailed, NotApplicable):
        _interpreted(case, spec, {**settings, "not_finite": True}, {}, {}, faults)
    return faults


def _interpreted(  # noqa: PLR0917
    case: Case,
    spec: Any,
    settings: Mapping[str, Any],
    assumed: dict[str, Any],
    odd: dict[str, int],
    faults: list[dict[str, Any]],
) -> dict[str, Errors]:
    """Errors by result, from the interpreter. Adds to ``assumed`` the answers about an assumed GPU, to ``odd`` numbers of NaN and infinities.

    Adds to ``faults`` those of each launch that has any. ``settings["not_finite"]`` looks for the first NaN and infinity of each.
    """
    import torch  # noqa: PLC0415

    from tilescope.collectors import fault_rules  # noqa: PLC0415
    from tilescope.execution import assumed_device, execute, launches  # noqa: PLC0415
    from tilescope.interpreter import interpret  # noqa: PLC0415

    left = interpret.Allowance(float(settings.get("check_limit", LIMIT)))

    def launched(launch: launches.Launch) -> None:
        # The meter checks bounds: an access outside of every tensor is an error, not a crash.
        meter, told = interpret.meter(launch), settings.get("progress")
        interpret.run(launch, meter=meter, allowance=left, progress=told, not_finite=bool(settings.get("not_finite")))
        if found := fault_rules.of_subject(fault_rules.Subject(launch, meter.seen, meter.races)):
            faults.append({"function": launch.name, **found})

    dtype = None if case.dtype == "fp64" else torch.float32
    with assumed_device.for_launcher(spec, case, settings.get("target", "sm_90"), "cpu") as there:
        place = "cuda" if there else "cpu"
        inputs = execute.draw_inputs(spec, case, place, dtype)
        with _poison(), launches.catch(launched):
            results = _results(execute.implementation(spec, case), inputs, case, spec)
        assumed.update(there.as_data() if there else {})
        odd.update(_not_finite(results))
        return _errors(results, _expected(results, execute.draw_inputs(spec, case, place, dtype), case, spec), case)


def _results(
    call: Any, inputs: Mapping[str, Any], case: Case, spec: Any, rounded: Sequence[torch.dtype] | None = None
) -> dict[str, torch.Tensor]:
    """Outputs, and gradients for a backward pass, by name. For the reference, the outputs' gradients are ``rounded`` to dtypes."""
    import torch  # noqa: PLC0415
    from tilescope_kernels.spec import FORWARD  # noqa: PLC0415 (imports torch)

    from tilescope.execution import execute  # noqa: PLC0415

    outputs = execute.as_tensors(call(**inputs))
    results = {f"output {index}": output.detach() for index, output in enumerate(outputs)}
    if case.direction == FORWARD:
        return results
    whose = case.id if rounded is None else f"{case.id}, the reference"
    wanted = execute.differentiable(inputs)
    gradients = execute.draw_gradients(outputs, spec.workload(case.workload).seed)
    if rounded is not None:
        gradients = [None if g is None else g.to(d).to(g.dtype) for g, d in zip(gradients, rounded, strict=True)]
    pairs = [(o, g) for o, g in zip(outputs, gradients, strict=True) if g is not None]
    if not pairs:
        raise CheckFailed(f"{whose}: no output carries a gradient")
    found = torch.autograd.grad([o for o, _ in pairs], list(wanted.values()), [g for _, g in pairs], allow_unused=True)
    for name, gradient in zip(wanted, found, strict=True):
        if gradient is None:
            raise CheckFailed(f"{whose}: {name} gets no gradient")
        results[f"gradient of {name}"] = gradient
    return results


def _expected(
    results: Mapping[str, torch.Tensor], inputs: Mapping[str, Any], case: Case, spec: Any
) -> dict[str, torch.Tensor]:
    """The reference's results in fp64. Gradients of its outputs are rounded to the dtypes of ``results``, as for the implementation."""
    import torch  # noqa: PLC0415

    precise: dict[str, Any] = {}
    for name, value in inputs.items():
        floating = isinstance(value, torch.Tensor) and value.is_floating_point()
        precise[name] = value.detach().double().requires_grad_(value.requires_grad) if floating else value
    outputs = [result for name, result in results.items() if name.startswith("output")]
    return _results(spec.reference, precise, case, spec, [output.dtype for output in outputs])


def _errors(results: Mapping[str, torch.Tensor], expected: Mapping[str, torch.Tensor], case: Case) -> dict[str, Errors]:
    """The ``Errors`` of each result."""
    if results.keys() != expected.keys():
        raise CheckFailed(f"{case.id} returns {', '.join(results)}; the reference returns {', '.join(expected)}")
    return {name: relative_errors(result, expected[name], f"{case.id}, {name}") for name, result in results.items()}


def relative_errors(result: torch.Tensor, expected: torch.Tensor, what: str) -> Errors:
    """``||result - expected|| / ||expected||``, of the whole and of the worst row.

    Rows are along the last dimension; the rows of a vector are its elements. The error of a row smaller than the root mean square of
    all rows is relative to that, since its own size may be rounding. ``what`` names the result in messages. Raises CheckFailed for
    another shape, NaN and infinity.
    """
    import torch  # noqa: PLC0415

    if result.shape != expected.shape:
        raise CheckFailed(f"{what} has shape {tuple(result.shape)}, the reference {tuple(expected.shape)}")
    precise, expected = result.double(), expected.double()
    apart = precise - expected
    if not apart.isfinite().all():
        wrong = int((precise.isnan() & ~expected.isnan()).sum())
        if wrong:
            raise CheckFailed(f"{what} has NaN in {wrong} of {result.numel()} elements: wrong, or never written")
        # Equal infinities and common NaN are no difference.
        apart = torch.where((precise == expected) | (precise.isnan() & expected.isnan()), 0.0, apart)
        expected = torch.where(expected.isfinite(), expected, 0.0)
    differences, sizes = _row_norms(apart), _row_norms(expected)
    difference, size = differences.norm().item(), sizes.norm().item()
    whole = float(difference / size if size else difference)
    if not math.isfinite(whole):
        raise CheckFailed(f"{what} is not finite where the reference is, or the other way round")
    typical = size / math.sqrt(max(sizes.numel(), 1))
    rows = differences / sizes.clamp_min(typical) if size else differences
    return Errors(whole, float(rows.max().item()) if rows.numel() else 0.0)


def _row_norms(values: torch.Tensor) -> torch.Tensor:
    import torch  # noqa: PLC0415

    return torch.linalg.vector_norm(values, dim=-1) if values.dim() > 1 else values.abs()


def _poison() -> Any:
    """A mode in which uninitialised floating-point memory holds NaN."""
    import torch  # noqa: PLC0415
    from tilescope_kernels import dispatch  # noqa: PLC0415

    allocating = frozenset({"empty", "empty_like", "empty_strided", "new_empty", "new_empty_strided", "empty_permuted"})

    class Poison(dispatch.OnLooker):
        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            result = func(*args, **(kwargs or {}))
            if func.namespace == "aten" and func.overloadpacket.__name__ in allocating and result.is_floating_point():
                torch.fill_(result, float("nan"))
            return result

    return Poison()  # type: ignore[no-untyped-call]
