"""Makes a callable of a case: the only way from a kernel's declaration to its launches. Imports torch: worker-side only."""

from __future__ import annotations

import functools
import hashlib
import importlib
import importlib.util
import itertools
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any, cast

import torch
import torch._functorch.config as functorch_config
from tilescope_kernels.spec import FORWARD, STEP, Implementation, KernelSpec

from tilescope.files import bounded_reading, installed
from tilescope.table.case import Case, parse_config

Inputs = dict[str, Any]
Tensors = tuple[torch.Tensor, ...]


def load_spec(ref: str) -> KernelSpec:
    """Loads the kernel ``ref``: a name from the catalog, or ``path/to/file.py:NAME`` for a user's own.

    Raises ValueError, with one line, where there is no such kernel, file or attribute, the file does not import, or the
    attribute is not a KernelSpec.
    """
    path, separator, attribute = ref.rpartition(":")
    if separator and path.endswith(".py"):
        module = _load_file(Path(path))
        spec = getattr(module, attribute, None)
        if spec is None:
            raise ValueError(f"{path} has no {attribute!r}: name the variable that holds its KernelSpec")
        if not isinstance(spec, KernelSpec):
            raise ValueError(f"{ref} is a {type(spec).__name__}, not a KernelSpec: tilescope.spec makes one of it")
        return spec
    if ref.endswith(".py"):
        raise ValueError(f"{ref} names a file but no kernel: write {ref}:SPEC")
    library = importlib.import_module("tilescope_kernels.catalog")
    if (found := library.find(ref)) is not None:
        return cast("KernelSpec", found)
    catalog: tuple[KernelSpec, ...] = importlib.import_module("tilescope_kernels").CATALOG
    names = ", ".join(spec.name for spec in catalog)
    raise ValueError(f"unknown kernel {ref!r}: use one of {names}, or path/to/file.py:SPEC")


def _load_file(path: Path) -> ModuleType:
    file = path.expanduser().resolve()
    if not file.is_file():
        raise ValueError(f"{path} is not a file")
    # Triton reads a kernel's source through its module, which must therefore be registered under a stable name.
    name = f"{file.stem}_{hashlib.sha256(str(file).encode()).hexdigest()[:8]}"
    if name in sys.modules:
        return sys.modules[name]
    if str(file.parent) not in sys.path:
        sys.path.insert(0, str(file.parent))
    description = importlib.util.spec_from_file_location(name, file)
    if description is None or description.loader is None:
        raise ValueError(f"{path} is not a Python file")
    module = importlib.util.module_from_spec(description)
    sys.modules[name] = module
    try:
        description.loader.exec_module(module)
    except BaseException as error:
        sys.modules.pop(name, None)
        if isinstance(error, SystemExit):
            kept = "keep what only a script does under if __name__ == '__main__'"
            raise ValueError(f"{path} does not import: it calls sys.exit; {kept}") from error
        if not isinstance(error, Exception):
            raise
        said = f"{type(error).__name__}: {bounded_reading.one_line(error)}"
        if re.search("CUDA|NVIDIA|active drivers", said) and not torch.cuda.is_available():
            said = f"it needs a GPU ({said}): profile the script itself ('tilescope profile {path}')"
        raise ValueError(f"{path} does not import: {said}") from error
    return module


def missing(implementation: Implementation) -> tuple[str, ...]:
    """The distributions that an implementation requires and that cannot be imported."""
    return installed.not_installed(implementation.requires)


def implementation(spec: KernelSpec, case: Case) -> Callable[..., Any]:
    """The case's implementation with its config, to be called with ``**inputs``.

    Raises ValueError where the spec has no such implementation, direction or config, or a requirement is not installed.
    """
    if case.impl not in spec.implementations:
        known = ", ".join(spec.implementations)
        raise ValueError(f"{spec.name} has no implementation {case.impl!r}: use one of {known}")
    if case.direction not in spec.passes:
        raise ValueError(f"{spec.name} has no {case.direction} pass: it has {', '.join(spec.passes)}")
    chosen = spec.implementations[case.impl]
    if case.direction != FORWARD:
        # Otherwise a compiled backward pass frees what the forward pass saved, and runs only once. It counts when it runs, too.
        functorch_config.donated_buffer = case.direction == STEP
    absent = missing(chosen)
    if absent:
        raise ValueError(f"{spec.name}/{case.impl} needs {', '.join(absent)}: pip install {' '.join(absent)}")
    if not case.config:
        return chosen.call
    config = parse_config(case.config)
    if not any(config.keys() == known_config.keys() for known_config in chosen.configs):
        accepted = f"it takes {', '.join(chosen.configs[0])}" if chosen.configs else "it takes none"
        raise ValueError(f"{spec.name}/{case.impl} has no config {case.config!r}: {accepted}")
    return functools.partial(chosen.call, config=config)


def draw_inputs(spec: KernelSpec, case: Case, device: Any, dtype: torch.dtype | None = None) -> Inputs:
    """The workload's inputs on ``device``. With ``dtype``, floating-point tensors are converted to it.

    On ``meta`` they have shapes, strides and offsets but no data. For the forward pass none requires a gradient.
    """
    workload = spec.workload(case.workload)
    place = torch.device(device)
    try:
        inputs = spec.inputs(workload, place)
    except (RuntimeError, NotImplementedError):
        if place.type != "meta":
            raise
        # Not every generator can draw on meta: draw on the CPU and keep the geometry.
        storages: dict[int, torch.UntypedStorage] = {}
        inputs = {n: _to_meta(v, storages) for n, v in spec.inputs(workload, torch.device("cpu")).items()}
    return {name: _adapt(value, case.direction, dtype) for name, value in inputs.items()}


