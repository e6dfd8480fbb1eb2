"""Types of the kernels and settings in a run's description. Every part may be absent, and a huge whole number is a float. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypedDict


class Implementation(TypedDict, total=False):
    """One implementation, as a kernel's spec declared it."""

    summary: str
    configs: list[Mapping[str, int | float]]
    requires: list[str]
    available: bool


class Cost(TypedDict, total=False):
    """Cost of one workload in one direction, as a kernel's spec declared it: operations, and bytes read and written."""

    flops: float
    bytes_read: float
    bytes_written: float
    pipe: str
    whole_tensors: bool


class Workload(TypedDict, total=False):
    """A size that a kernel declared."""

    id: str
    label: str
    dtype: str
    elements: int | float
    dims: Mapping[str, int | float]


class DeclaredKernel(TypedDict, total=False):
    """A kernel's spec as a run keeps it, and the digest of each GPU function. There may be other parts."""

    summary: str
    file: str
    variable: str
    sha256: str
    functions: Mapping[str, str]
    dims: list[str]
    passes: list[str]
    implementations: Mapping[str, Implementation]
    tolerance: Mapping[str, float | None]
    cost: Mapping[str, Mapping[str, Cost]]
    workloads: list[Workload]


class Assumption(TypedDict, total=False):
    """The answers that launchers got about an assumed GPU.

    ``sources`` are the documents of its figures, ``answers`` maps query to value, ``toolkit`` is the version of CUDA that was
    reported, and ``refused`` lists queries that no document answers.
    """

    target: str
    name: str
    toolkit: str
    sources: list[str]
    answers: Mapping[str, Any]
    refused: list[str]


class Settings(TypedDict, total=False):
    """Settings of a run. There may be others."""

    target: str
    script: str
    collectors: list[str]
    repetitions: int
    warmup: int
    timeout: float
    batch: int
    interpreter_limit: float
    lanes_slowdown: float
    check_limit: float
    measure_ceilings: bool
    renew_ceilings: bool
    assumed: Mapping[str, Assumption]
