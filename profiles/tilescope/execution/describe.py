"""Describes kernels as JSON for processes that import neither torch nor triton. Imports torch: worker-side only."""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Iterable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import tilescope_kernels
from tilescope_kernels.catalog import ENTRIES
from tilescope_kernels.spec import Cost, KernelSpec, Workload, WorkloadError

from tilescope.execution import execute
from tilescope.table.suggest import unknown


def catalog(kernels: Iterable[str] = (), workloads: Iterable[str] = ()) -> list[dict[str, Any]]:
    """A dictionary for each of ``kernels`` (catalog names or ``path/to/file.py:SPEC``; by default the whole catalog).

    ``workloads`` are a user's texts. Each kernel's ``selected`` lists the ids of those that fit it, and undeclared ones are added to
    its ``workloads``. Raises ValueError, with one line, for a kernel that is unknown or does not load, for a workload that fits no
    kernel, and for a kernel that no workload fits.
    """
    asked, texts = list(kernels), list(workloads)
    # Does not import the library for a user's own kernel.
    own = bool(asked) and all(".py" in kernel for kernel in asked)
    names = [] if own else [spec.name for spec in tilescope_kernels.CATALOG]
    entries, fitted, refused = [], set[str](), dict[str, WorkloadError]()
    for kernel in asked or names:
        if ".py" not in kernel and kernel not in names:
            raise ValueError(unknown("kernel", kernel, names) + " (one of your own is named path/to/file.py:SPEC)")
        spec = execute.load_spec(kernel)
        selected = []
        for text in texts:
            try:
                selected.append(spec.workload(text))
                fitted.add(text)
            except WorkloadError as error:
                refused.setdefault(text, error)
        entries.append((kernel, spec, selected))
    for text in texts:
        if text not in fitted:
            raise refused[text]
    for kernel, _, selected in entries:
        if texts and not selected:
            raise ValueError(f"none of the workloads fits {kernel}: {next(iter(refused.values()))}")
    return [entry(kernel, spec, selected) for kernel, spec, selected in entries]


def _family(spec: KernelSpec) -> str:
    """The family of a kernel of the library. Imports all of it, which takes a third of a second."""
    return next((name for name, of in tilescope_kernels.FAMILIES.items() if spec in of), "")


def entry(kernel: str, spec: KernelSpec, selected: Sequence[Workload] = ()) -> dict[str, Any]:
    """The dictionary of one spec. ``kernel`` is its reference for workers, ``selected`` are a user's workloads."""
    own_file = kernel.rpartition(":")[0]
    path = Path(own_file).expanduser().absolute() if own_file else _declaring(spec)
    own = {w.id: w for w in spec.workloads}
    workloads = {**own, **{w.id: w for w in selected if w.id not in own}}
    return {
        "kernel": kernel,
        "name": spec.name,
        "summary": spec.summary,
        "family": "" if ".py" in kernel else _family(spec),
        "dims": list(spec.dims),
        "passes": list(spec.passes),
        "targets": list(spec.targets),
        "tolerance": dict(spec.tolerance),
        "implementations": {
            name: {
                "summary": impl.summary,
                "configs": [dict(config) for config in impl.configs],
                "requires": list(impl.requires),
                "available": not execute.missing(impl),
            }
            for name, impl in spec.implementations.items()
        },
        "workloads": [
            {"id": w.id, "label": w.label, "dims": dict(w.dims), "dtype": w.dtype, "elements": w.elements}
            for w in workloads.values()
        ],
        "selected": list(dict.fromkeys(w.id for w in selected)),
        "cost": {
            # A captured launch that was not counted yet has no cost.
            w.id: {d: known_cost(cost) for d in spec.passes if (cost := spec.cost(w, d)) is not None}
            for w in workloads.values()
        },
        "file": _portable(path, kernel),
        "path": str(path),
        "sha256": hashlib.sha256(path.read_bytes()).hexdigest(),
    }


def known_cost(cost: Cost) -> dict[str, Any]:
    """A cost's fields without unknown ones, as the operations of a captured launch may be. ``whole_tensors`` only where it is set."""
    unknown: tuple[str, ...] = getattr(cost, "unknown", ())
    whole = {"whole_tensors": True} if getattr(cost, "whole_tensors", False) else {}
    return {name: value for name, value in asdict(cost).items() if name not in unknown} | whole


def _declaring(spec: KernelSpec) -> Path:
    """The file of the library that declares the kernel, whose module has been imported."""
    for declared in ENTRIES:
        module = sys.modules.get(f"tilescope_kernels.{declared.module}")
        if module and any(getattr(module, variable) is spec for variable in declared.specs.split()):
            return Path(str(module.__file__)).absolute()
    raise ValueError(f"no file of the library declares {spec.name}")


def _portable(path: Path, kernel: str) -> str:
    """The file's name in a recording: relative to the package's parent for a kernel of the library, otherwise its path."""
    if ".py" in kernel:
        return str(path)
    package = next(folder for folder in path.parents if not (folder.parent / "__init__.py").is_file())
    return str(path.relative_to(package.parent))