def _to_meta(value: Any, storages: dict[int, torch.UntypedStorage]) -> Any:
    if not isinstance(value, torch.Tensor):
        return value
    storage = value.untyped_storage()
    if storage.data_ptr() not in storages:
        storages[storage.data_ptr()] = torch.UntypedStorage(storage.nbytes(), device="meta")  # type: ignore[no-untyped-call]
    meta = torch.empty(0, dtype=value.dtype, device="meta")
    meta.set_(storages[storage.data_ptr()], value.storage_offset(), value.shape, value.stride())
    return meta.requires_grad_(value.requires_grad)


def _adapt(value: Any, direction: str, dtype: torch.dtype | None) -> Any:
    if not isinstance(value, torch.Tensor):
        return value
    wanted = direction != FORWARD and value.requires_grad
    # 8-bit floats are codes of another format: converting them would change the inputs.
    if dtype is not None and value.is_floating_point() and value.element_size() > 1:
        value = value.detach().to(dtype)
    return value.detach().requires_grad_(wanted)


def differentiable(inputs: Mapping[str, Any]) -> dict[str, torch.Tensor]:
    return {n: v for n, v in inputs.items() if isinstance(v, torch.Tensor) and v.requires_grad}


def as_tensors(outputs: Any) -> Tensors:
    return (outputs,) if isinstance(outputs, torch.Tensor) else tuple(outputs)


def draw_gradients(outputs: Tensors, seed: int = 0) -> list[torch.Tensor | None]:
    """A random gradient for each output that can be differentiated, None for the others.

    They are drawn in fp32 from ``seed``, so that every dtype gets the same values, and on the output's device, because the CPU
    takes a second where a GPU takes a millisecond.
    """
    gradients: list[torch.Tensor | None] = []
    generators: dict[torch.device, torch.Generator] = {}
    for output in outputs:
        if not output.requires_grad:
            gradients.append(None)
        elif output.is_meta:
            # Contiguous whatever the output's strides, as drawn ones are: a launcher may look at strides.
            gradients.append(torch.empty(output.shape, dtype=output.dtype, device="meta"))
        else:
            place = output.device
            generator = generators.setdefault(place, torch.Generator(place).manual_seed(seed + 1))
            gradients.append(torch.randn(output.shape, generator=generator, device=place).to(output.dtype))
    return gradients


def prepare(spec: KernelSpec, case: Case, device: Any, *, rotate: int = 1) -> Callable[[], Any]:
    """A closure that runs the case once: the forward pass, the backward pass, or both.

    ``rotate`` sets of inputs are drawn here, and calls take them in turn, so that a call does not find its inputs in the cache.
    For the backward pass the forward pass runs here. For both passes, the outputs' gradients are drawn when a set is first
    used. Raises ValueError as ``implementation``, and WorkloadError for a workload that does not parse.
    """
    call = implementation(spec, case)
    make = {FORWARD: _forward, STEP: _step}.get(case.direction, _backward)
    calls = itertools.cycle([make(call, draw_inputs(spec, case, device), spec, case) for _ in range(rotate)])

    def run() -> Any:
        return next(calls)()

    return run


def _forward(call: Callable[..., Any], inputs: Inputs, _spec: KernelSpec, _case: Case) -> Callable[[], Any]:
    return functools.partial(call, **inputs)


def _step(call: Callable[..., Any], inputs: Inputs, spec: KernelSpec, case: Case) -> Callable[[], Any]:
    drawn: list[list[torch.Tensor | None]] = []

    def step() -> Any:
        outputs, wanted = as_tensors(call(**inputs)), _wanted(inputs, spec)
        if not drawn:
            gradients = draw_gradients(outputs, spec.workload(case.workload).seed)
            # The gradient of a loss is 1, as in ``loss.backward()``.
            drawn.append([g if g is None or g.dim() else torch.ones_like(g) for g in gradients])
        differentiated, given = _differentiated(outputs, drawn[0], spec, case)
        return torch.autograd.grad(differentiated, wanted, given)

    return step


def _backward(call: Callable[..., Any], inputs: Inputs, spec: KernelSpec, case: Case) -> Callable[[], Any]:
    wanted, outputs = _wanted(inputs, spec), as_tensors(call(**inputs))
    gradients = draw_gradients(outputs, spec.workload(case.workload).seed)
    differentiated, given = _differentiated(outputs, gradients, spec, case)
    return lambda: torch.autograd.grad(differentiated, wanted, given, retain_graph=True)


def _wanted(inputs: Inputs, spec: KernelSpec) -> list[torch.Tensor]:
    wanted = list(differentiable(inputs).values())
    if not wanted:
        raise ValueError(f"{spec.name} has no input that requires a gradient: set requires_grad in its inputs()")
    return wanted


def _differentiated(
    outputs: Tensors, gradients: Sequence[torch.Tensor | None], spec: KernelSpec, case: Case
) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
    """The outputs that have a gradient, and their gradients."""
    pairs = [(o, g) for o, g in zip(outputs, gradients, strict=True) if g is not None]
    if not pairs:
        raise ValueError(f"{spec.name}/{case.impl} returned nothing that can be differentiated")
    return [o for o, _ in pairs], [g for _, g in pairs]
