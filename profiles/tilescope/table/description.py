"""What a run's description keeps of its kernels and settings, where it is read back: every part may be absent. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypedDict


class Implementation(TypedDict, total=False):
    """What a kernel's spec declared of one of its implementations."""

    summary: str
    configs: list[Mapping[str, int]]
    requires: list[str]
    available: bool


class Cost(TypedDict, total=False):
    """What a kernel's spec declared of one workload in one direction."""

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
    elements: int
    dims: Mapping[str, int]


class DeclaredKernel(TypedDict, total=False):
    """What a kernel's spec declared, as a run keeps it. Every part may be absent, and there may be others."""

    summary: str
    file: str
    variable: str
    sha256: str
    dims: list[str]
    passes: list[str]
    implementations: Mapping[str, Implementation]
    tolerance: Mapping[str, float | None]
    cost: Mapping[str, Mapping[str, Cost]]
    workloads: list[Workload]


class Assumption(TypedDict, total=False):
    """What launchers were told of a GPU that was not there: its figures, from ``sources``, and each answer by query.

    ``toolkit`` is the version of CUDA that it was said to have; ``refused`` are queries that have no honest answer.
    """

    target: str
    name: str
    toolkit: str
    sources: list[str]
    answers: Mapping[str, Any]
    refused: list[str]


class Settings(TypedDict, total=False):
    """Settings that are read back. There may be others."""

    target: str
    collectors: list[str]
    repetitions: int
    warmup: int
    timeout: float
    batch: int
    interpreter_limit: float
    check_limit: float
    measure_ceilings: bool
    renew_ceilings: bool
    assumed: Mapping[str, Assumption]
